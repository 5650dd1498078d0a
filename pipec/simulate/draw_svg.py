"""A timeline as an SVG picture: lanes from top to bottom, time from left to right."""

from xml.sax.saxutils import escape

from pipec.schedule.action import ActionKind
from pipec.simulate.timeline import Timeline

COLORS = {
    ActionKind.F: "#9ecae1",
    ActionKind.B: "#a1d99b",
    ActionKind.I: "#a1d99b",
    ActionKind.W: "#fdd0a2",
    ActionKind.OFFLOAD: "#dadaeb",
    ActionKind.FETCH: "#bcbddc",
    ActionKind.REDUCE_GRAD: "#fc9272",
    ActionKind.STEP: "#636363",
}
OTHER = "#d9d9d9"
"""Sends and receives."""
ROW, MARGIN, NAME = 18, 8, 96
"""Pixels: height of a lane, margin of the picture, width of the lanes' names."""
CHARACTER = 6.2
"""Pixels that one character of a label takes."""


def svg(timeline: Timeline, *, width: int = 960, compute_only: bool = False) -> str:
    """Draw every lane (or the compute lanes); an action without duration is left out.

    Args:
        timeline: What to draw.
        width: Of the time axis, in pixels.
        compute_only: Whether to leave out links, host copies and reductions.
    """
    lanes = timeline.lanes
    used = [n for n in range(len(lanes.names)) if _shown(timeline, n, compute_only)]
    used.sort(key=lambda n: (lanes.names[n].device, not _compute(timeline, n), lanes.names[n]))
    scale = width / timeline.seconds if timeline.seconds else 1.0
    height = len(used) * ROW + 2 * MARGIN + ROW
    total = NAME + width + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
        f'viewBox="0 0 {total} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{total}" height="{height}" fill="white"/>',
    ]
    for row, number in enumerate(used):
        top = MARGIN + row * ROW
        name = escape(str(lanes.names[number]))
        parts.append(f'<text x="{MARGIN}" y="{top + 12}">{name}</text>')
        rows = lanes.order[lanes.start[number] : lanes.start[number + 1]].tolist()
        parts += [_box(timeline, index, top, scale) for index in rows]
    bottom = MARGIN + len(used) * ROW + 12
    summary = f"{timeline.schedule.name}: {timeline.seconds:.6g}, bubble {timeline.bubble:.1%}"
    parts += [f'<text x="{NAME + MARGIN}" y="{bottom}">{escape(summary)}</text>', "</svg>"]
    return "\n".join(p for p in parts if p) + "\n"


def _compute(timeline: Timeline, lane: int) -> bool:
    return timeline.lanes.names[lane].name.startswith("compute")


def _shown(timeline: Timeline, lane: int, compute_only: bool) -> bool:
    if _compute(timeline, lane) or compute_only:
        return _compute(timeline, lane)
    rows = timeline.lanes.order[timeline.lanes.start[lane] : timeline.lanes.start[lane + 1]]
    return bool((timeline.end[rows] > timeline.begin[rows]).any())


def _box(timeline: Timeline, index: int, top: int, scale: float) -> str:
    action, begin, end = timeline.action(index)
    if end <= begin:
        return ""
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
