"""``pipedream{replicas=auto}``: how many devices each stage gets, chosen for the model.

PipeDream's planner (`pipec.partition.replicas.plan`) finds the configuration; what is cut for it,
and when everything runs, is then found as for replicas that are named.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import prod

from pipec.cluster.cluster import Cluster, slowest_link
from pipec.compiler.problem import build_problem
from pipec.errors import PartitionError, ScheduleError
from pipec.options import format_options, parse_one
from pipec.partition.replicas.plan import ReplicatedStage, plan_replicated
from pipec.partition.replicas.recurrence import Level
from pipec.plan.model import Plan
from pipec.schedule.registry import generate

AUTO = "auto"


def with_replicas(schedule: str, plan: Plan) -> str:
    """The schedule with numbers of replicas where it says ``replicas=auto``; else as it is.

    A plan that is placed already says them.

    Raises:
        PartitionError: The devices are of several kinds, or nothing fits their memory.
    """
    name, options = parse_one(schedule, ScheduleError)
    if name != "pipedream" or options.get("replicas") != AUTO:
        return schedule
    place = plan.placement
    counts = [len(devices) for devices in place.forward] if place else choose_replicas(plan)
    return format_options(name, {**options, "replicas": counts})


def choose_replicas(plan: Plan) -> list[int]:
    """Replicas of every stage, as PipeDream plans a model on all devices.

    Once joined by the slowest of their links; and, where links have levels, level by level: then
    a stage that several blocks share is not cut further in them.

    Raises:
        PartitionError: The devices are of several kinds, or nothing fits their memory.
    """
    cluster = plan.cluster
    check_alike(cluster, cluster.size)
    rate = flat_rate(cluster, cluster.size)
    problem = build_problem(plan, generate("pipedream", 1, 1), copies=1.0)
    memory = min(d.memory_bytes for d in cluster.devices)
    flat = plan_replicated(problem, [Level(cluster.size, rate)], memory_bytes=memory)
    found = [stage.replicas for stage in flat.stages]
    sizes = [v.size for v in cluster.levels]
    if cluster.links or len(sizes) < 2 or prod(sizes) != cluster.size:
        return found
    levels = [Level(v.size, v.link.bytes_per_second) for v in cluster.levels]
    try:
        nested = plan_replicated(problem, levels, memory_bytes=memory)
    except PartitionError:  # it counts more minibatches in flight
        return found
    deep = _in_a_row(nested.stages)
    return deep if deep and nested.seconds < flat.seconds else found


def check_alike(cluster: Cluster, count: int) -> None:
    """Replicas are chosen for devices of one kind.

    Raises:
        PartitionError: The first ``count`` are of several.
    """
    if len({d.kind for d in cluster.devices[:count]}) > 1:
        raise PartitionError(
            "replicas are chosen for devices of one kind",
            got=str(cluster),
            hint="name them: pipedream{replicas=3,1}",
        )


def flat_rate(cluster: Cluster, count: int) -> float:
    """Bytes per second of the slowest link among the first ``count`` devices."""
    pairs = combinations(range(count), 2) if cluster.links else pairwise(range(count))
    links = [cluster.link(a, b) for a, b in pairs]
    return slowest_link(links).bytes_per_second if links else 1.0


def _in_a_row(stages: Sequence[ReplicatedStage], copies: int = 1) -> list[int]:
    """Replicas of the innermost stages; empty where copies of a whole pipeline are among them."""
    found: list[int] = []
    for stage in stages:
        inner = _in_a_row(stage.inner, copies * stage.replicas) if stage.inner else None
        if inner == [] or (inner and len(inner) > 1 and stage.replicas > 1):
            return []
        found += inner or [copies * stage.replicas]
    return found
