"""Which values need a gradient, which stages share graphs, and what is refused."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipec.autodiff.differentiate import differentiate
from pipec.autodiff.needs import needs_grad
from pipec.errors import GraphError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.graph.written import extract
from tests.autodiff.chain import Case, Chain, build, chained, cut, eager, pipeline, worst
from tests.autodiff.zoo import CASES, chain_of, floats, seeded


def graph_of(case: Case, module: nn.Module) -> Graph:
    args, target = case.batch(0)
    return trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))


def test_masks_and_positions_get_no_gradient_though_they_cross_cuts() -> None:
    _, chain = chain_of("llama")
    needs = needs_grad(chain.graph)
    crossing = {i.name for s in chain.stages for i in s.inputs_of(InputKind.VALUE)}
    back = {name for t in chain.training for name in t.gradients_out()}
    assert back == crossing & needs
    assert crossing - needs  # cos and sin of the rotary embedding


def test_every_gradient_that_is_wanted_is_yielded_by_a_later_stage() -> None:
    training = chain_of("t5")[1].training
    for k, t in enumerate(training):
        later = {name for u in training[k + 1 :] for name in u.gradients_out()}
        assert set(t.gradients_in()) - {"loss"} <= later


def test_frozen_parameters_get_no_gradient_and_their_stages_no_backward() -> None:
    case = CASES["mlp"]
    model = seeded(case)
    for name in ("0.weight", "0.bias"):
        model.get_parameter(name).requires_grad_(False)
    graph = graph_of(case, model)
    training = differentiate(graph, cut(graph, 3))
    assert not training[0].B.calls
    assert not training[1].gradients_out()
    assert [n for t in training for n in t.trained] == [
        "2.weight", "2.bias", "4.weight", "4.bias",
    ]  # fmt: skip


class Stack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def per_layer(graph: Graph, layers: int) -> list[Graph]:
    """One stage per linear layer, the loss in the last."""
    heads = [k for k, n in enumerate(graph.calls) if "linear" in str(n.target)][1:]
    bounds = [0, *heads, len(graph.calls)]
    names = [n.name for n in graph.calls]
    return [extract(graph, set(names[a:b]), "S") for a, b in itertools.pairwise(bounds)]


def test_equal_stages_are_differentiated_once_and_share_their_graphs() -> None:
    case = Case(lambda: Stack(6), F.cross_entropy, floats(4, 8))
    module = seeded(case)
    graph = graph_of(case, module)
    stages = per_layer(graph, 6)
    training = differentiate(graph, stages)
    assert len({t.key for t in training}) == 3
    assert training[1].B.module is training[4].B.module
    assert training[4].trained == ("layers.4.weight", "layers.4.bias")
    chain = Chain(
        graph, stages, training, {k: w.detach().clone() for k, w in graph.weights.items()}
    )
    for split in (False, True):
        got = pipeline(chain, case, 2, split=split)
        assert worst(got.grads, eager(module, case, 2).grads) <= 1e-6


def test_tied_weights_get_one_gradient_per_stage_that_reads_them() -> None:
    _, chain = chain_of("gpt-2")
    name = "model.transformer.wte.weight"
    assert [k for k, t in enumerate(chain.training) if name in t.trained] == [0, 3]


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.b(F.relu(self.a(x), inplace=True))
        return y.float()


def test_bfloat16_regions_train_with_float32_weights() -> None:
    case = Case(Autocast, F.cross_entropy, floats(4, 16), 3)
    module = seeded(case)
    got = pipeline(build(case, module), case, 2)
    want = eager(module, case, 2).grads
    assert {g.dtype for g in got.grads.values()} == {torch.float32}
    assert worst(got.grads, want) <= 1e-2  # bfloat16 has 8 bits of mantissa


def test_a_model_without_loss_is_refused() -> None:
    graph = trace(nn.Linear(2, 2), (torch.ones(1, 2),), source=Source("memory", "test"))
    with pytest.raises(GraphError, match="no loss"):
        differentiate(graph, [graph])


def test_a_model_of_one_stage_is_plain_accumulation() -> None:
    case = CASES["dropout"]
    module = seeded(case)
    chain = chained(graph_of(case, module), 1)
    got, want = pipeline(chain, case, 3), eager(module, case, 3)
    assert worst(got.grads, want.grads) == 0


def test_a_graph_that_was_changed_in_place_is_looked_at_again() -> None:
    case = CASES["mlp"]
    graph = graph_of(case, seeded(case))
    before = needs_grad(graph)
    first = next(n for n in graph.calls if n.name in before)
    with graph.module.graph.inserting_after(first):
        new = graph.module.graph.call_function(torch.ops.aten.neg.default, (first,))
        new.meta.update(first.meta)
    first.replace_all_uses_with(new, lambda user: user is not new)
    graph.module.recompile()
    assert needs_grad(graph) == before | {new.name}
