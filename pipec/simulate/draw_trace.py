"""A timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A device is a process, a lane is a thread, an action is a complete event ("X"); memory by category
is a counter ("C") of the device; a message is a flow from its send to its receive.
"""

from typing import Any

from pipec.schedule.channels import ChannelKind
from pipec.simulate.memory import CATEGORIES
from pipec.simulate.timeline import Timeline

_SENDS = {kind.send for kind in ChannelKind}
_ENDS = _SENDS | {kind.receive for kind in ChannelKind}


def trace(timeline: Timeline, *, microseconds: float = 1e6) -> dict[str, Any]:
    """The trace as JSON data.

    Args:
        timeline: What to write.
        microseconds: Per unit of the timeline's times; 1e6 if these are seconds.
    """
    events: list[dict[str, Any]] = []
    lanes = timeline.lanes
    for number, lane in enumerate(lanes.names):
        where = {"pid": lane.device, "tid": number}
        events.append(_named("process_name", f"device {lane.device}", where))
        events.append(_named("thread_name", lane.name, where))
        for index in lanes.order[lanes.start[number] : lanes.start[number + 1]].tolist():
            events += _action(timeline, index, where, microseconds)
    events += _memory(timeline, microseconds)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(kind: str, name: str, where: dict[str, int]) -> dict[str, Any]:
    return {"name": kind, "ph": "M", **where, "args": {"name": name}}


def _action(
    timeline: Timeline, index: int, where: dict[str, int], microseconds: float
) -> list[dict[str, Any]]:
    action, begin, end = timeline.action(index)
    start = begin * microseconds
    args = {
        "stage": action.stage,
        "microbatch": action.microbatch,
        "replica": action.replica,
        "version": action.version,
        "channel": action.channel,
    }
    event = {"name": str(action), "cat": action.kind.name, "ph": "X", "args": args, **where}
    events = [event | {"ts": start, "dur": (end - begin) * microseconds}]
    if action.kind in _ENDS:
        s = timeline.schedule
        message = f"{s.channel[index]}.{action.microbatch}.{action.replica}.{action.version}"
        flow = {"name": "message", "cat": "message", "id": message, "ts": start, **where}
        events.append(flow | ({"ph": "s"} if action.kind in _SENDS else {"ph": "f", "bp": "e"}))
    return events


def _memory(timeline: Timeline, microseconds: float) -> list[dict[str, Any]]:
    return [
        {
            "name": "memory (bytes)",
            "ph": "C",
            "pid": device,
            "ts": time * microseconds,
            "args": dict(zip(CATEGORIES, held, strict=True)),
        }
        for device, curve in enumerate(timeline.memory_curves)
        if curve.peak
        for time, held in zip(curve.time.tolist(), curve.held.tolist(), strict=True)
    ]
