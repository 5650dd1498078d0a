"""Schedules with a flush give what plain gradient accumulation gives."""

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import PipecError
from pipec.frontends.trace import Loss
from pipec.plan.model import Plan
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.action import ActionKind
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged
from tests.sampling import each

SCHEDULES = {
    "gpipe": {},
    "1f1b": {},
    "1f1b-so": {},
    "1f1b-as": {},
    "1f1b-sno": {},
    "fbp-as": {},
    "interleaved": {"chunks": 2},
    "zb-h1": {},
    "zbv": {},
    "dualpipev": {},
}


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


@cache
def plan_of(name: str, stages: int = 4) -> tuple[Case, nn.Module, Plan]:
    case = CASES[name]
    module = seeded(case)
    for part in module.modules():
        for rate in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
    return case, module, staged(case, module, stages)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["mlp", "cnn", "long skip", "many in and out"])
def test_every_bit_equals_accumulation_where_the_order_of_sums_is_the_same(
    name: str, schedule: str
) -> None:
    case, module, plan = plan_of(name)
    order = scheduled(plan, schedule, 4, **SCHEDULES[schedule])
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(3)
    want, weights = accumulated(case, module, momentum, 3, 4)
    assert losses == want
    found = pipeline.state_dict()
    assert found.keys() == weights.keys()
    assert worst(found, weights) == 0


@pytest.mark.parametrize("adjacent", ["stages", "replicas"])
@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 1), ("1f1b", 2), ("interleaved", 4)])
@pytest.mark.parametrize("name", ["mlp", "gpt-2"])
def test_copies_of_a_pipeline_train_as_one(
    name: str, schedule: str, stages: int, adjacent: str
) -> None:
    case, module, plan = plan_of(name, stages)
    order = scheduled(plan, schedule, 4, replicas=2, adjacent=adjacent)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(3)
    want, weights = accumulated(case, module, momentum, 3, 4)
    assert losses == pytest.approx(want, rel=1e-5)
    assert worst(pipeline.state_dict(), weights) < 1e-5
    copies = [[e for e in pipeline.executors if s in e.weights] for s in range(stages)]
    for stage, pair in enumerate(copies):
        one, other = (e.weights[stage].version_at(0).tensors for e in pair)
        assert all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(
    ("name", "schedule"), each(["gpt-2", "bert", "t5"], ["1f1b", "interleaved", "zbv"])
)
def test_copies_of_tied_weights_stay_equal_and_right_over_many_adam_steps(
    name: str, schedule: str
) -> None:
    case, module, plan = plan_of(name)
    order = scheduled(plan, schedule, 2, **SCHEDULES[schedule])
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(adam), schedule=order)
    assert pipeline.program.tied
    few, many = (2, 20) if schedule == "1f1b" else (2, 2)
    losses = pipeline.run(few)
    want, weights = accumulated(case, module, adam, few, 2)
    assert losses == pytest.approx(want, abs=2e-6)
    assert worst(pipeline.state_dict(), weights) < 1e-2  # Adam turns 1e-7 into a step near zero
    pipeline.run(many - few)
    held = {s: w for e in pipeline.executors for s, w in e.weights.items()}
    for weight, stages in pipeline.program.tied.items():
        first, *rest = (held[s].version_at(0).tensors[weight] for s in stages)
        assert all(torch.equal(first, other) for other in rest)


def test_llama_trains_under_a_v_shaped_schedule() -> None:
    case, module, plan = plan_of("llama")
    order = scheduled(plan, "zbv", 4)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(2)
    want, weights = accumulated(case, module, momentum, 2, 4)
    assert losses == pytest.approx(want, abs=1e-6)
    assert worst(pipeline.state_dict(), weights) < 1e-6


@pytest.mark.parametrize("name", ["resnet-50", "vit", "mixtral", "gnmt"])
def test_models_of_every_kind_train_in_stages(name: str) -> None:
    case, module, plan = plan_of(name)
    order = scheduled(plan, "1f1b", 2)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(2)
    want, weights = accumulated(case, module, momentum, 2, 2)
    assert losses == pytest.approx(want, rel=1e-4)
    assert worst(pipeline.state_dict(), weights) < 1e-3


@pytest.mark.parametrize("name", ["cnn", "gpt-2", "llama", "bert"])
def test_what_was_trained_in_stages_goes_back_into_the_module(name: str) -> None:
    case, module, plan = plan_of(name)
    order = scheduled(plan, "1f1b", 2)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    pipeline.run(2)
    again = copy.deepcopy(module)
    again.load_state_dict(pipeline.state_dict())
    args, target = case.batch(4)  # what the next round reads first
    loss = Loss(case.loss, target)
    value = loss(again(*args), list(loss.inputs.values()))
    assert pipeline.run(1)[0] == pytest.approx(float(value.detach()), abs=1e-6)


@pytest.mark.parametrize("name", ["cnn", "gpt-2"])
def test_gradients_are_clipped_by_the_norm_over_all_stages(name: str) -> None:
    case, module, plan = plan_of(name)
    settings = Settings(momentum, clip=0.05)
    order = scheduled(plan, "1f1b", 2)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    losses = pipeline.run(3)
    want, weights = accumulated(case, module, momentum, 3, 2, clip=0.05)
    assert losses == pytest.approx(want, abs=1e-6)
    assert worst(pipeline.state_dict(), weights) < 2e-5


def test_learning_rate_schedules_step_with_the_optimizer() -> None:
    case, module, plan = plan_of("mlp", 3)
    settings = Settings(
        lambda p: torch.optim.SGD(p, lr=0.5),
        lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=1, gamma=0.0),
    )
    order = scheduled(plan, "gpipe", 2)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    pipeline.run(5)
    _, once = accumulated(case, module, lambda p: torch.optim.SGD(p, lr=0.5), 1, 2)
    assert worst(pipeline.state_dict(), once) == 0  # the rate is 0 from the second step on


@pytest.mark.parametrize(
    ("name", "others"), [("dropout", [("1f1b", 4), ("zbv", 4), ("gpipe", 1)]), ("bert", [])]
)
def test_dropout_masks_depend_on_seed_and_microbatch_but_not_on_schedule_or_cut(
    name: str, others: list[tuple[str, int]]
) -> None:
    case, module = CASES[name], seeded(CASES[name])

    def losses(schedule: str, stages: int, seed: int = 3) -> list[float]:
        plan = staged(case, module, stages)
        order, settings = scheduled(plan, schedule, 4), Settings(momentum, seed=seed)
        batch = batches(case, plan.graph)
        return LocalPipeline(plan, batch, settings, schedule=order).run(1)

    want = losses("gpipe", 4)
    for schedule, stages in [("1f1b", 2), *others]:
        assert losses(schedule, stages) == want
    assert losses("1f1b", 2, seed=4) != want


@pytest.mark.parametrize("name", ["cnn", "dropout"])
def test_recompute_changes_no_bit_of_a_run(name: str) -> None:
    case = CASES[name]
    module = seeded(case)
    runs = []
    for policy in ("views", "all"):
        plan = staged(case, module, 3, recompute=policy)
        order = scheduled(plan, "1f1b", 4)
        pipeline = LocalPipeline(
            plan, batches(case, plan.graph), Settings(momentum), schedule=order
        )
        pipeline.run(2)
        runs.append(pipeline.state_dict())
    assert worst(runs[0], runs[1]) == 0


def test_compiled_graphs_can_be_put_in_their_place() -> None:
    case, _, plan = plan_of("mlp", 3)
    seen = []

    def compiled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(type(module).__name__)
        return module

    order = scheduled(plan, "1f1b", 2)
    settings = Settings(momentum, compiled=compiled)
    LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order).run(1)
    assert sorted(seen) == ["B", "B", "B", "F", "F", "F"]


def test_compiled_graphs_draw_the_same_masks() -> None:
    case = CASES["dropout"]
    plan = staged(case, seeded(case), 2)
    order, batch = scheduled(plan, "1f1b", 4), batches(case, plan.graph)
    plain, fast = (
        LocalPipeline(plan, batch, Settings(momentum, compiled=compiled), schedule=order)
        for compiled in (None, lambda g: torch.compile(g, backend="eager", dynamic=False))
    )
    assert fast.run(2) == plain.run(2)


def test_a_smaller_last_microbatch_is_refused_with_a_hint() -> None:
    _, _, plan = plan_of("mlp", 3)
    order = scheduled(plan, "1f1b", 2)
    pipeline = LocalPipeline(
        plan,
        lambda k: {"input": torch.ones(4 - k, 16), "target": torch.zeros(4 - k, dtype=torch.long)},
        Settings(momentum),
        schedule=order,
    )
    with pytest.raises(PipecError, match=r"another type(.|\n)*\[3, 16\](.|\n)*drop or pad"):
        pipeline.run(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[0.0]], r"input input of microbatch 0\n  got:   list\n  want:  a tensor"),
        (torch.ones(4, 16).numpy(), r"got:   ndarray\n  want:  a tensor"),
        (torch.ones(4, 16).double(), r"got:   float64\[4, 16\]\n  want:  float32\[4, 16\]$"),
        (torch.ones(4, 15), r"got:   float32\[4, 15\]\n  want:  float32\[4, 16\]$"),
    ],
    ids=["list", "array", "dtype", "shape"],
)
def test_what_is_no_such_tensor_is_refused(given: Tensor, said: str) -> None:
    _, _, plan = plan_of("mlp", 3)
    order, target = scheduled(plan, "1f1b", 2), torch.zeros(4, dtype=torch.long)
    batch = {"input": given, "target": target}
    with pytest.raises(PipecError, match=said):
        LocalPipeline(plan, lambda _: batch, Settings(momentum), schedule=order).run(1)


class Undefined(nn.Module):
    """The gradient of its first weight is no number; that of the second one is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * torch.sqrt(self.a * 0)) + x * self.b


def test_a_norm_that_is_no_number_leaves_none_as_in_torch() -> None:
    case = Case(Undefined, nn.functional.cross_entropy, floats(4, 3))
    module = seeded(case)
    plan = staged(case, module, 2)
    order, settings = scheduled(plan, "1f1b", 2), Settings(momentum, clip=0.1)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
    pipeline.run(1)
    _, want = accumulated(case, module, momentum, 1, 2, clip=0.1)
    assert all(w.isnan().all() for w in want.values())
    torch.testing.assert_close(pipeline.state_dict(), want, equal_nan=True)


def test_inference_yields_the_models_outputs() -> None:
    from pipec.frontends.trace import trace
    from pipec.graph.ir import Source
    from tests.autodiff.chain import cut
    from tests.runtime.pipelines import staged_graph

    module = seeded(CASES["mlp"]).eval()
    x = [torch.randn(4, 16) for _ in range(3)]
    graph = trace(module, (x[0],), source=Source("memory", "test"))
    plan = staged_graph(graph, cut(graph, 3))
    order = scheduled(plan, "inference", 3)
    name = graph.inputs_of(graph.inputs[-1].kind)[0].name
    result = LocalPipeline(plan, lambda k: {name: x[k]}, schedule=order).round()
    assert len(result.outputs) == 3
    for (k, _), y in result.outputs.items():
        torch.testing.assert_close(y, module(x[k]))


def test_loss_functions_see_targets_that_only_the_last_stage_reads() -> None:
    _, _, plan = plan_of("many in and out")
    readers = [
        {i.name for i in s.training.F.inputs} & {"target0", "target1"}
        for s in plan.stages
        if s.training
    ]
    assert readers[0] == set()
    assert {"target0", "target1"} == set.union(*readers)


class Sum(nn.Module):
    """The backward of a sum yields one tensor for both values; a later stage reads one again."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.a, self.b, self.behind = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x).tanh().sin()
        a, b = self.a(x), self.b(x)
        y: Tensor = self.behind(a + b) * a
        return y


def test_what_one_value_is_given_beside_a_shared_gradient_is_not_the_others() -> None:
    """In a V the sum hands its gradient over on one device: to add to it there changes both."""
    case = Case(Sum, nn.functional.cross_entropy, floats(4, 8))
    module = seeded(case)
    plan = staged(case, module, 4)
    assert plan.partition
    assert [plan.partition.stage_of[n] for n in ("linear_1", "linear_2", "add", "mul")] == [
        1,
        1,
        2,
        3,
    ]
    order = scheduled(plan, "zbv", 4)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    want, weights = accumulated(case, module, momentum, 2, 4)
    assert pipeline.run(2) == want
    assert worst(pipeline.state_dict(), weights) == 0


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_clipped_within_the_steps_of_every_schedule(
    schedule: str, replicas: int
) -> None:
    """As in one process; and while a device is at a step, so that a trace has its time."""
    case, module, plan = plan_of("mlp")
    actions, pipelines = set[bool](), list[LocalPipeline]()

    class Noting(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            del closure
            at = [e.next_action for e in pipelines[0].executors]
            actions.add(any(a is not None and a.kind is ActionKind.STEP for a in at))
            super().step()

    settings = Settings(lambda p: Noting(p, lr=0.05, momentum=0.9), clip=0.05)
    options = SCHEDULES[schedule] | ({"replicas": 2} if replicas > 1 else {})
    order = scheduled(plan, schedule, 8, **options)
    pipelines.append(LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order))
    losses = pipelines[0].run(2)
    want, weights = accumulated(case, module, momentum, 2, 8, clip=0.05)
    assert losses == pytest.approx(want, abs=1e-6)
    assert worst(pipelines[0].state_dict(), weights) < 2e-5
    assert actions == {True}
