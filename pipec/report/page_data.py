"""What the report page shows of a plan, as small JSON data: tables of columns, numbers as bytes.

A column of numbers is base64 of a little-endian array (``{"i32": "..."}``), which a browser reads
in no time; texts that repeat are numbers into a list.
"""

import base64

import numpy as np
import numpy.typing as npt
from torch import fx

from pipec.graph.ir import InputKind, op_name, origin, tensors
from pipec.graph.tensor_type import types_text
from pipec.plan.model import Plan
from pipec.report.plan_data import Data, list_node_times, plan_data
from pipec.schedule.action import ActionKind
from pipec.simulate.memory import CATEGORIES, Curve
from pipec.simulate.timeline import Timeline

MOST_ACTIONS = 150_000
"""Most actions that the page draws, those that begin first; it says how many there are."""
MOST_POINTS = 1_500
"""Most moments of one device's memory; of those between two, the largest is kept."""
_TYPES = {"u8": "<u1", "i16": "<i2", "i32": "<i4", "f32": "<f4", "f64": "<f8"}


def pack_column(values: npt.ArrayLike, kind: str) -> dict[str, str]:
    """A column of numbers as base64; ``kind`` is one of u8, i16, i32, f32, f64.

    Example:
        >>> pack_column([1, 2], "u8")
        {'u8': 'AQI='}
    """
    return {kind: base64.b64encode(np.asarray(values).astype(_TYPES[kind]).tobytes()).decode()}


class _TextTable:
    """Texts that repeat, each once."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.of.setdefault(text, len(self.of))


def page_data(plan: Plan) -> Data:
    """Everything that the page shows of one plan."""
    whole = plan_data(plan, 0)
    for cut in whole["cuts"]:
        for value in cut["values"]:
            del value["channels"]
    stages = [{k: v for k, v in s.items() if k not in _LEFT_OUT} for s in whole.pop("stages")]
    if plan.timing:
        for stage, timing in zip(stages, plan.timing, strict=True):
            stage["compute_seconds"] = timing.compute_seconds
    return {
        **whole,
        "stages": stages,
        "weights": sum(t.numel() for t in plan.graph.weights.values()),
        "nodes": nodes_data(plan),
        "timeline": timeline_data(plan.timeline) if plan.timeline else None,
    }


_LEFT_OUT = ("receives", "sends", "saved")


def nodes_data(plan: Plan) -> Data:
    """The calls of the model in order: names, ops, origins, types, stage, cost, who reads whom."""
    calls = plan.graph.calls
    number = {n.name: k for k, n in enumerate(calls)}
    ops, paths, layers, types = _TextTable(), _TextTable(), _TextTable(), _TextTable()
    edges = [[number[v.name] for v in n.all_input_nodes if v.name in number] for n in calls]
    origins, times = [origin(n) for n in calls], list_node_times(plan)
    columns = {
        "op": pack_column([ops(op_name(n)) for n in calls], "i16"),
        "path": pack_column([paths(o.name) for o in origins], "i32"),
        "layer": pack_column([layers(o.op) for o in origins], "i16"),
        "type": pack_column(
            [types(types_text(tensors(n)[:4]).replace(";", " ")) for n in calls], "i32"
        ),
        "stage": pack_column([plan.home.get(n.name, -1) for n in calls], "i16"),
        "seconds": pack_column([times[n][1] if n in times else 0.0 for n in calls], "f32"),
        "flops": pack_column(
            [plan.costs.nodes[n.name].flops for n in calls] if plan.costs else [], "f32"
        ),
        "bytes": pack_column(
            [plan.costs.nodes[n.name].output_bytes if plan.costs else 0.0 for n in calls], "f32"
        ),
        "parameters": pack_column(_parameters(plan, calls), "f32"),
        "first": pack_column(np.cumsum([0, *map(len, edges)]), "i32"),
        "reads": pack_column([e for row in edges for e in row], "i32"),
    }
    lists = {"ops": list(ops.of), "paths": list(paths.of), "layers": list(layers.of)}
    lists |= {"names": [n.name for n in calls], "types": list(types.of)}
    return {"streams": any(d.streams for d in plan.cluster.devices), **lists, **columns}


def _parameters(plan: Plan, calls: list[fx.Node]) -> list[float]:
    """Bytes of weights, counted with the first node that reads each."""
    kinds = {i.node: i.kind for i in plan.graph.inputs}
    seen: set[str] = set()
    found = []
    for n in calls:
        new = {v for v in n.all_input_nodes if kinds.get(v.name) is InputKind.PARAMETER}
        new = {v for v in new if v.name not in seen}
        seen |= {v.name for v in new}
        found.append(float(sum(t.numel() * t.element_size() for v in new for t in tensors(v))))
    return found


def timeline_data(timeline: Timeline) -> Data:
    """The actions that take time, lane by lane, the critical path, and memory over time."""
    s = timeline.schedule
    takes = np.flatnonzero(timeline.end > timeline.begin)
    every = len(takes)
    if every > MOST_ACTIONS:
        takes = np.sort(takes[np.argsort(timeline.begin[takes], kind="stable")[:MOST_ACTIONS]])
    place = np.full(len(s), -1, dtype=np.int64)
    place[takes] = np.arange(len(takes))
    critical = place[timeline.critical_path] if len(s) else place
    return {
        "schedule": s.name,
        "microbatches": s.microbatches,
        "training": s.training,
        "devices": s.devices,
        "seconds": timeline.seconds,
        "bubble": timeline.bubble,
        "busy": timeline.busy.tolist(),
        "versions": list(timeline.weight_versions),
        "in_flight": list(timeline.peak_in_flight),
        "peaks": list(timeline.peak_bytes),
        "actions": every,
        "compute": int((s.kind[takes] <= ActionKind.W).sum()),
        "kinds": [kind.name for kind in ActionKind],
        "categories": list(CATEGORIES),
        "lanes": [[lane.device, lane.name] for lane in timeline.lanes.names],
        "lane": pack_column(timeline.lanes.of[takes], "i16"),
        "kind": pack_column(s.kind[takes], "u8"),
        "stage": pack_column(s.stage[takes], "i16"),
        "microbatch": pack_column(s.microbatch[takes], "i32"),
        "version": pack_column(s.version[takes], "i32"),
        "begin": pack_column(timeline.begin[takes], "f64"),  # the page shows what an action takes
        "end": pack_column(timeline.end[takes], "f64"),
        "critical": pack_column(critical[critical >= 0], "i32"),
        "memory": [_curve_data(curve) for curve in timeline.memory_curves],
    }


def _curve_data(curve: Curve) -> Data:
    """Moments and bytes by category; of many moments, the one with the most bytes of each group."""
    total = curve.held.sum(axis=1)
    keep = np.arange(len(total))
    if len(keep) > MOST_POINTS:
        groups = np.array_split(keep, MOST_POINTS)
        keep = np.array([g[total[g].argmax()] for g in groups])
    return {
        "time": pack_column(curve.time[keep], "f32"),
        "held": pack_column(curve.held[keep].ravel(), "f32"),
    }
