"""A plan as plain data, for ``--json`` and for the tables."""

import dataclasses
from contextlib import suppress
from typing import Any

from torch import fx

from pipec.cluster.units import show
from pipec.compiler.endless import Round, drains, round_of
from pipec.cost.flops import FlopCounter
from pipec.errors import PipecError
from pipec.graph.ir import GROWTH, InputKind, OutputKind, nbytes, op_name, origin
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage
from pipec.report.table import Table

Data = dict[str, Any]


def plan_data(plan: Plan, heaviest: int = 10) -> Data:
    """Everything that people ask of a plan; seconds are per microbatch.

    Args:
        plan: The plan, with or without stages.
        heaviest: How many of the nodes that take longest to list.

    Returns:
        JSON data: ``model``, ``target``, ``cluster``, ``nodes``, ``stages``, ``balance``,
        ``cuts``, ``heaviest``, ``tied``, ``guessed``, ``memory``, ``idle_devices``, ``schedule``,
        ``explored``, ``options``; and ``growth``, what a loss that adds up is of one, two and
        three equal rows.
    """
    again = _next_round(plan)
    return {
        "model": plan.graph.source.location,
        "kind": plan.graph.source.kind,
        "target": plan.target,
        "cluster": str(plan.cluster),
        "nodes": len(plan.graph.calls),
        "stages": [stage_data(plan, stage) for stage in plan.stages],
        "balance": balance_data(plan),
        "cuts": [cut_data(plan, k) for k in range(len(plan.stages) - 1)],
        "heaviest": list_heaviest(plan, heaviest),
        "tied": {
            name: {"stages": list(stages), "aliases": list(plan.graph.tied.get(name, ()))}
            for name, stages in plan.find_tied().items()
        },
        "guessed": list_guessed(plan),
        "memory": memory_data(plan, again),
        "idle_devices": list_idle(plan),
        "schedule": _schedule_data(plan, again),
        "explored": [dataclasses.asdict(t) for t in plan.explored],
        "options": dict(plan.options),
        "growth": plan.graph.source.options.get(GROWTH, []),
    }


def stage_data(plan: Plan, stage: Stage) -> Data:
    """One stage: where it runs, what it takes, what goes in and out."""
    low = lower(stage.graph)
    data: Data = {
        "stage": stage.index,
        "graph": stage.key,
        "devices": list(_devices(plan, stage.index)),
        "device": "+".join(plan.cluster.devices[d].kind for d in _devices(plan, stage.index)),
        "nodes": len(low.calls),
        "weights": len([i for i in stage.graph.inputs if i.kind.is_weight]),
        "weight_bytes": stage.graph.weight_bytes,
        "inputs": [i.name for i in stage.graph.inputs_of(InputKind.INPUT)],
        "outputs": [o.name for o in stage.graph.outputs if o.kind is not OutputKind.VALUE],
        "receives": [vars(t) for t in low.receives],
        "sends": [vars(t) for t in low.sends],
        "seconds": plan.partition.seconds[stage.index] if plan.partition else None,
        "saved": saved_data(plan, stage),
    }
    if stage.index < len(plan.timing):
        timing = plan.timing[stage.index]
        data |= {**vars(timing), "notes": list(timing.notes)}
    return data


def balance_data(plan: Plan) -> Data | None:
    """How good the cut is: slowest stage, lower bound, gap, and mean over slowest.

    The mean is that of the stages as the backend emits them, or in training as they were cut.
    ``emitted_seconds`` is the slowest interval of the stages as the backend emits them.
    """
    cut = plan.partition
    if cut is None:
        return None
    intervals = [timing.interval_seconds for timing in plan.timing]
    loads = cut.seconds if plan.trains or not intervals else intervals
    slowest = max(loads)
    return {
        "slowest_seconds": cut.max_load,
        "mean_over_slowest": sum(loads) / len(loads) / slowest
        if slowest
        else 1.0,  # views alone: no stage takes any time
        "step_seconds": cut.step_seconds or None,
        "lower_bound_seconds": cut.lower_bound,
        "gap": cut.gap,
        "proven": cut.proven,
        "answers": cut.answers,
        "method": cut.method,
        "emitted_seconds": max(intervals, default=None),
    }


def cut_data(plan: Plan, after: int) -> Data:
    """The values that cross the border between stages ``after`` and ``after + 1``."""
    crossing = {c.value: c for c in plan.channels if c.src <= after < c.dst}
    return {
        "after": after,
        "nbytes": sum(c.nbytes for c in crossing.values()),
        "values": [
            {
                "value": c.value,
                "dtype": c.dtype,
                "shape": list(c.shape),
                "nbytes": c.nbytes,
                "channels": [d.name for d in plan.channels if d.value == c.value],
            }
            for c in crossing.values()
        ],
    }


def list_heaviest(plan: Plan, count: int) -> list[Data]:
    """The nodes that take longest on the device of their stage, longest first.

    Where all nodes run at once, each on engines of its own, a node has a share alone, no seconds.
    """
    if plan.costs is None or plan.partition is None:
        return []
    times = list_node_times(plan)
    total = sum(seconds for _, seconds in times.values()) or 1.0
    streams = {d.kind for d in plan.cluster.devices if d.streams}
    ranked = sorted(times.items(), key=lambda item: -item[1][1])[:count]
    return [
        {
            "node": n.name,
            "op": op_name(n),
            "origin": str(origin(n)),
            "stage": plan.partition.stage_of[n.name],
            "seconds": None if kind in streams else seconds,
            "share": seconds / total,
            "flops": plan.costs.nodes[n.name].flops,
            "from_table": n.name in plan.costs.tabled.get(kind, ()),
        }
        for n, (kind, seconds) in ranked
    ]


def list_guessed(plan: Plan) -> list[str]:
    """Ops of other packages whose cost is a guess: no formula, no measurement."""
    if plan.costs is None:
        return []
    counter = FlopCounter()
    return sorted(
        {
            op_name(n)
            for n, (kind, _) in list_node_times(plan).items()
            if plan.costs.method.get(kind) != "measured"
            and n.name not in plan.costs.tabled.get(kind, ())
            and counter.is_guess(n, plan.costs.nodes[n.name].flops)
        }
    )


def list_node_times(plan: Plan) -> dict[fx.Node, tuple[str, float]]:
    """The kind of device that runs each call of the model, and its seconds there; for all readers.

    It is the first device of its stage; before the model is cut, the first of the cluster. Without
    costs there is nothing.
    """
    found: dict[fx.Node, tuple[str, float]] = {}
    if plan.costs is None:
        return found
    for n in plan.graph.calls:
        stage = plan.home.get(n.name, 0)
        kind = plan.cluster.devices[(*_devices(plan, stage), stage)[0]].kind
        found[n] = kind, plan.costs.of(kind).get(n.name, 0.0)
    return found


def list_idle(plan: Plan) -> list[int]:
    """Devices of the cluster on which no stage of a plan is placed."""
    if plan.placement is None:
        return []
    place = plan.placement
    used = {d for devices in (*place.forward, *place.backward) for d in devices}
    return [d for d in range(plan.cluster.size) if d not in used]


def memory_data(plan: Plan, again: Round | None = None) -> list[Data]:
    """Per device that holds a stage: bytes needed and bytes there.

    What is needed is the peak of the simulated schedule, if that was played with the values that
    a device holds: in training once stages are differentiated. A run that goes on holds ``again``.
    """
    held: dict[int, int] = {}
    if plan.timeline is not None and (plan.differentiated or not plan.trains):
        held = {k: int(peak) for k, peak in enumerate((again or plan.timeline).peak_bytes)}
    for stage in plan.stages if not held else ():
        timed = stage.index < len(plan.timing)
        need = plan.timing[stage.index].memory_bytes if timed else stage.graph.weight_bytes
        for device in _devices(plan, stage.index):
            held[device] = held.get(device, 0) + need
    there = [(device, need, plan.cluster.devices[device]) for device, need in sorted(held.items())]
    return [
        {"device": k, "kind": d.kind, "needed_bytes": need, "memory_bytes": d.memory_bytes}
        for k, need, d in there
    ]


def _devices(plan: Plan, stage: int) -> tuple[int, ...]:
    return plan.placement.forward[stage] if plan.placement else ()


def _next_round(plan: Plan) -> Round | None:
    """What a run takes that goes on without draining; None if all drain, or it can not."""
    with suppress(PipecError):
        return None if plan.timeline is None or drains(plan.order) else round_of(plan)
    return None


def _schedule_data(plan: Plan, again: Round | None) -> Data | None:
    if plan.schedule is None:
        return None
    s = plan.schedule
    data: Data = {"name": s.name, "microbatches": s.microbatches, "training": s.training}
    if plan.timeline is not None:
        data["seconds"] = plan.timeline.seconds
        if not drains(s):
            data["round_seconds"] = again and again.seconds
    return data


def saved_data(plan: Plan, stage: Stage) -> Data | None:
    """Saved values of one microbatch of a stage, as its graphs have them; None if undivided.

    Returns:
        ``kept_bytes`` that stay on the device, ``slots`` in host memory (name, values, bytes,
        depth), and ``recomputed``: nodes of F that B, too, computes, with the bytes of each.
    """
    training = stage.training
    if training is None:
        return None
    forward = {n.name for n in lower(training.F).calls}
    again = [n for n in lower(training.B).calls if n.name in forward]
    return {
        "kept_bytes": training.saved_bytes,
        "slots": [
            {"name": s.name, "values": list(s.values), "nbytes": s.nbytes, "depth": s.depth}
            for s in plan.slots
            if s.stage == stage.index
        ],
        "recomputed": {n.name: nbytes(n) for n in again},
    }


def make_saved_table(stages: list[Data]) -> Table | None:
    """One row per stage and host slot; None if no stage was differentiated."""
    columns = ("stage", "on the device", "computed again", "in host memory", "depth")
    table = Table("saved for the backward, per microbatch", columns, right=1)
    rows = [(s["stage"], s["saved"]) for s in stages if s["saved"]]
    for number, saved in rows:
        again = saved["recomputed"]
        first = [str(number), show(saved["kept_bytes"], "B"), _count(again, sum(again.values()))]
        for slot in saved["slots"] or [None]:
            hosted = [_count(slot["values"], slot["nbytes"]), str(slot["depth"])] if slot else []
            table.add(*first, *hosted)
            first = ["", "", ""]
    return table if rows else None


def _count(values: Any, nbytes_: float) -> str:
    return f"{show(nbytes_, 'B')} ({len(values)})" if values else ""
