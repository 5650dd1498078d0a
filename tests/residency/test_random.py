"""A random op draws once: neither recompute nor offload nor split backwards change a mask."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from pipec.autodiff.recompute import is_random, views
from pipec.autodiff.rewrite import lineage, recompute_values
from pipec.compiler.comparison import SAME_KERNELS, rounding_tolerance
from pipec.compiler.residency import list_saved
from pipec.compiler.verify_training import compare_gradients
from pipec.errors import PipecError, PlanError
from pipec.graph.comm import FETCH, OFFLOAD
from pipec.plan.model import Plan
from pipec.plan.rules.verify import verify
from pipec.runtime.draws import count_draws
from tests.autodiff.chain import Case
from tests.autodiff.zoo import floats, seeded
from tests.residency.random_models import MODELS
from tests.residency.trials import planned
from tests.runtime.pipelines import batches, scheduled, staged
from tests.runtime.test_offload import hosted

# each takes a second at most; all models: python -m benchmarks offload_training
FAST = [n for n in MODELS if n not in ("gpt-2", "bert")]


def everything_again(plan: Plan) -> Plan:
    """The plan with every second saved value that can be computed again computed again."""
    stages = []
    for stage in plan.stages:
        training = stage.training
        assert training
        names = list_saved(training)
        again: set[str] = set()
        for name in names[::-1]:
            kept = set(names) - again - {name}
            steps = [n for n in lineage(training, name, kept) if n.op == "call_function"]
            if steps and not any(map(is_random, steps)):
                again.add(name)
        stages.append(replace(stage, training=recompute_values(training, again)))
    return plan.replace(stages=tuple(stages))


@pytest.mark.parametrize("name", FAST)
def test_split_backwards_use_the_masks_that_were_drawn(name: str) -> None:
    case = MODELS[name]
    plain = staged(case, seeded(case), 2)
    plan = hosted(everything_again(plain), 2, 1)
    assert plan.stages != plain.stages
    for stage in plan.stages:
        training = stage.training
        assert training
        for graph in (training.B, training.I, training.W):
            assert not any(map(is_random, graph.calls))
        twice = {n.name for n in training.I.calls} & {n.name for n in training.W.calls}
        assert all(map(views, map(training.W.node, twice)))
    assert (
        sum(count_draws(s.training.F) for s in plan.stages if s.training)
        == count_draws(plan.graph)
        > 0
    )
    inputs = [batches(case, plan.graph)(k) for k in range(2)]
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    for schedule in ("zb-h1", "1f1b"):
        timed = plan.replace(schedule=scheduled(plan, schedule, 3))
        verify(timed)
        found = compare_gradients(timed, plan.graph, inputs, tolerance, seed=3)
        assert all(c.ok for c in found)
        assert max(c.scale for c in found) > 0


def test_a_mask_that_is_drawn_again_is_named() -> None:
    case = MODELS["dropout between"]
    plan = staged(case, seeded(case), 2)
    stage = plan.stages[0]
    training = stage.training
    assert training
    (draw, *_) = filter(is_random, training.F.calls)
    module = fx.GraphModule({}, fx.Graph())
    module.graph.output(module.graph.graph_copy(training.W.module.graph, {}))
    first = next(iter(module.graph.nodes))
    with module.graph.inserting_after(first):
        again = module.graph.create_node("call_function", draw.target, (first, 0.4, True))
    x = first.meta["val"]
    values = x, x.new_empty(x.shape, dtype=torch.bool)
    again.meta.update(draw.meta, val=values)
    W = training.W.replace(module=module)
    stages = (replace(stage, training=replace(training, W=W)), *plan.stages[1:])
    with pytest.raises(PlanError, match=r"W of stage 0, .*: got draws random numbers again"):
        verify(plan.replace(stages=stages))


def damaged(plan: Plan, graph: str, change: str) -> Plan:
    """Stage 0 with one of its graphs' copies exchanged, left out or doubled."""
    stage = plan.stages[0]
    old = getattr(stage.training, graph)
    module = fx.GraphModule({}, fx.Graph())
    module.graph.output(module.graph.graph_copy(old.module.graph, {}))
    op, outputs = OFFLOAD if graph == "F" else FETCH, old.outputs
    first, second = [n for n in module.graph.nodes if n.target is op][:2]
    if change == "exchanged" and graph == "F":
        first.args, second.args = second.args, first.args
    elif change == "exchanged":
        first.kwargs, second.kwargs = second.kwargs, first.kwargs
        first.prepend(second)
    elif change == "doubled":
        with module.graph.inserting_after(first):
            module.graph.node_copy(first)
    else:
        first.replace_all_uses_with(second)
        module.graph.erase_node(first)
        outputs = tuple(o for o in outputs if o.node != first.name)
        named = {n.name: n for n in module.graph.nodes}
        module.graph.output_node().args = (tuple(named[o.node] for o in outputs),)
    changed = {graph: old.replace(module=module, outputs=outputs)}
    training = replace(stage.training, **changed)  # type: ignore[type-var]
    return plan.replace(stages=(replace(stage, training=training), *plan.stages[1:]))


@pytest.mark.parametrize("graph", ["F", "B", "I"])
@pytest.mark.parametrize("change", ["exchanged", "doubled", "missing"])
def test_copies_that_do_not_pair_are_named(graph: str, change: str) -> None:
    case = MODELS["dropout between"]
    plan = hosted(staged(case, seeded(case), 2), 1, 1)
    plan = plan.replace(schedule=scheduled(plan, "zb-h1", 3))
    verify(plan)
    with pytest.raises(PipecError, match=r"\[(slots-have-two-ends|types-follow-ops)\]"):
        verify(damaged(plan, graph, change))


def test_a_depth_that_is_not_the_schedules_is_named() -> None:
    case = MODELS["dropout between"]
    plan = hosted(staged(case, seeded(case), 2), 1, 1)
    plan = plan.replace(schedule=scheduled(plan, "zb-h1", 3))
    first, *others = plan.slots
    with pytest.raises(PlanError, match=r"\[slots-are-scheduled\]"):
        verify(plan.replace(slots=(replace(first, depth=2), *others)))


class Recurrent(nn.Module):
    """Layers that drop between them or not, and a dropout behind."""

    def __init__(self, layers: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.LSTM(8, 8, layers, dropout=dropout, batch_first=True)
        self.last = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.body(x)[0].mean(1))
        return found


RECURRENT = {
    f"{layers} layers, dropout {share}": Case(
        partial(Recurrent, layers, share), F.cross_entropy, floats(4, 5, 8)
    )
    for layers, share in ((2, 0.0), (2, 0.5), (3, 0.5))
}


@pytest.mark.parametrize("name", RECURRENT)
def test_an_op_that_draws_never_or_several_times_is_numbered_once(name: str) -> None:
    case = RECURRENT[name]
    check_gradients(staged(case, seeded(case), 2), case)


def test_numbers_are_those_of_the_model_where_a_draw_stands_in_an_earlier_stage() -> None:
    """Masks of stochastic depth depend on no input."""
    plan = planned("stochastic depth", "gpipe")
    assert plan.partition is not None
    places = [plan.partition.stage_of[n.name] for n in plan.graph.calls if is_random(n)]
    assert places != sorted(places)
    check_gradients(plan, MODELS["stochastic depth"])


def check_gradients(plan: Plan, case: Case) -> None:
    inputs = [batches(case, plan.graph)(k) for k in range(2)]
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    timed = plan.replace(schedule=scheduled(plan, "gpipe", 2))
    found = compare_gradients(timed, plan.graph, inputs, tolerance, seed=3)
    assert [c.name for c in found if not c.ok] == []
