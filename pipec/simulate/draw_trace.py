"""A timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A device is a process, a lane is a thread, an action is a complete event ("X"); memory by category
is a counter ("C") of the device; a message is a flow from its send to its receive.
"""

from collections.abc import Mapping
from typing import Any

from pipec.schedule.action import Action
from pipec.schedule.channels import KIND_OF, ChannelKind
from pipec.schedule.lanes import Lanes
from pipec.simulate.memory import CATEGORIES
from pipec.simulate.timeline import Timeline

Event = dict[str, Any]
_SENDS = {kind.send for kind in ChannelKind}


def trace(timeline: Timeline, *, microseconds: float = 1e6) -> dict[str, Any]:
    """The trace as JSON data.

    Args:
        timeline: What to write.
        microseconds: Per unit of the timeline's times; 1e6 if these are seconds.
    """
    lanes = timeline.lanes
    events = lane_names(lanes)
    for number, lane in enumerate(lanes.names):
        where = {"pid": lane.device, "tid": number}
        for index in lanes.order[lanes.start[number] : lanes.start[number + 1]].tolist():
            events += _action(timeline, index, where, microseconds)
    events += _memory(timeline, microseconds)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def lane_names(lanes: Lanes) -> list[Event]:
    """What the devices and lanes of a schedule are called."""
    return [
        {"name": kind, "ph": "M", "pid": lane.device, "tid": number, "args": {"name": name}}
        for number, lane in enumerate(lanes.names)
        for kind, name in (("process_name", f"device {lane.device}"), ("thread_name", lane.name))
    ]


def complete(action: Action, where: Mapping[str, int], start: float, duration: float) -> Event:
    """One action, in microseconds."""
    args = {k: v for k, v in action._asdict().items() if k != "kind"}
    event = {"name": str(action), "cat": action.kind.name, "ph": "X", "args": args, **where}
    return event | {"ts": start, "dur": duration}


def _action(
    timeline: Timeline, index: int, where: Mapping[str, int], microseconds: float
) -> list[Event]:
    action, begin, end = timeline.action(index)
    start = begin * microseconds
    events = [complete(action, where, start, (end - begin) * microseconds)]
    if action.kind in KIND_OF:
        s = timeline.schedule
        message = f"{s.channel[index]}.{action.microbatch}.{action.replica}.{action.version}"
        flow = {"name": "message", "cat": "message", "id": message, "ts": start, **where}
        events.append(flow | ({"ph": "s"} if action.kind in _SENDS else {"ph": "f", "bp": "e"}))
    return events


def _memory(timeline: Timeline, microseconds: float) -> list[Event]:
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
