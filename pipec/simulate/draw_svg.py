"""A timeline as an SVG picture: lanes from top to bottom, time from left to right.

Below the lanes stand the time axis, and a line with what was drawn and what each colour means.
"""

from math import ceil
from xml.sax.saxutils import escape

import numpy as np

from pipec.schedule.action import ActionKind
from pipec.simulate.draw_text import round_times, shortest
from pipec.simulate.timeline import Timeline

COLORS = {
    ActionKind.F: "#9ecae1",
    ActionKind.B: "#a1d99b",
    ActionKind.I: "#d0e8a0",
    ActionKind.W: "#fdd0a2",
    ActionKind.OFFLOAD: "#dadaeb",
    ActionKind.FETCH: "#bcbddc",
    ActionKind.REDUCE_GRAD: "#fc9272",
    ActionKind.STEP: "#636363",
}
COLORS |= {ActionKind.OFFLOAD_O: "#dadaeb", ActionKind.FETCH_O: "#bcbddc"}
OTHER = "#d9d9d9"
NAMES = {
    ActionKind.F: "forward",
    ActionKind.B: "backward",
    ActionKind.I: "gradients of inputs",
    ActionKind.W: "gradients of weights",
    ActionKind.OFFLOAD: "to the host",
    ActionKind.FETCH: "from the host",
    ActionKind.REDUCE_GRAD: "all-reduce",
    ActionKind.STEP: "step",
}
NAMES |= {ActionKind.OFFLOAD_O: "to the host", ActionKind.FETCH_O: "from the host"}
MESSAGE = "message"
"""The name of what has the colour `OTHER`: sends and receives."""
ROW, MARGIN, NAME = 18, 8, 96
"""Pixels: height of a lane, margin of the picture, width of the lanes' names."""
CHARACTER = 6.2
"""Pixels that one character of a label takes."""
WIDTH, WIDEST = 960, 3840
"""Pixels of the time axis, and the most that it grows to for labels."""
TICKS = 12
"""Most ticks of the time axis."""


def svg(timeline: Timeline, *, compute_only: bool = False) -> str:
    """Draw every lane (or the compute lanes); an action without duration is left out."""
    width = _wide_enough(timeline)
    lanes = timeline.lanes
    used = [n for n in range(len(lanes.names)) if _is_shown(timeline, n, compute_only)]
    used.sort(key=lambda n: (lanes.names[n].device, not _compute(timeline, n), lanes.names[n]))
    scale = width / timeline.seconds if timeline.seconds else 1.0
    bottom = MARGIN + len(used) * ROW
    height, total = bottom + 2 * ROW + MARGIN, NAME + width + 3 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
        f'viewBox="0 0 {total} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{total}" height="{height}" fill="white"/>',
        *_axis(timeline.seconds, bottom, scale),
    ]
    drawn: set[ActionKind] = set()
    for row, number in enumerate(used):
        top = MARGIN + row * ROW
        name = escape(str(lanes.names[number]))
        parts.append(f'<text x="{MARGIN}" y="{top + 12}">{name}</text>')
        rows = lanes.order[lanes.start[number] : lanes.start[number + 1]]
        rows = rows[timeline.end[rows] > timeline.begin[rows]]
        drawn |= set(map(ActionKind, np.unique(timeline.schedule.kind[rows]).tolist()))
        parts += [_box(timeline, index, top, scale) for index in rows.tolist()]
    summary = f"{timeline.schedule.name}: {timeline.seconds:.6g}, bubble {timeline.bubble:.1%}"
    parts += [*_legend(summary, drawn, bottom + ROW), "</svg>"]
    return "\n".join(parts) + "\n"


def _wide_enough(timeline: Timeline) -> int:
    """So wide that the shortest compute action shows the longest label, within bounds."""
    characters, seconds = shortest(timeline)
    needed = ceil(characters * CHARACTER * timeline.seconds / seconds)
    return min(max(WIDTH, needed), WIDEST)


def _axis(seconds: float, bottom: int, scale: float) -> list[str]:
    """Lines behind the lanes at round times, and what time it is there."""
    parts = []
    for time in round_times(seconds, TICKS):
        x = MARGIN + NAME + time * scale
        parts.append(
            f'<path d="M{x:.2f} {MARGIN}V{bottom + 3}" stroke="#e5e5e5"/>'
            f'<text x="{x:.2f}" y="{bottom + 13}" text-anchor="middle" fill="#666">'
            f"{time:.6g}</text>"
        )
    return parts


def _legend(summary: str, drawn: set[ActionKind], top: int) -> list[str]:
    """The summary, then a patch of each colour with its name."""
    parts = [f'<text x="{MARGIN + NAME}" y="{top + 12}">{escape(summary)}</text>']
    named = {NAMES.get(kind, MESSAGE): COLORS.get(kind, OTHER) for kind in sorted(drawn)}
    x = MARGIN + NAME + (len(summary) + 4) * CHARACTER
    for name, color in named.items():
        parts.append(
            f'<rect x="{x:.2f}" y="{top + 4}" width="10" height="10" fill="{color}"/>'
            f'<text x="{x + 14:.2f}" y="{top + 12}">{name}</text>'
        )
        x += 14 + (len(name) + 3) * CHARACTER
    return parts


def _compute(timeline: Timeline, lane: int) -> bool:
    return timeline.lanes.names[lane].name.startswith("compute")


def _is_shown(timeline: Timeline, lane: int, compute_only: bool) -> bool:
    if _compute(timeline, lane) or compute_only:
        return _compute(timeline, lane)
    rows = timeline.lanes.order[timeline.lanes.start[lane] : timeline.lanes.start[lane + 1]]
    return bool((timeline.end[rows] > timeline.begin[rows]).any())


def _box(timeline: Timeline, index: int, top: int, scale: float) -> str:
    action, begin, end = timeline.action(index)
    left, wide = MARGIN + NAME + begin * scale, (end - begin) * scale
    color = COLORS.get(action.kind, OTHER)
    several = timeline.schedule.chunks > 1
    stage = f"{action.stage}" if several or not action.kind.is_compute else ""
    label = f"{stage}{action.plain.removeprefix(str(action.stage))}"
    text = ""
    if len(label) * CHARACTER <= wide:
        text = (
            f'<text x="{left + wide / 2:.2f}" y="{top + 12}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    title = escape(f"{action}: {begin:.6g} to {end:.6g}")
    return (
        f'<rect x="{left:.2f}" y="{top + 1}" width="{wide:.2f}" height="{ROW - 2}" '
        f'fill="{color}" stroke="white"><title>{title}</title></rect>{text}'
    )
