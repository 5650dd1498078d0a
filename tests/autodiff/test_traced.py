"""Plans of one model trace the stages that they have in common once, and nothing else changes."""

import gc
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
from torch import nn

from pipec.autodiff.differentiate import differentiate
from pipec.autodiff.joint import Joint, trace_joint
from pipec.autodiff.model import Training
from pipec.graph.ir import Graph, OutputKind, origin
from pipec.graph.written import extract
from tests.autodiff.chain import cut
from tests.trained import trained_mlp


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The stages that are traced."""
    found: list[Graph] = []

    def noted(
        stage: Graph, wanted: tuple[int, ...], gradients: tuple[int, ...], *, portable: bool
    ) -> Joint:
        found.append(stage)
        return trace_joint(stage, wanted, gradients, portable=portable)

    monkeypatch.setattr("pipec.autodiff.differentiate.trace_joint", noted)
    return found


def told(stages: list[Training]) -> list[object]:
    """All that graphs say, names and origins too."""
    graphs = [graph for t in stages for graph in t.graphs.values()]
    return [
        (str(g.module.graph), g.inputs, g.outputs, [origin(n) for n in g.calls]) for g in graphs
    ]


def test_a_common_stage_is_traced_once(traced: list[Graph]) -> None:
    model = trained_mlp(6)
    for stages, more in ((2, 2), (2, 0), (3, 3), (2, 0), (3, 0)):
        known = len(traced)
        differentiate(model, cut(model, stages))
        assert len(traced) - known == more


@pytest.mark.parametrize("order", [(2, 4), (4, 2)])
def test_a_stage_of_the_same_structure_has_its_own_names(order: tuple[int, int]) -> None:
    """The second of three stages is another layer each time."""
    model = trained_mlp(4)
    for start in order:
        fresh = trained_mlp(4)
        assert told(differentiate(model, parts(model, start))) == told(
            differentiate(fresh, parts(fresh, start))
        )


def parts(model: Graph, start: int) -> list[Graph]:
    """Three stages, of which the second is a linear layer and what follows it."""
    names = [n.name for n in model.calls]
    bounds = (0, start, start + 2, len(names))
    return [extract(model, set(names[a:b]), "Stage") for a, b in pairwise(bounds)]


def test_other_weights_in_the_same_graph_are_found_in_its_stages() -> None:
    model = trained_mlp(4)
    differentiate(model, cut(model, 2))
    other = model.replace(weights={n: w + 1 for n, w in model.weights.items()})
    found = [g for t in differentiate(other, cut(other, 2)) for g in t.graphs.values()]
    assert any(g.weights for g in found)
    assert all(w is other.weights[n] for g in found for n, w in g.weights.items())


@pytest.mark.parametrize("frozen", ["0.weight", "6.bias"])
def test_a_weight_that_is_frozen_later_gets_no_gradient(frozen: str) -> None:
    model = trained_mlp(4)
    assert frozen in gradients(differentiate(model, cut(model, 2)))
    still = nn.Parameter(model.weights[frozen], requires_grad=False)
    other = model.replace(weights={**model.weights, frozen: still})
    found = gradients(differentiate(other, cut(other, 2)))
    assert found == gradients(differentiate(model, cut(model, 2))) - {frozen}


def gradients(stages: list[Training]) -> set[str]:
    return {o.name for t in stages for o in t.B.outputs_of(OutputKind.WEIGHT_GRADIENT)}


def test_origins_that_change_are_those_of_the_next_graphs() -> None:
    """A pass may write other origins into the same stage."""
    model = trained_mlp(4)
    for name in ("here", "there"):
        stages = cut(model, 2)
        for stage in stages:
            for call in stage.calls:
                call.meta["origin"] = replace(origin(call), name=name)
        graphs = [g for t in differentiate(model, stages) for g in t.graphs.values()]
        assert {origin(n).name for g in graphs for n in g.calls} <= {name, ""}


def test_a_portable_stage_is_another_one(traced: list[Graph]) -> None:
    model = trained_mlp(4)
    for portable, more in ((False, 2), (True, 2), (False, 0), (True, 0)):
        known = len(traced)
        differentiate(model, cut(model, 2), portable=portable)
        assert len(traced) - known == more


def test_what_was_used_last_is_kept(traced: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_mlp(6)
    differentiate(model, cut(model, 2))
    monkeypatch.setattr("pipec.autodiff.differentiate.MOST", 1)
    differentiate(model, cut(model, 3))
    known = len(traced)
    differentiate(model, cut(model, 2))
    assert len(traced) - known == 2, "the first stage of three was used last"


def test_a_model_that_is_gone_leaves_nothing() -> None:
    """No graph that is kept holds the model that it is kept for."""
    model = trained_mlp(2)
    differentiate(model, cut(model, 2))
    module = weakref.ref(model.module)
    del model
    gc.collect()
    assert module() is None
