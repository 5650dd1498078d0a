"""Why a schedule is stuck: the shortest cycle of waits, or the action that is missing.

```text
0SEND_F1 (device 0) meets 1RECV_F1, which stands behind 1SEND_B0 (device 1);
1SEND_B0 (device 1) meets 0RECV_B0, which stands behind 0SEND_F1 (device 0)
```
"""

import numpy as np

from pipec.errors import ScheduleError
from pipec.schedule.dependencies import Dependencies
from pipec.schedule.lanes import Lanes
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared, Run

STUCK = "the schedule deadlocks"
MEETS, SLOT = " meets ", " has no slot until "
HINTS = {
    MEETS: "give the channels a depth above 0, or pair opposite sends and receives",
    SLOT: "give the channels more slots",
}
"""What helps where these words stand; a wrong order of compute needs another order."""


def check_done(prepared: Prepared, result: Run) -> None:
    """Refuse a run that came to no end.

    Raises:
        ScheduleError: With the first cause of the deadlock.
    """
    if not result.heads:
        return
    schedule, waits, queue = prepared.schedule, prepared.waits, prepared.queue
    blocked = _waits_of_heads(schedule, waits, queue, result)
    missing = [a for a, others in blocked.items() if len(schedule) + 1 in others]
    if missing:
        first = min(missing)
        raise ScheduleError(
            STUCK,
            where=f"device {schedule.device[first]}",
            got=f"{schedule[first]} waits for an action that is not in the schedule",
            want="every value that is used is computed or received",
            hint="compare with the schedule before the last edit",
        )
    cycle = shortest_cycle(blocked)
    after = [*cycle[1:], *cycle[:1]]
    steps = [_step(schedule, queue, a, b) for a, b in zip(cycle, after, strict=True)]
    text = "; ".join(steps)
    raise ScheduleError(
        STUCK,
        where=f"{schedule.name}, {len(cycle)} actions that wait for each other in a circle",
        got=text,
        want="an order in which every lane can go on",
        hint=next((hint for word, hint in HINTS.items() if word in text), "change the order"),
    )


def _step(schedule: Schedule, queue: Lanes, action: int, awaited: int) -> str:
    """Why one action of the circle waits for the next."""
    this, that = (f"{schedule[a]} (device {schedule.device[a]})" for a in (action, awaited))
    if queue.of[action] == queue.of[awaited]:
        return f"{this} stands behind {that} on lane {queue.names[queue.of[action]].name}"
    channel, microbatch = schedule.channel[action], schedule.microbatch[action]
    depth = schedule.channels[channel].depth if channel >= 0 else None
    if depth and microbatch != schedule.microbatch[awaited]:
        return f"{this}{SLOT}{that}"
    if depth == 0:
        peers = (schedule.channel == channel) & (schedule.microbatch == microbatch)
        for peer in np.flatnonzero(peers & (schedule.device != schedule.device[action])).tolist():
            if queue.of[peer] == queue.of[awaited] and peer != awaited:
                return f"{this}{MEETS}{schedule[peer]}, which stands behind {that}"
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
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph([(a, b) for a, others in waits.items() for b in others])
    parts = map(graph.subgraph, nx.strongly_connected_components(graph))
    in_circles = set[int]().union(*(part for part in parts if part.edges))
    best: list[int] = []
    reach = 1
    while not best and reach <= len(in_circles):  # most are short: far searches are for few
        reach *= 2
        for start in filter(in_circles.__contains__, waits):
            most = len(best) or reach + 1
            came = dict(nx.bfs_predecessors(graph, start, depth_limit=most - 2))
            last = next((a for a in (start, *came) if graph.has_edge(a, start)), None)
            if last is not None:
                best = [last]
                while best[0] != start:
                    best.insert(0, came[best[0]])
    return best
