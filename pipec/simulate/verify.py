"""Whether a schedule is right: complete, in place, in order, without deadlock, true to versions.

1. Every stage does every microbatch once: F, and B or else I and W, on the device of its place.
2. Every message that crosses devices is sent and received once; every host slot is filled and
   emptied once; every update has its reduction and step; every version used elsewhere is sent.
3. In each row an action stands behind everything on its device that it waits for.
4. Over each link, receives stand in the order of the sends.
5. Every action uses the weight version that the rule says; one update's gradients are
   complete and stepped before those of the next are added to the same accumulators.
6. All lanes run to their end at the given channel depths.

A schedule that passes computes what its rule says, whatever the times: each action finds exactly
the inputs and weights that it names (1, 2, 3, 5), and nothing waits for ever (6).
"""

from collections.abc import Iterator

import numpy as np

from pipec.errors import ScheduleError, list_lines
from pipec.schedule.action import ActionKind
from pipec.schedule.assign import count_before, derive_versions
from pipec.schedule.schedule import Int64, Schedule
from pipec.simulate.complete import find_incomplete
from pipec.simulate.deadlock import check_done
from pipec.simulate.engine import Prepared, run


def verify(schedule: Schedule) -> None:
    """Check the six rules above.

    Raises:
        ScheduleError: With every finding of the first rules that fail, or the shortest cycle of
            waits.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> verify(generate("zbv", stages=4, microbatches=3))
    """
    prepared = Prepared.of(schedule)
    check(prepared)
    result = run(prepared, lambda rows: np.ones(len(rows)))
    check_done(prepared, result)


def check(schedule: Schedule | Prepared, *, only_complete: bool = False) -> None:
    """Rules 1 to 5, for schedules that are simulated next: that finds deadlocks itself.

    Args:
        schedule: Compute actions alone, or with all that `lower` adds.
        only_complete: Rules 1 and 2 alone, which `lower` relies on.

    Raises:
        ScheduleError: With every finding of the first rules that fail.
    """
    prepared = Prepared.of(schedule)
    found = list((_find_incomplete if only_complete else findings)(prepared))
    if found:
        name, got = prepared.schedule.name, list_lines(found)
        raise ScheduleError("the schedule is not right", where=name, got=got)


def findings(schedule: Schedule | Prepared) -> Iterator[str]:
    """What breaks rules 1 to 5, in words; the first rules that fail stop the others."""
    prepared = Prepared.of(schedule)
    rules = (_find_incomplete, _find_unordered, _find_unmatched, _find_wrong, _find_mixed)
    for rule in rules:
        found = list(rule(prepared))
        yield from found
        if found:
            return


def _find_incomplete(prepared: Prepared) -> Iterator[str]:
    return find_incomplete(prepared.schedule, prepared.at)


def _find_unordered(prepared: Prepared) -> Iterator[str]:
    schedule, waits = prepared.schedule, prepared.waits
    count = len(schedule)
    device = np.append(schedule.device, [-1, -1])
    for column in waits.columns:
        missing = np.flatnonzero(column == count + 1)
        for index in missing.tolist():
            yield f"{schedule[index]} waits for an action that is not in the schedule"
        here = device[column] == schedule.device
        for index in np.flatnonzero(here & (column > np.arange(count))).tolist():
            yield f"{schedule[index]} stands before {schedule[int(column[index])]}, which it needs"
    for steps, awaited in waits.joint:
        last = np.zeros(schedule.devices, dtype=np.int64)
        np.maximum.at(last, device[awaited], awaited)
        for index in steps[last[device[steps]] > steps].tolist():
            needs = schedule[int(last[device[index]])]
            yield f"{schedule[index]} stands before {needs}, which it needs"
    yield from _early_reductions(prepared)


def _early_reductions(prepared: Prepared) -> Iterator[str]:
    """An overlapped reduction starts with the last backward, and yet is issued behind it."""
    s, at = prepared.schedule, prepared.at
    rows = np.flatnonzero(s.kind == ActionKind.REDUCE_GRAD)
    if not len(rows):
        return
    last = at.last_backward[s.stage[rows], s.replica[rows], s.version[rows]]
    for index in np.flatnonzero(last > rows).tolist():
        yield f"{s[int(rows[index])]} stands before {s[int(last[index])]}, which it reduces"


def _find_unmatched(prepared: Prepared) -> Iterator[str]:
    schedule, queue = prepared.schedule, prepared.queue
    names = {str(lane): n for n, lane in enumerate(queue.names)}
    for number, lane in enumerate(queue.names):
        if not lane.receives:
            continue
        sender = names.get(f"{lane.name[3:]}.out:{lane.device}")
        received = queue.order[queue.start[number] : queue.start[number + 1]]
        if sender is None:
            continue
        sent = queue.order[queue.start[sender] : queue.start[sender + 1]]
        both = min(len(received), len(sent))
        got, put = (_messages(schedule, rows[:both]) for rows in (received, sent))
        wrong = np.flatnonzero((got != put).any(axis=0))
        if len(wrong):
            first, second = (tuple(m[:, wrong[0]].tolist()) for m in (got, put))
            where = f"from device {lane.name[3:]} to {lane.device}"
            yield f"{where}, channel and message {second} is sent but {first} is received"


def _messages(schedule: Schedule, rows: Int64) -> Int64:
    """Channel and message, [2, rows]."""
    kind = schedule.kind[rows]
    weights = (kind == ActionKind.SEND_W) | (kind == ActionKind.RECV_W)
    message = np.where(weights, schedule.version[rows], schedule.microbatch[rows])
    return np.stack([schedule.channel[rows], message]).astype(np.int64)


def _find_wrong(prepared: Prepared) -> Iterator[str]:
    schedule, want = prepared.schedule, derive_versions(prepared.schedule)
    for index in np.flatnonzero(want != schedule.version).tolist():
        action, rule = schedule[index], schedule.rule.name
        used, right = f"{action} uses version {action.version}", f"rule {rule} wants {want[index]}"
        yield f"{used}, {right}"


def _find_mixed(prepared: Prepared) -> Iterator[str]:
    s, at = prepared.schedule, prepared.at
    if "steps" not in s.inserted:
        return
    steps = s.kind == ActionKind.STEP
    backward = (s.kind >= ActionKind.B) & (s.kind <= ActionKind.W)
    rows = np.flatnonzero(steps | backward)
    replicas = at.replicas[s.stage[rows]]
    goes_into = s.rule.update_of(s.microbatch[rows], replicas)
    wanted = np.where(steps[rows], s.version[rows], goes_into)
    made = count_before(s, steps)[rows]
    for index in np.flatnonzero(wanted != made + 1).tolist():
        belongs = f"{s[int(rows[index])]} belongs to update {wanted[index]}"
        yield f"{belongs} but stands behind {made[index]} steps of its stage"
