"""A timeline as text: one line per device, one cell per action, to scale.

```text
device 0 │F0 F1       B0===    B1===
device 1 │   F0 B0=== F1 B1===
    time │0              5
```

Several stages on one device show as ``2F0``; weight versions stand in the table only.
"""

from math import floor, log10

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.simulate.timeline import Timeline

MOST_COLUMNS = 400
"""A grid that would be wider is drawn to this width, with labels cut."""
TICK = 12
"""Fewest characters between two times on the axis."""


def grid(timeline: Timeline, columns: int = MOST_COLUMNS, width: int = 2 * MOST_COLUMNS) -> str:
    """The compute lanes of all devices.

    Args:
        timeline: What to draw.
        columns: Most characters of the time axis.
        width: Characters of a line; an axis that needs more continues in a band below.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> from pipec.simulate.simulate import simulate
        >>> from pipec.simulate.times import Times
        >>> print(grid(simulate(generate("1f1b", 2, 2), Times.uniform(2, F=1, B=2))))
        device 0 │F0 F1       B0===    B1===
        device 1 │   F0 B0=== F1 B1===
            time │0              5
    """
    lanes = timeline.lanes
    shown = [n for n, lane in enumerate(lanes.names) if lane.name.startswith("compute")]
    scale = _scale(timeline, columns)
    lines = []
    for number in sorted(shown, key=lambda n: lanes.names[n]):
        lane = lanes.names[number]
        rows = lanes.order[lanes.start[number] : lanes.start[number + 1]]
        name = f"device {lane.device}{lane.name.removeprefix('compute')}"
        lines.append((name, _line(timeline, rows, scale)))
    margin = max((len(name) for name, _ in lines), default=4)
    lines.append(("time".rjust(margin), _axis(timeline.seconds, scale)))
    room = max(width - margin - 2, TICK)
    longest = max(len(line) for _, line in lines)
    bands = [
        [f"{name:<{margin}} │{line[first : first + room]}".rstrip() for name, line in lines]
        for first in range(0, longest or 1, room)
    ]
    return "\n\n".join("\n".join(band) for band in bands)


def _axis(seconds: float, scale: float) -> str:
    """Round times, each beginning where it is, as far as they fit below the lanes."""
    line, width = "", round(seconds * scale)
    for time in round_times(seconds, most=max(width // TICK, 1)):
        text = f"{time:.6g}"
        if round(time * scale) + len(text) <= width:
            line = line.ljust(round(time * scale)) + text
    return line


def round_times(seconds: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 on, at most ``most`` beyond 0.

    Example:
        >>> round_times(33, most=8)
        [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    """
    if not seconds:
        return [0.0]
    size = 10.0 ** floor(log10(seconds / most))
    step = next(size * n for n in (1, 2, 5, 10) if seconds <= most * size * n)
    return [n * step for n in range(int(seconds / step) + 1)]


def _label(timeline: Timeline, index: int) -> str:
    s = timeline.schedule
    stage = str(s.stage[index]) if s.chunks > 1 else ""
    return f"{stage}{ActionKind(int(s.kind[index])).name}{s.microbatch[index]}"


def shortest(timeline: Timeline) -> tuple[int, float]:
    """Characters of the longest label of a compute action, and the shortest time of one."""
    s = timeline.schedule
    took = (timeline.end - timeline.begin)[s.kind <= ActionKind.W]
    stage = len(str(s.stages - 1)) if s.chunks > 1 else 0
    return stage + 1 + len(str(s.microbatches - 1)), float(took[took > 0].min(initial=np.inf))


def _scale(timeline: Timeline, columns: int) -> float:
    """Characters per second: the shortest action shows the longest label and a blank."""
    s = timeline.schedule
    label, seconds = shortest(timeline)
    if seconds == np.inf:
        return 1.0
    longest = label + 1
    compute = np.flatnonzero(s.kind <= ActionKind.W)
    compute = compute[timeline.end[compute] > timeline.begin[compute]]
    begin, end = timeline.begin[compute], timeline.end[compute]
    scale = longest / seconds
    if (np.round(end * scale) - np.round(begin * scale)).min() < longest:
        scale *= (longest + 1) / longest  # starts between two characters
    return min(scale, columns / timeline.seconds)


def _line(timeline: Timeline, rows: np.ndarray, scale: float) -> str:
    line: list[str] = []
    for index in rows.tolist():
        if timeline.schedule.kind[index] > ActionKind.W:
            continue
        begin, end = (round(float(t[index]) * scale) for t in (timeline.begin, timeline.end))
        room = end - begin - 1  # a blank between neighbours
        line += " " * (begin - len(line))
        line += _label(timeline, index)[: max(room, 0)].ljust(max(room, 0), "=")
    return "".join(line)


def table(timeline: Timeline) -> str:
    """Per device: stages, use of the compute lane, peak in flight, weight versions.

    Example:
        >>> from pipec.schedule.registry import generate
        >>> from pipec.simulate.simulate import simulate
        >>> from pipec.simulate.times import Times
        >>> print(table(simulate(generate("1f1b", 2, 2), Times.uniform(2, F=1, B=2))))
        device  stages  busy  peak in flight  weight versions
             0       0   67%               2                1
             1       1   67%               1                1
    """
    s = timeline.schedule
    held = s.list_stages()
    whole = timeline.seconds or 1.0
    rows = [("device", "stages", "busy", "peak in flight", "weight versions")]
    for d in range(s.devices):
        stages = ",".join(map(str, held[d]))
        busy, peak = f"{timeline.busy[d] / whole:.0%}", f"{timeline.peak_in_flight[d]:g}"
        rows.append((str(d), stages, busy, peak, str(timeline.weight_versions[d])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
