"""Why a schedule is stuck: the shortest cycle of waits, or the action that is missing.

```text
0SEND_F1 (device 0) meets 1RECV_F1, which stands behind 1SEND_B0 (device 1);
1SEND_B0 (device 1) meets 0RECV_B0, which stands behind 0SEND_F1 (device 0)
```
"""

from collections import deque
from typing import TypedDict

import numpy as np

from pipec.schedule.dependencies import Dependencies
from pipec.schedule.lanes import Lanes
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared, Run


class Facts(TypedDict):
    """The parts of the error's text."""

    where: str
    got: str
    want: str
    hint: str


def explain(prepared: Prepared, stuck: Run) -> Facts:
    """The first cause of a deadlock, as the facts of an error."""
    schedule, waits, queue = prepared.schedule, prepared.waits, prepared.queue
    blocked = _waits_of_heads(schedule, waits, queue, stuck)
    missing = [a for a, others in blocked.items() if len(schedule) + 1 in others]
    if missing:
        first = min(missing)
        return Facts(
            where=f"device {schedule.device[first]}",
            got=f"{schedule[first]} waits for an action that is not in the schedule",
            want="every value that is used is computed or received",
            hint="compare with the schedule before the last edit",
        )
    cycle = shortest_cycle(blocked)
    after = [*cycle[1:], *cycle[:1]]
    steps = [_step(schedule, queue, a, b) for a, b in zip(cycle, after, strict=True)]
    return Facts(
        where=f"{schedule.name}, {len(cycle)} actions that wait for each other in a circle",
        got="; ".join(steps),
        want="an order in which every lane can go on",
        hint="give the channels a depth above 0, or pair opposite sends and receives",
    )


def _step(schedule: Schedule, queue: Lanes, action: int, awaited: int) -> str:
    """Why one action of the circle waits for the next."""
    this, that = (f"{schedule[a]} (device {schedule.device[a]})" for a in (action, awaited))
    if queue.of[action] == queue.of[awaited]:
        return f"{this} stands behind {that} on lane {queue.names[queue.of[action]].name}"
    mine = (schedule.channel == schedule.channel[action]) & (schedule.channel >= 0)
    mine &= (schedule.microbatch == schedule.microbatch[action]) & (
        schedule.device != schedule.device[action]
    )
    for peer in np.flatnonzero(mine).tolist():
        if queue.of[peer] == queue.of[awaited] and peer != awaited:
            return f"{this} meets {schedule[peer]}, which stands behind {that}"
    return f"{this} waits for {that}"


def _waits_of_heads(
    schedule: Schedule, waits: Dependencies, queue: Lanes, stuck: Run
) -> dict[int, list[int]]:
    """Every stuck action that matters, and the unfinished ones that it waits for.

    The head of a lane waits for what `dependencies` says; any other action of the lane waits
    for the one before it.
    """
    unfinished = float("inf")
    before: dict[int, int] = {}
    for lane in {int(queue.of[a]) for a in stuck.heads}:
        row = queue.order[queue.start[lane] : queue.start[lane + 1]].tolist()
        before.update(zip(row[1:], row[:-1], strict=True))
    found: dict[int, list[int]] = {}
    todo = list(stuck.heads)
    while todo:
        action = todo.pop()
        if action in found or action >= len(schedule):
            continue
        others = [a for a in waits.of(action) if stuck.end[a] == unfinished]
        previous = before.get(action)
        if previous is not None and stuck.end[previous] == unfinished:
            others.append(previous)
        found[action] = others
        todo += others
    return found


def shortest_cycle(waits: dict[int, list[int]]) -> list[int]:
    """The fewest actions that wait for each other in a circle, found breadth first.

    Example:
        >>> shortest_cycle({1: [2], 2: [3], 3: [1, 4], 4: [3]})
        [3, 4]
    """
    best: list[int] = []
    for start in waits:
        came: dict[int, int] = {}
        queue = deque([start])
        while queue and start not in came:
            action = queue.popleft()
            for other in waits.get(action, []):
                if other not in came:
                    came[other] = action
                    queue.append(other)
        if start not in came:
            continue
        path = [start]
        while came[path[-1]] != start:
            path.append(came[path[-1]])
        if not best or len(path) < len(best):
            best = [path[0], *reversed(path[1:])]
    return best
