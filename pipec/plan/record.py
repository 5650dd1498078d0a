"""The parts of a plan as plain data, and back; graphs and weights are saved apart."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from msgspec import convert

from pipec.cluster.cluster import Cluster
from pipec.cost.table import CostTable
from pipec.graph.ir import Graph
from pipec.plan.manifest import source_of
from pipec.plan.model import HostSlot, Partition, Plan, StageTiming, Tried, ValueChannel
from pipec.plan.weights import all_have_data, owners
from pipec.schedule import json_form
from pipec.schedule.schedule import Placement
from pipec.simulate.simulate import from_json

Record = Mapping[str, Any]


def plan_record(plan: Plan) -> dict[str, Any]:
    """Everything of the plan but its graphs, as JSON data."""
    return {
        "target": plan.target,
        "source": dataclasses.asdict(plan.graph.source),
        "options": dict(plan.options),
        "cluster": plan.cluster.to_json(),
        "partition": _partition_record(plan),
        "placement": None if plan.placement is None else dataclasses.asdict(plan.placement),
        "channels": [dataclasses.asdict(c) for c in plan.channels],
        "slots": [dataclasses.asdict(s) for s in plan.slots],
        "weights": _weights_record(plan),
        "timing": [dataclasses.asdict(t) for t in plan.timing],
        "schedule": None if plan.schedule is None else json_form.to_json(plan.schedule),
        "timeline": None if plan.timeline is None else plan.timeline.to_json(),
        "explored": [dataclasses.asdict(t) for t in plan.explored],
        "costs": None if plan.costs is None else plan.costs.to_json(),
    }


def plan_from_record(record: Record, graph: Graph) -> Plan:
    """A plan without stages.

    Raises:
        PipecError: The cluster, the costs or the schedule are malformed.
        KeyError, TypeError, ValueError: Another part is.
    """
    costs, times = record["costs"], record["timeline"]
    schedule = None if record["schedule"] is None else json_form.from_json(record["schedule"])
    return Plan(
        graph=graph.replace(source=source_of(record)),
        cluster=Cluster.from_json(record["cluster"]),
        target=convert(record["target"], str),
        costs=None if costs is None else CostTable.from_json(costs),
        partition=_partition(record["partition"], graph),
        placement=convert(record["placement"], Placement | None),
        channels=convert(record["channels"], tuple[ValueChannel, ...]),
        slots=convert(record["slots"], tuple[HostSlot, ...]),
        schedule=schedule,
        timeline=None if schedule is None or times is None else from_json(schedule, times),
        timing=convert(record["timing"], tuple[StageTiming, ...]),
        explored=convert(record.get("explored", ()), tuple[Tried, ...]),
        options=convert(record["options"], dict[str, Any]),
    )


def _partition_record(plan: Plan) -> dict[str, Any] | None:
    if plan.partition is None:
        return None
    stage_of = plan.partition.stage_of
    return {**vars(plan.partition), "stage_of": [stage_of.get(n.name) for n in plan.graph.calls]}


def _partition(record: Record | None, graph: Graph) -> Partition | None:
    if record is None:
        return None
    stages = convert(record["stage_of"], list[int | None])
    pairs = zip(graph.calls, stages, strict=True)
    stage_of = {n.name: stage for n, stage in pairs if stage is not None}
    return convert({**record, "stage_of": stage_of}, Partition)


def _weights_record(plan: Plan) -> dict[str, Any]:
    """Who owns which weight; for tied ones, the stages that share them and their other names."""
    tied, owner = plan.find_tied(), owners(plan)
    return {
        "stored": all_have_data(plan.graph.weights),
        "owners": owner,
        "tied": {
            name: {
                "stages": list(tied.get(name, (owner[name],))),
                "owner": owner[name],
                "aliases": list(plan.graph.tied.get(name, ())),
            }
            for name in owner
            if name in tied or name in plan.graph.tied
        },
    }
