"""The optimizer's state in host memory between steps: the same bits, less on the device."""

import io
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.reside import rest_state
from pipec.errors import PassError, ScheduleError
from pipec.plan.model import STATE_WAITS, Plan
from pipec.plan.store import load_plan, write_plan
from pipec.report.plan import print_plan
from pipec.runtime.device import Device
from pipec.runtime.executor import Executor, Settings
from pipec.runtime.moves import Moves
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.state import restore, state_of
from pipec.schedule.action import ActionKind
from pipec.schedule.json_form import from_json, to_json
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.steps import insert_state
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from pipec.simulate.verify import verify
from tests.passes.test_memory_passes import CASE
from tests.passes.test_parts import cut_for, timed
from tests.runtime.pipelines import batches
from tests.sampling import pairs
from tests.simulate.test_memory import changes


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, amsgrad=True)


OPTIMIZERS = {
    "adam": adam,
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "rprop": torch.optim.Rprop,
    "no state": partial(torch.optim.SGD, lr=0.05),
}


@cache
def plans(schedule: str = "1f1b", stages: int = 2, beside: int = 0) -> tuple[Plan, Plan]:
    """A plan, and the same with the optimizer's state in host memory."""
    plan = cut_for(schedule, stages)
    rests = plan.replace(options={**plan.options, STATE_WAITS: beside})
    return timed(plan, schedule), timed(rests, schedule)


def pipeline(plan: Plan, optimizer: object = adam, **settings: object) -> LocalPipeline:
    made = Settings(optimizer, **settings)  # type: ignore[arg-type]
    return LocalPipeline(plan, batches(CASE, plan.graph), made)


def state_bytes(executor: Executor) -> int:
    """Bytes of all tensors of a device's optimizers but their counts of steps."""
    optimizers = [w.optimizer for w in executor.weights.values()]
    states = [s for o in optimizers if o is not None for s in o.state.values()]
    return sum(t.nbytes for s in states for t in s.values() if torch.is_tensor(t) and t.dim())


@pytest.mark.parametrize(("name", "clip", "beside"), pairs(OPTIMIZERS, [None, 0.1], [0, 2]))
def test_training_is_bit_equal_and_all_state_waits_in_the_arena(
    name: str, clip: float | None, beside: int
) -> None:
    """Where steps do not copy it, from the first action of the next round on."""
    plain, resting = (pipeline(p, OPTIMIZERS[name], clip=clip) for p in plans(beside=beside))
    assert plain.run(3) == resting.run(3)
    want, got = plain.state_dict(), resting.state_dict()
    assert all(torch.equal(got[n], want[n]) for n in want)
    state = sum(map(state_bytes, plain.executors))
    assert state == sum(map(state_bytes, resting.executors))
    assert (state == 0) == (name == "no state")
    (arena,) = {id(e.compute.host): e.compute.host for e in resting.executors}.values()
    if beside:
        assert arena.held == 0
        for executor in resting.executors:
            executor.start()
            assert executor.advance()
    assert state <= arena.held <= state * 1.1
    assert plain.executors[0].compute.host.held == 0


@pytest.mark.parametrize(
    ("action", "copy"), [("send_state", "to_host"), ("receive_state", "from_host")]
)
def test_copies_beside_compute_start_in_their_actions(
    action: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that finds its state elsewhere would bring it too, but wait for it."""
    under_way, started = list[str](), list[bool]()
    act, start = getattr(Moves, action), getattr(Device, copy)

    def acts(*given: object) -> None:
        under_way.append(action)
        act(*given)
        under_way.pop()

    def starts(*given: object) -> object:
        started.append(bool(under_way))
        return start(*given)

    monkeypatch.setattr(Moves, action, acts)
    monkeypatch.setattr(Device, copy, starts)
    pipeline(plans(beside=2)[1]).run(3)
    assert len(started) >= 4
    assert all(started)


def test_a_checkpoint_holds_the_state_and_it_leaves_again_once_it_is_back() -> None:
    first, again = (pipeline(plans()[1]) for _ in range(2))
    first.run(1)
    kept = [{n: t.clone() for n, t in state_of(e).items()} for e in first.executors]
    losses = first.run(1)
    for executor, entries in zip(again.executors, kept, strict=True):
        restore(executor, entries)
        assert executor.compute.host.held >= state_bytes(executor) > 0
    assert again.run(1) == losses
    want, got = first.state_dict(), again.state_dict()
    assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("interleaved", 4), ("pipedream", 2), ("zb-h1", 2), ("1f1b{replicas=2}", 1), ("pipefb", 1)],
)
def test_copies_beside_compute_change_no_bit_of_any_schedule(schedule: str, stages: int) -> None:
    plain, resting = (pipeline(p) for p in plans(schedule, stages, 2))
    assert plain.run(2) == resting.run(2)
    want, got = plain.state_dict(), resting.state_dict()
    assert all(torch.equal(got[n], want[n]) for n in want)
    assert max(e.compute.host.peak for e in resting.executors) > 0


def test_copies_stand_beside_as_many_actions_as_they_may() -> None:
    """One stage, two microbatches; F 1 s, B 2 s, the step 1 s, a copy 4 s.

    ```text
    beside 1    F0 ... F1 B0 B1 .. STEP      2    F0 F1 .. B0 B1 STEP
                OFFLOAD_O  . FETCH_O              OFFLOAD_O FETCH_O
    ```
    """
    times = Times(Times.uniform(1).compute, step=(1.0,), state=(4.0,))
    memory = Memory(optimizer=[5], state_waits=True)
    found = []
    for beside in (1, 2, 8):
        order = insert_state(lower(generate("gpipe", 1, 2)), beside)
        verify(order)
        timeline = simulate(order, times, memory)
        found.append((timeline.seconds, changes(timeline.memory_curves[0], "optimizer")))
    assert found == [
        (12, {0: 5, 4: 0, 7: 5, 12: 0}),
        (9, {0: 5, 9: 0}),
        (9, {0: 10, 4: 5, 9: 0}),  # it comes back to another place than the one that it leaves
    ]


@pytest.mark.parametrize("kind", [ActionKind.OFFLOAD_O, ActionKind.FETCH_O])
def test_a_copy_that_is_missing_or_doubled_is_named(kind: ActionKind) -> None:
    order = insert_state(lower(generate("1f1b", 2, 4)), 1)
    for keep in (order.kind != kind, np.flatnonzero(order.kind == kind)[:1]):
        rows = np.arange(len(order))
        rows = rows[keep] if keep.dtype == bool else np.sort(np.append(rows, keep))
        ends = np.searchsorted(rows, order.device_ptr)
        columns = {n: c[rows] for n, c in order.columns().items()}
        with pytest.raises(ScheduleError, match=f"0{kind.name} of version 1 .* not 1"):
            verify(order.replace(device_ptr=ends, **columns))


@pytest.mark.parametrize(
    ("schedule", "stages"), [("1f1b", 2), ("interleaved", 4), ("1f1b{replicas=2}", 1)]
)
def test_the_peak_falls_by_the_state_and_steps_take_its_copies(schedule: str, stages: int) -> None:
    """By all of it: where it is on the device, activations are not."""
    plain, resting = (p.timeline for p in plans(schedule, stages))
    assert plain is not None
    assert resting is not None
    share = 2 if "replicas" in schedule else 1
    bytes_of = plain.memory.of("optimizer", stages) / share
    held = [sum(bytes_of[s] for s in mine) for mine in plain.schedule.list_stages()]
    fell = [a - b for a, b in zip(plain.peak_bytes, resting.peak_bytes, strict=True)]
    assert fell == pytest.approx(held, rel=0.1)
    rate = plans(schedule, stages)[0].cluster.devices[0].host_bandwidth
    more = [b - a for a, b in zip(plain.times.step, resting.times.step, strict=True)]
    assert more == pytest.approx([2 * n / rate for n in bytes_of], rel=0.1)


def test_copies_hide_where_no_device_then_holds_more() -> None:
    """Here forwards and backwards take longer than the copies; the last stage has no more room."""
    plain, by_step = plans()
    told = "insert-offload{optimizer=true microbatches=4},"
    found = timed(cut_for("1f1b", 2), "1f1b", told)
    roomy = "insert-offload{optimizer=true microbatches=4 memory-limit=1e9},"
    free = timed(cut_for("1f1b", 2), "1f1b", roomy)
    seconds, peaks = [], []
    for plan in (plain, free, found, by_step):
        assert plan.timeline is not None
        seconds.append(plan.timeline.seconds)
        peaks.append(np.array(plan.timeline.peak_bytes))
    assert seconds == sorted(seconds)
    assert seconds[0] <= seconds[1] < seconds[3]
    assert (peaks[2] <= peaks[3]).all()
    assert (peaks[3] < peaks[0]).all()
    assert (peaks[1] > peaks[3]).any()


def test_a_limit_is_met_by_the_state_alone() -> None:
    plan = cut_for("1f1b", 2)
    whole, light = plans()
    assert whole.timeline is not None
    assert light.timeline is not None
    limit = max(light.timeline.peak_bytes)
    assert limit < max(whole.timeline.peak_bytes)
    told = f"insert-offload{{memory-limit={limit} optimizer=true microbatches=4}},"
    found = timed(plan, "1f1b", told)
    assert found.slots == ()
    assert found.timeline is not None
    assert max(found.timeline.peak_bytes) <= limit


def test_tables_and_saved_plans_say_that_it_rests(tmp_path: Path) -> None:
    for plan, rests in zip(plans(), (False, True), strict=True):
        folder = tmp_path / str(rests)
        folder.mkdir()
        write_plan(plan, folder)
        loaded = load_plan(folder, check_weights=False)
        assert loaded.state_waits == rests
        assert loaded.timeline is not None
        assert plan.timeline is not None
        assert loaded.timeline.peak_bytes == plan.timeline.peak_bytes
        out = io.StringIO()
        print_plan(loaded, Console(file=out, width=120))
        assert ("optimizer's state waits in host memory" in out.getvalue()) == rests


def test_copies_are_in_a_saved_schedule() -> None:
    order = insert_state(lower(generate("pipedream", 2, 4)), 3)
    again = from_json(to_json(order))
    assert again.rows() == order.rows()
    assert again.state_beside == 3


def test_boards_keep_it() -> None:
    plan = cut_for("1f1b", 2).replace(cluster=parse_cluster("2xvcu118"))
    with pytest.raises(PassError, match="cannot wait in host memory"):
        rest_state(plan)
