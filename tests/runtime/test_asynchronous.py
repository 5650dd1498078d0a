"""Schedules without a flush give what their equations say, weight version by weight version."""

import itertools
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.compiler.complete import complete
from pipec.compiler.driver import emit
from pipec.errors import PipecError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.graph.written import extract
from pipec.plan.model import Plan
from pipec.runtime.executor import Settings
from pipec.runtime.rules import Correction, DelayRule, delays
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged, staged_graph

Version = Callable[[int, int], int]
LR, STAGES, MICROBATCHES = 0.05, 4, 12


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR)


def emulated(
    case: Case, module: nn.Module, plan: Plan, order: Schedule, version: Version
) -> dict[str, Tensor]:
    """Autograd with, per stage, exactly the weights of ``version(stage, microbatch)``."""
    stage_of = {n: s.index for s in plan.stages if s.training for n in s.training.trained}
    replicas = [len(d) for d in order.placement.backward]
    start = {n: w.detach().clone() for n, w in module.state_dict().items()}
    history: dict[int, list[dict[str, Tensor]]] = {s.index: [start] for s in plan.stages}
    sums: dict[tuple[int, int], dict[str, Tensor]] = {}
    for k in range(order.microbatches):
        params = {
            n: history[s][version(s, k)][n].clone().requires_grad_() for n, s in stage_of.items()
        }
        args, target = case.batch(k)
        out = torch.func.functional_call(module, params, args)
        loss = case.loss(out, *Loss(case.loss, target).inputs.values())
        grads = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
        for s, versions in history.items():
            u = order.rule.update_of(k, replicas[s])
            total = sums.setdefault((s, u), {})
            for n in [n for n in grads if stage_of[n] == s]:
                total[n] = total[n] + grads[n] if n in total else grads[n]
            size = order.rule.update_every * replicas[s]
            if (k + 1) % size == 0 or k + 1 == order.microbatches:
                count = size if (k + 1) % size == 0 else (k + 1) % size
                newest = versions[-1]
                versions.append(
                    {**newest, **{n: newest[n] - LR * g / count for n, g in total.items()}}
                )
    return {n: history[s][-1][n] for n, s in stage_of.items()}


def ran(case: Case, plan: Plan, order: Schedule, settings: Settings | None = None) -> LocalPipeline:
    pipeline = LocalPipeline(
        plan, batches(case, plan.graph), settings or Settings(sgd), schedule=order
    )
    pipeline.run(1)
    return pipeline


def mlp(stages: int = STAGES) -> tuple[Case, nn.Module, Plan]:
    case = CASES["long skip"]
    module = seeded(case)
    return case, module, staged(case, module, stages)


def test_pipedream_is_the_stashing_equation() -> None:
    case, module, plan = mlp()
    order = scheduled(plan, "pipedream", MICROBATCHES)
    want = emulated(case, module, plan, order, lambda s, k: max(0, k - (STAGES - 1 - s)))
    assert worst(ran(case, plan, order).state_dict(), want) < 1e-6


def test_vertical_sync_is_the_delay_of_the_first_stage_everywhere() -> None:
    case, module, plan = mlp()
    order = scheduled(plan, "pipedream", MICROBATCHES, sync="vertical")
    want = emulated(case, module, plan, order, lambda s, k: max(0, k - (STAGES - 1)))
    assert worst(ran(case, plan, order).state_dict(), want) < 1e-6


def test_two_buffered_weights_delay_by_one_update() -> None:
    case, module, plan = mlp()
    order = scheduled(plan, "pipedream-2bw", MICROBATCHES, update_every=4)
    want = emulated(case, module, plan, order, lambda s, k: max(k // 4 - 1, 0))
    pipeline = ran(case, plan, order)
    assert worst(pipeline.state_dict(), want) < 1e-6


@pytest.mark.parametrize("saved", ["host", "direct"])
def test_pipefb_on_eight_devices_is_the_same_equation_with_its_own_versions(saved: str) -> None:
    case, module, plan = mlp()
    order = scheduled(plan, "pipefb", MICROBATCHES, saved=saved)
    assert order.devices == 2 * STAGES
    used = {(a.stage, a.microbatch): a.version for a in order if a.kind.name == "F"}
    want = emulated(case, module, plan, order, lambda s, k: used[s, k])
    pipeline = ran(case, plan, order)
    late = pipeline.executors[STAGES:]
    newest = {n: w for e in late for s in e.weights for n, w in e.read_state(s).items()}
    assert worst(newest, want) < 1e-6


def test_pipefb_forwards_and_backwards_of_a_microbatch_use_one_version() -> None:
    case, _, plan = mlp()
    order = scheduled(plan, "pipefb", MICROBATCHES)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    used: dict[tuple[int, int | None], set[int]] = {}
    for action, version in pipeline.round().versions:
        if action.kind.name in "FB":
            used.setdefault((action.stage, action.microbatch), set()).add(version)
    assert all(len(v) == 1 for v in used.values())
    assert {v for found in used.values() for v in found} != {0}


def test_pipefb_with_other_cuts_for_the_backward_is_refused_before_it_runs() -> None:
    case, _, plan = mlp()
    order = generate("pipefb", STAGES, MICROBATCHES, backward_stages=2)
    with pytest.raises(PipecError, match=r"cut differently(.|\n)*4 forward and 2 backward"):
        complete(order, plan)
    with pytest.raises(PipecError, match=r"cut differently(.|\n)*leave out backward_stages"):
        LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)


def test_replicas_take_turns_and_average_their_gradients() -> None:
    case, module, plan = mlp(2)
    order = scheduled(plan, "pipedream", MICROBATCHES, replicas=[3, 1])
    used = {(a.stage, a.microbatch): a.version for a in order if a.kind.name == "B"}
    want = emulated(case, module, plan, order, lambda s, k: used[s, k])
    pipeline = ran(case, plan, order)
    assert worst(pipeline.state_dict(), want) < 1e-6
    held = [e.weights[0].version_at(0).tensors for e in pipeline.executors[:3]]
    assert all(torch.equal(held[0][n], other[n]) for other in held[1:] for n in other)


def test_stashed_weights_are_as_many_as_the_rule_says_and_freed() -> None:
    case, _, plan = mlp()
    order = scheduled(plan, "pipedream", MICROBATCHES)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    most = dict.fromkeys(range(STAGES), 0)
    for e in pipeline.executors:
        e.start()
    while not all(e.finished for e in pipeline.executors):
        for e in pipeline.executors:
            e.advance()
            for s, w in e.weights.items():
                most[s] = max(most[s], len(w.versions))
    assert [most[s] for s in range(STAGES)] == [STAGES - s for s in range(STAGES)]


class Tanh(nn.Module):
    """Stage after stage ``h = tanh(x W' + b)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(STAGES))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def one_layer_per_stage(case: Case, module: nn.Module) -> Plan:
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    names = [n.name for n in graph.calls]
    bounds = [0, *(k + 1 for k, n in enumerate(graph.calls) if "tanh" in str(n.target))]
    bounds[-1] = len(names)
    parts = [extract(graph, set(names[a:b]), "S") for a, b in itertools.pairwise(bounds)]
    return staged_graph(graph, parts)


def half_square(y: Tensor, target: Tensor) -> Tensor:
    return (y * y).sum() / 2 + 0 * target.sum()


def by_hand(
    module: Tanh, case: Case, order: Schedule, correction: Correction
) -> list[list[Tensor]]:
    """PipeMare's update written out: forward weights are old, backward weights are corrected."""
    used = {(a.stage, a.microbatch, a.kind.name): a.version for a in order}
    history = [[[p.detach().clone() for p in layer.parameters()]] for layer in module.layers]
    speed = [[torch.zeros_like(p) for p in h[0]] for h in history]
    seen = dict[tuple[int, int], tuple[Tensor, Tensor]]()
    rows = sorted(
        ((a.microbatch or 0) for a in order if a.kind.name == "B" and a.stage == 0),
    )
    tau = [delays(order, s) for s in range(STAGES)]
    for k in rows:
        (h,), _ = case.batch(k)
        for s in range(STAGES):
            w, b = history[s][used[s, k, "F"]]
            x, h = h, torch.tanh(h @ w.T + b)
            seen[s, k] = x, h
        g = h
        for s in reversed(range(STAGES)):
            x, y = seen[s, k]
            newest, between = history[s][used[s, k, "B"]], tau[s][0] - tau[s][1]
            w = newest[0]
            if correction.t2_decay and between and len(history[s]) > 1:
                w = w - between * speed_at[s][used[s, k, "B"]][0]
            z = g * (1 - y * y)
            grads, g = [z.T @ x, z.sum(0)], z @ w
            rate = LR
            if correction.t1_steps:
                p = 1 - min((len(history[s]) - 1) / correction.t1_steps, 1)
                rate = LR / max(tau[s][0], 1) ** p
            history[s].append([v - rate * d for v, d in zip(history[s][-1], grads, strict=True)])
            if correction.t2_decay and between:
                gamma = correction.t2_decay ** (1 / between)
                moved = zip(speed[s], history[s][-1], history[s][-2], strict=True)
                speed[s] = [gamma * d + (1 - gamma) * (a - o) for d, a, o in moved]
            speed_at.setdefault(s, [[torch.zeros(())] * 2]).append(speed[s])
    return [h[-1] for h in history]


speed_at: dict[int, list[list[Tensor]]] = {}


@pytest.mark.parametrize("slots", ["alternating", "concurrent"])
@pytest.mark.parametrize(
    "correction",
    [Correction(), Correction(t1_steps=8), Correction(t2_decay=math.exp(-2)), Correction(8, 0.2)],
    ids=["naive", "T1", "T2", "T1+T2"],
)
def test_pipemare_is_its_delay_model(slots: str, correction: Correction) -> None:
    case = Case(Tanh, half_square, floats(3, 6))
    module = seeded(case)
    plan = one_layer_per_stage(case, module)
    order = scheduled(plan, "pipemare", MICROBATCHES, slots=slots)
    speed_at.clear()
    assert isinstance(module, Tanh)
    want = by_hand(module, case, order, correction)
    found = ran(case, plan, order, Settings(sgd, correction=correction)).state_dict()
    for s, (w, b) in enumerate(want):
        torch.testing.assert_close(found[f"layers.{s}.weight"], w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[f"layers.{s}.bias"], b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("steps", "decay"), [(-1, 0.0), (0, 1.0), (0, -0.1), (0, math.nan)])
def test_corrections_that_would_diverge_are_refused(steps: int, decay: float) -> None:
    with pytest.raises(PipecError, match=r"T1|T2"):
        Correction(steps, decay)


def test_delays_are_those_of_the_paper() -> None:
    _, _, plan = mlp()
    both = scheduled(plan, "pipemare", 40, slots="concurrent")
    assert [delays(both, s)[0] for s in range(STAGES)] == pytest.approx([7, 5, 3, 1], abs=1)
    turns = scheduled(plan, "pipemare", 40)
    assert [delays(turns, s) for s in range(STAGES)] == [(3, 0), (2, 0), (1, 0), (0, 0)]


def test_without_delay_every_rule_is_plain_sgd_bit_for_bit() -> None:
    case, module, plan = mlp(1)
    _, want = accumulated(case, module, sgd, 6, 1)
    for name in ("pipemare", "pipedream"):
        order = scheduled(plan, name, 6)
        settings = Settings(sgd, correction=Correction(t1_steps=3, t2_decay=0.1))
        assert worst(ran(case, plan, order, settings).state_dict(), want) == 0


def test_an_unstashed_run_differs_from_a_stashed_one() -> None:
    case, _, plan = mlp()
    stashed = ran(case, plan, scheduled(plan, "pipedream", MICROBATCHES)).state_dict()
    naive = ran(case, plan, scheduled(plan, "pipemare", MICROBATCHES)).state_dict()
    trained = {n: w for n, w in stashed.items() if not n.startswith("unused")}
    assert worst(naive, trained) > 1e-4


def test_a_synchronous_warm_up_is_another_schedule_for_the_first_rounds() -> None:
    case, _, plan = mlp()
    pipeline = LocalPipeline(
        plan, batches(case, plan.graph), Settings(sgd, correction=Correction(4, 0.1)),
        schedule=scheduled(plan, "gpipe", 4),
    )  # fmt: skip
    first = pipeline.run(2)
    (rule,) = pipeline.executors[0].rules.values()
    assert rule.updates == 0  # T1 begins where delays do
    pipeline.load(scheduled(plan, "pipemare", 8))
    second = pipeline.run(1)
    assert (len(first), len(second)) == (8, 8)
    assert all(math.isfinite(x) for x in second)
    assert rule.updates == 0
    assert pipeline.executors[0].rules[0].updates == 8


def test_weights_shared_between_stages_are_refused_without_a_flush(tmp_path: Path) -> None:
    case = CASES["gpt-2"]
    plan = staged(case, seeded(case), 2)
    told = r"shared by several stages(.|\n)*wte(.|\n)*1f1b"
    with pytest.raises(PipecError, match=told):
        scheduled(plan, "pipedream", 4)
    order = generate("pipedream", 2, 4)
    with pytest.raises(PipecError, match=told):
        LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    with pytest.raises(PipecError, match=told):
        emit(plan.replace(schedule=order), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_backward_weights_go_back_by_the_delay_between() -> None:
    """PipeMare's T2 by hand: a forward 3 updates late, a backward 1: 2 updates of the velocity."""
    rule = DelayRule(Correction(t2_decay=0.25), 3.0, 1.0, counts=True)
    weights = [{"w": torch.tensor([x])} for x in (1.0, 2.0, 4.0)]
    for old, new in pairwise(weights):
        rule.observe(old, new)
    velocity = 0.5 * (0.5 * 1.0) + 0.5 * 2.0  # decays by 0.25 ** (1 / 2) an update
    assert rule.backward_weights(weights[-1])["w"].item() == 4.0 - 2 * velocity
