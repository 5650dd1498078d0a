"""Saved values that wait in host memory: same bits, fewer bytes on the device."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn

from pipec.autodiff.rewrite import offload
from pipec.compiler.endless import endless
from pipec.compiler.facts import plan_facts
from pipec.compiler.reside import save_to_host
from pipec.plan.model import HostSlot, Plan, StageTiming
from pipec.runtime.device import Copied
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.state import restore, state_of
from pipec.runtime.tensors import TensorType, buffer_bytes, pack, unpack
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import CATEGORIES
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.lagging import Lagging
from tests.runtime.pipelines import batches, scheduled, staged
from tests.sampling import each

STAGES, MICROBATCHES = 4, 8


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def measured(case: Case, plan: Plan, order: Schedule) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Weights after a round, and the most saved bytes that each device held at once."""
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    peaks = [0] * STAGES
    for e in pipeline.executors:
        e.start()
    while not all(e.finished for e in pipeline.executors):
        for e in pipeline.executors:
            e.advance()
            peaks[e.device] = max(peaks[e.device], e.saved_bytes)
    for e in pipeline.executors:
        e.end()
    return pipeline.state_dict(), peaks


@cache
def cnn(recompute: str = "views") -> tuple[Case, Plan]:
    case = CASES["cnn"]
    return case, staged(case, seeded(case), STAGES, recompute=recompute)


def hosted(plan: Plan, every: int, depth: int) -> Plan:
    """The plan with one in ``every`` saved values of each stage in a host slot."""
    slots, stages = [], []
    for stage in plan.stages:
        assert stage.training is not None
        mine = stage.training.saved[::every]
        names, size = tuple(v.name for v in mine), sum(v.nbytes for v in mine)
        slots.append(HostSlot(f"s{stage.index}.host0", stage.index, names, size, depth))
        stages.append(replace(stage, training=offload(stage.training, {slots[-1].name: names})))
    return plan.replace(stages=tuple(stages), slots=tuple(slots))


def timed(order: Schedule, plan: Plan, copy: float = 0.0, first: float = 1.0) -> Timeline:
    """Every forward takes 1, the first stage's and every copy of a slot as told.

    What B computes again is not saved.
    """
    stages = len(plan.stages)
    facts = plan_facts(plan.replace(timing=(StageTiming(1.0, 1.0, ""),) * stages))
    slots = {k: copy for k, c in enumerate(order.channels) if c.kind is ChannelKind.H}
    forward = [first] + [1.0] * (stages - 1)
    times = Times.of_stages(forward, [2 * f for f in forward])
    times = replace(times, host=slots if copy else {})
    return simulate(order, times, replace(facts.memory(), workspace={}))


def predicted(timeline: Timeline, share: float = 0.5) -> list[list[float]]:
    """Per device the saved bytes at a share of each F and B, by the timeline; in the middle."""
    order, curves, column = (
        timeline.schedule,
        timeline.memory_curves,
        CATEGORIES.index("activations"),
    )
    found: list[list[float]] = [[] for _ in range(order.devices)]
    for k, action in enumerate(order):
        if action.kind.is_compute:
            device = int(order.device[k])
            moment = (1 - share) * timeline.begin[k] + share * timeline.end[k]
            curve = curves[device]
            at = int(np.searchsorted(curve.time, moment, side="right")) - 1
            found[device].append(float(curve.held[at, column]))
    return found


def observed(case: Case, plan: Plan, order: Schedule) -> list[list[float]]:
    """The same as counted while it runs: behind each F, before each B."""
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    found: list[list[float]] = [[] for _ in range(order.devices)]
    for e in pipeline.executors:
        e.start()
    while not all(e.finished for e in pipeline.executors):
        for e in pipeline.executors:
            action, before = e.next_action, e.saved_bytes
            if e.advance() and action is not None and action.kind.is_compute:
                forward = action.kind is ActionKind.F
                found[e.device].append(e.saved_bytes if forward else before)
    return found


SCHEDULES: dict[str, dict[str, object]] = {
    "gpipe": {},
    "1f1b": {},
    "1f1b-so": {},
    "1f1b-as": {},
    "1f1b-sno": {},
    "1f1b{parts=2}": {},
    "interleaved": {"chunks": 2},
    "zb-h1": {},
    "zbv": {},
    "dualpipev": {},
    "pipedream": {},
    "pipedream-2bw": {"update_every": 4},
    "pipemare": {},
}


@pytest.mark.parametrize("recompute", ["views", "all"])
@pytest.mark.parametrize("name", [*SCHEDULES, "fbp-as"])
def test_the_device_holds_at_every_moment_what_the_timeline_says(name: str, recompute: str) -> None:
    case, plan = cnn(recompute)
    order = scheduled(plan, name, MICROBATCHES, **SCHEDULES.get(name, {}))
    assert observed(case, plan, order) == predicted(timed(order, plan))


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_offload_the_device_holds_what_the_timeline_says(name: str) -> None:
    case, whole = cnn()
    for every, depth in ((1, 0), (2, 1), (1, 2)):
        plan = hosted(whole, every, depth)
        order = scheduled(plan, name, MICROBATCHES, **SCHEDULES[name])
        assert observed(case, plan, order) == predicted(timed(order, plan))


def test_through_host_memory_both_sides_hold_what_the_timeline_says() -> None:
    case, whole = cnn()
    plan = save_to_host(whole, scheduled(whole, "pipefb", MICROBATCHES))
    assert plan.slots
    order = scheduled(plan, "pipefb", MICROBATCHES)
    assert observed(case, plan, order) == predicted(timed(order, plan))


@pytest.mark.parametrize(("name", "every"), [("fbp-as", 1), ("fbp-as", 2), ("pipefb", 0)])
def test_where_copies_or_messages_take_time_the_timeline_says_no_less(
    name: str, every: int
) -> None:
    """Here, where all is one process, a copy and a message take none."""
    case, whole = cnn()
    plan = hosted(whole, every, 1) if every else whole
    options = {} if every else {"saved": "direct"}
    order = scheduled(plan, name, MICROBATCHES, **options)
    pairs = zip(observed(case, plan, order), predicted(timed(order, plan)), strict=True)
    assert all(a <= b for mine, told in pairs for a, b in zip(mine, told, strict=True))


def held_while_behind(pipeline: LocalPipeline, device: Lagging) -> list[list[float]]:
    """As `observed`, and what copies to host memory still read."""
    found: list[list[float]] = [[] for _ in pipeline.executors]
    mine: list[list[Copied]] = [[] for _ in pipeline.executors]
    for e in pipeline.executors:
        e.start()
    while not all(e.finished for e in pipeline.executors):
        for e in pipeline.executors:
            action, before, copies = e.next_action, e.saved_bytes, len(device.out)
            if e.advance() and action is not None and action.kind.is_compute:
                held = e.saved_bytes if action.kind is ActionKind.F else before
                leaving = sum(t.nbytes for copy in mine[e.device] for t in copy.read)
                found[e.device].append(held + leaving)
            mine[e.device] += device.out[copies:]
    return found


def ended(pipeline: LocalPipeline) -> dict[str, torch.Tensor]:
    """The weights, once its round is ended."""
    for e in pipeline.executors:
        e.end()
    return pipeline.state_dict()


@cache
def unmoved(name: str) -> dict[str, torch.Tensor]:
    """Weights after a round in which all that is saved stays."""
    case, whole = cnn()
    return measured(case, whole, scheduled(whole, name, MICROBATCHES, **SCHEDULES[name]))[0]


@pytest.mark.parametrize(("name", "copy"), each(SCHEDULES, [0.3, 1.4]))
def test_a_device_that_lags_behind_holds_what_the_timeline_says(
    name: str, copy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, whole = cnn()
    for every, depth in ((1, 0), (2, 1), (1, 2)):
        plan = hosted(whole, every, depth)
        order = scheduled(plan, name, MICROBATCHES, **SCHEDULES[name])
        timeline, device = timed(order, plan, copy), Lagging()
        monkeypatch.setattr("pipec.runtime.runner.device_of", lambda _, device=device: device)
        plan = plan.replace(schedule=order, timeline=timeline)
        pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd))
        assert held_while_behind(pipeline, device) == predicted(timeline, 0.0)
        assert worst(ended(pipeline), unmoved(name)) == 0


@pytest.mark.parametrize("copy", [0.3, 1.4])
def test_what_comes_back_takes_the_place_of_what_leaves(
    copy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first stage that never waits has no room for both; and every bit is the same."""
    case, whole = cnn()
    plan, device = hosted(whole, 1, 2), Lagging()
    order = scheduled(plan, "1f1b", MICROBATCHES)
    timeline = timed(order, plan, copy, first=2.0)
    monkeypatch.setattr("pipec.runtime.runner.device_of", lambda _: device)
    plan = plan.replace(schedule=order, timeline=timeline)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd))
    assert held_while_behind(pipeline, device) == predicted(timeline, 0.0)
    assert device.taken[0] > 0.9 * device.taken[1] > 0  # but for what is still on its way
    assert worst(ended(pipeline), unmoved("1f1b")) == 0


def slow(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With 0.05 the losses of the wider one overflow."""
    return torch.optim.SGD(parameters, lr=1e-7)


def wide(width: int) -> Case:
    """Activations of 32 MB, and what little or much is computed from them."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8)]
    rows = floats((8 << 20) // width, width)
    return Case(
        lambda: nn.Sequential(*blocks, nn.Linear(width, 3)), nn.functional.cross_entropy, rows
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("width", [128, 2048])
def test_on_a_gpu_copies_change_no_bit(width: int, depth: int) -> None:
    """Far slower than what is computed, and about as fast."""
    case, settings = wide(width), Settings(slow if width > 128 else sgd)
    whole = staged(case, seeded(case), 2)
    plan = hosted(whole, 1, depth)
    runs = []
    for of in (whole, plan):
        order = scheduled(of, "1f1b", MICROBATCHES)
        timeline = timed(order, of, 0.9, first=2.0)
        of = of.replace(schedule=order, timeline=timeline)  # noqa: PLW2901
        runs.append(LocalPipeline(of, batches(case, of.graph), settings, device="cuda"))
    assert runs[0].run(3) == runs[1].run(3)
    assert worst(runs[1].state_dict(), runs[0].state_dict()) == 0


def test_offload_changes_no_bit_and_keeps_two_sets_on_the_device() -> None:
    case, plan = cnn()
    one = [s.training.saved_bytes for s in plan.stages if s.training]
    plain = scheduled(plan, "1f1b", MICROBATCHES)
    slots = [Channel(ChannelKind.H, s, s, f"slot{s}", one[s], 1) for s in range(STAGES)]
    offloaded = insert_offload(scheduled(plan, "1f1b", MICROBATCHES), slots)
    want, before = measured(case, plan, plain)
    got, after = measured(case, plan, offloaded)
    assert worst(got, want) == 0
    assert before == [one[s] * (STAGES - s) for s in range(STAGES)]
    assert after == [min(2, STAGES - s) * one[s] for s in range(STAGES)]  # in use, and coming


class Rows(nn.Module):
    """A normalisation over a dimension that is not the last; its kernel gives other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)
        return x + found.relu()


def rows() -> nn.Module:
    return nn.Sequential(*[Rows() for _ in range(4)], nn.Flatten(), nn.Linear(48, 3))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_comes_back_lies_as_it_did_also_from_a_checkpoint(depth: int) -> None:
    case = Case(rows, nn.functional.cross_entropy, floats(5, 6, 8))
    plain = staged(case, seeded(case), 4)
    pipelines = []
    for plan in (plain, *[hosted(plain, 1, depth)] * 2):
        plan = plan.replace(schedule=scheduled(plan, "pipedream", MICROBATCHES))  # noqa: PLW2901
        run = partial(LocalPipeline, plan, batches(case, plan.graph), Settings(sgd))
        pipelines.append(run(schedule=endless(plan)))
    plain_run, first, again = pipelines
    want = [plain_run.round().losses for _ in range(2)]
    assert first.round().losses == want[0]
    waiting = list[object]()
    for executor, other in zip(first.executors, again.executors, strict=True):
        entries = {n: t.clone() for n, t in state_of(executor).items()}
        restore(other, entries)
        waiting += other.moves.state()["host" if depth < 2 else "coming"]
    assert waiting
    assert again.round().losses == first.round().losses == want[1]
    for pipeline in pipelines:
        pipeline.drain()
    states = [p.state_dict() for p in pipelines]
    assert worst(states[1], states[0]) == worst(states[2], states[0]) == 0


def test_deleting_the_copies_of_one_stage_raises_its_peak() -> None:
    case, plan = cnn()
    one = [s.training.saved_bytes for s in plan.stages if s.training]
    slots = [Channel(ChannelKind.H, s, s, f"slot{s}", one[s], 1) for s in (1, 2, 3)]
    order = insert_offload(scheduled(plan, "1f1b", MICROBATCHES), slots)
    _, peaks = measured(case, plan, order)
    assert peaks == [4 * one[0], 2 * one[1], 2 * one[2], one[3]]


def test_packed_tensors_come_back_with_their_bits_and_strides() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = [
        base.transpose(0, 2),
        base[:, 1],
        torch.tensor([True, False]),
        torch.tensor(3),
        torch.ones(1, 3).expand(4, 3),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).to(torch.bfloat16),
    ]
    types = [TensorType.of(t) for t in tensors]
    buffer = pack(tensors, types)
    assert buffer.nbytes == buffer_bytes(types)
    for t, again in zip(tensors, unpack(buffer, types), strict=True):
        assert torch.equal(t, again)
        assert t.stride() == again.stride()
        assert t.dtype == again.dtype
    shared = [again.untyped_storage().data_ptr() for again in unpack(buffer, types)]
    views = [p == buffer.untyped_storage().data_ptr() for p in shared]
    assert views == [True, False, True, True, True, True]  # all but the one with gaps


def test_what_waits_on_the_host_is_not_on_the_device() -> None:
    """All that F saved is let go behind its copy, and counted in the arena."""
    case, plan = cnn()
    plan = hosted(plan, 1, 1)
    order = scheduled(plan, "gpipe", MICROBATCHES)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd), schedule=order)
    host, slots = pipeline.executors[0].compute.host, sum(s.nbytes for s in plan.slots)
    pipeline.round()
    assert host.held == 0
    assert host.peak >= slots * (MICROBATCHES - 2)  # at the turn nearly all microbatches wait
