"""Saved values that wait in host memory: same bits, fewer bytes on the device."""

import numpy as np
import pytest
import torch
from torch import nn

from pipec.compiler.timeline import plan_memory
from pipec.plan.model import Plan
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.tensors import TensorType, pack, packed_bytes, unpack
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.memory import CATEGORIES, Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import batches, scheduled, staged

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


def predicted(order: Schedule, plan: Plan, moved: dict[int, int]) -> list[list[float]]:
    """Per device the saved bytes in the middle of each F and B, by the timeline.

    Args:
        order: The schedule.
        plan: Whose saved values.
        moved: Stage to those of its bytes that wait in host memory.
    """
    whole, stages = plan_memory(plan), range(len(plan.stages))
    assert whole.saved_for_w is not None
    memory = Memory(
        saved=[whole.saved[s] - moved.get(s, 0) for s in stages],
        saved_for_w=[0.0 if moved else whole.saved_for_w[s] for s in stages],
    )
    timeline = simulate(order, Times.uniform(len(stages)), memory)
    curves, column = timeline.memory_curves, CATEGORIES.index("activations")
    found: list[list[float]] = [[] for _ in range(order.devices)]
    for k, action in enumerate(order):
        if action.kind.is_compute:
            device = int(order.device[k])
            middle = (timeline.begin[k] + timeline.end[k]) / 2
            curve = curves[device]
            at = int(np.searchsorted(curve.time, middle, side="right")) - 1
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


@pytest.mark.parametrize("recompute", ["views", "all"])
@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "interleaved", "pipedream", "zb-h1", "zbv", "dualpipev"]
)
def test_the_device_holds_at_every_moment_what_the_timeline_says(name: str, recompute: str) -> None:
    case = CASES["cnn"]
    plan = staged(case, seeded(case), STAGES, recompute=recompute)
    options = {"chunks": 2} if name == "interleaved" else {}
    order = scheduled(plan, name, MICROBATCHES, **options)
    assert observed(case, plan, order) == predicted(order, plan, {})


def test_with_offload_the_device_holds_what_the_timeline_says() -> None:
    case = CASES["cnn"]
    plan = staged(case, seeded(case), STAGES)
    one = {s.index: s.training.saved_bytes for s in plan.stages if s.training}
    slots = [Channel(ChannelKind.H, s, s, f"slot{s}", n, 1) for s, n in one.items()]
    order = insert_offload(scheduled(plan, "1f1b", MICROBATCHES), slots)
    assert observed(case, plan, order) == predicted(order, plan, one)


def test_offload_changes_no_bit_and_keeps_two_sets_on_the_device() -> None:
    case = CASES["cnn"]
    plan = staged(case, seeded(case), STAGES)
    one = [s.training.saved_bytes for s in plan.stages if s.training]
    plain = scheduled(plan, "1f1b", MICROBATCHES)
    slots = [Channel(ChannelKind.H, s, s, f"slot{s}", one[s], 1) for s in range(STAGES)]
    offloaded = insert_offload(scheduled(plan, "1f1b", MICROBATCHES), slots)
    want, before = measured(case, plan, plain)
    got, after = measured(case, plan, offloaded)
    assert worst(got, want) == 0
    assert before == [one[s] * (STAGES - s) for s in range(STAGES)]
    assert after == [min(2, STAGES - s) * one[s] for s in range(STAGES)]  # in use, and coming


def test_deleting_the_copies_of_one_stage_raises_its_peak() -> None:
    case = CASES["cnn"]
    plan = staged(case, seeded(case), STAGES)
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
    assert buffer.nbytes == packed_bytes(types)
    for t, again in zip(tensors, unpack(buffer, types), strict=True):
        assert torch.equal(t, again)
        assert t.stride() == again.stride()
        assert t.dtype == again.dtype
