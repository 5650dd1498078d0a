"""Breaking a valid schedule is caught, or shown to be harmless by a second interpreter."""

from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipec.errors import ScheduleError
from pipec.schedule.registry import generate
from pipec.schedule.schedule import COLUMNS, Schedule
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times
from pipec.simulate.verify import verify
from tests.sampling import ALL, examples
from tests.simulate.cases import IDS, VARIANTS, full
from tests.simulate.interpreter import Machine

MICROBATCHES = 12


def rearranged(schedule: Schedule, order: list[int], lost: int | None = None) -> Schedule:
    """The actions in another order; one row may have lost one."""
    columns = {name: getattr(schedule, name)[order] for name in COLUMNS}
    pointer = schedule.device_ptr.copy()
    if lost is not None:
        pointer[schedule.device[lost] + 1 :] -= 1
    return schedule.replace(device_ptr=pointer, **columns)


def is_right(schedule: Schedule) -> bool:
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_generated_schedules_are_right_and_run(name: str, options: dict[str, object]) -> None:
    verify(generate(name, 4, MICROBATCHES, **options))
    schedule = full(name, 4, MICROBATCHES, options)
    verify(schedule)
    assert Machine(schedule).run() is not None


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_every_dropped_action_is_caught(name: str, options: dict[str, object]) -> None:
    """Each compute action, send, receive, copy, reduction and step, one at a time."""
    schedule = full(name, 4, MICROBATCHES if ALL else MICROBATCHES // 2, options)
    for lost in range(len(schedule)):
        order = [i for i in range(len(schedule)) if i != lost]
        assert not is_right(rearranged(schedule, order, lost)), str(schedule[lost])


def caught(schedule: Schedule, want: object, first: int, second: int) -> bool:
    """Whether the verifier refuses a schedule in which two actions changed places.

    If it does not, the interpreter, which shares no rule with it, must compute the same values,
    gradients and weights as before (``want``): that is the proof of harmlessness.
    """
    order = list(range(len(schedule)))
    order[first], order[second] = second, first
    swapped = rearranged(schedule, order)
    if not is_right(swapped):
        return True
    assert Machine(swapped).run() == want, f"{schedule[first]} and {schedule[second]}"
    return False


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_all_neighbours_that_change_places_are_caught_or_harmless(
    name: str, options: dict[str, object]
) -> None:
    schedule = full(name, 4, MICROBATCHES // 2, options)
    want = Machine(schedule).run()
    neighbours = np.flatnonzero(np.diff(schedule.device) == 0).tolist()
    found = [caught(schedule, want, i, i + 1) for i in neighbours]
    assert any(found)


@cache
def computed(name: str, options: str, depth: int | None) -> object:
    """What the interpreter makes of a schedule."""
    known = {repr(o): o for n, o in VARIANTS if n == name}
    return Machine(full(name, 4, MICROBATCHES, known[options], depth)).run()


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@examples(30, 12)
@given(data=st.data())
def test_swapped_actions_are_caught_or_harmless(
    name: str, options: dict[str, object], data: st.DataObject
) -> None:
    """Any two actions change places: near each other, in one row, or on two devices."""
    depth = data.draw(st.sampled_from([None, 1, 2]), "depth")
    schedule = full(name, 4, MICROBATCHES, options, depth)
    first = data.draw(st.integers(0, len(schedule) - 1))
    device = int(schedule.device[first])
    begin, end = (int(p) for p in schedule.device_ptr[device : device + 2])
    ranges = {
        "near": (max(begin, first - 3), min(end, first + 4)),
        "row": (begin, end),
        "all": (0, len(schedule)),
    }
    low, high = ranges[data.draw(st.sampled_from(sorted(ranges)))]
    second = data.draw(st.integers(low, high - 1))
    refused = caught(schedule, computed(name, repr(options), depth), first, second)
    assert refused or schedule.device[second] == device


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(VARIANTS),
    column=st.sampled_from(COLUMNS),
    change=st.sampled_from([-1, 1, 2]),
    where=st.floats(0, 1, exclude_max=True),
)
@example(case=("pipefb", {"saved": "direct"}), column="channel", change=1, where=0.5)
def test_a_changed_field_is_caught(
    case: tuple[str, dict[str, object]], column: str, change: int, where: float
) -> None:
    """No single number of a schedule can be altered unnoticed, and none raises anything else."""
    schedule = full(case[0], 4, MICROBATCHES, case[1])
    values = getattr(schedule, column).copy()
    index = int(where * len(schedule))
    new = int(values[index]) + change
    if column == "kind" and not 0 <= new <= 15:
        return
    if column in ("stage", "replica", "version") and new < 0:
        return
    if column in ("microbatch", "channel") and (values[index] < 0 or new < 0):
        return
    values[index] = new
    if column == "replica" and schedule.kind[index] in (4, 5, 6, 7, 8, 9, 12, 13):
        return  # the replica of a transfer follows from its microbatch; the field is for people
    if column == "version" and 4 <= schedule.kind[index] <= 9:
        return  # transfers of values carry no version
    if column == "version" and schedule.kind[index] in (12, 13):
        return
    assert not is_right(schedule.replace(**{column: values})), str(schedule[index])


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("microbatches", [1, MICROBATCHES - 1])
def test_a_schedule_of_more_microbatches_than_it_says_raises_nothing_else(
    name: str, options: dict[str, object], microbatches: int
) -> None:
    """Also where its messages share slots, and when nobody has verified it."""
    schedule = full(name, 4, MICROBATCHES, options)
    narrow = tuple(replace(c, depth=1) for c in schedule.channels)
    short = schedule.replace(microbatches=microbatches, channels=narrow)
    assert not is_right(short)
    with suppress(ScheduleError):  # the verifier's to find; simulated it may deadlock or end
        simulate(short, Times.uniform(short.stages))


def test_findings_are_told_in_words() -> None:
    schedule = generate("1f1b", 2, 2)
    rows = schedule.version.copy()
    rows[0] = 3
    with pytest.raises(ScheduleError, match="0F0@3 uses version 3, rule flush wants 0"):
        verify(schedule.replace(version=rows))
    with pytest.raises(ScheduleError, match="stage 1 does F of microbatch 0 0 times, not once"):
        verify(rearranged(schedule, [0, 1, 2, 3, 5, 6, 7], lost=4))
    swapped = np.arange(len(schedule))
    swapped[[4, 5]] = [5, 4]
    with pytest.raises(ScheduleError, match="1B0 stands before 1F0, which it needs"):
        verify(rearranged(schedule, swapped.tolist()))


@pytest.mark.parametrize(
    ("wrong", "more"), [(20, ""), (21, "\n    (+1 more)"), (64, "\n    (+44 more)")]
)
def test_of_many_findings_the_first_are_named_and_the_others_counted(wrong: int, more: str) -> None:
    schedule = generate("1f1b", 4, 8)
    rows = schedule.version.copy()
    rows[:wrong] = 3
    with pytest.raises(ScheduleError) as caught:
        verify(schedule.replace(version=rows))
    assert str(caught.value).count("uses version 3") == 20
    assert str(caught.value).endswith("rule flush wants 0" + more)


def test_a_microbatch_on_another_replica_is_caught() -> None:
    """Even where all that it does is there, in order: messages go by the number."""
    schedule = generate("1f1b{replicas=2}", 2, 4)
    exchanged = np.where(schedule.microbatch < 2, 1 - schedule.microbatch, schedule.microbatch)
    with pytest.raises(ScheduleError, match="0F1 stands on device 0, where it does not belong"):
        verify(schedule.replace(microbatch=exchanged.astype(np.int32)))
