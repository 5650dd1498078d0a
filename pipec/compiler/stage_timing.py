"""What a stage takes on a device that runs one node after the other, from the plan's cost table.

Where the table knows the whole stage (``pipec profile DIRECTORY``), that counts; else its nodes.
"""

import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import fx

from pipec.autodiff.recompute import views
from pipec.cluster.device import Device
from pipec.cost.stage import StageCost
from pipec.errors import PlanError
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage, StageTiming


def sum_stage_times(plan: Plan) -> tuple[StageTiming, ...]:
    """Every stage's time as the sum over its nodes plus its transfers.

    Args:
        plan: A plan with costs, placement and channels. A training graph's interval is that of
            the forward pass.

    Raises:
        PlanError: Costs or placement are missing.
    """
    return tuple(_stage(plan, stage) for stage in plan.stages)


def find_measured(plan: Plan, stage: Stage) -> StageCost | None:
    """What was measured of a stage on its kind of device; None if nothing was."""
    if plan.costs is None or not plan.costs.stages:
        return None
    ahead, behind = (device_of(plan, stage, backward=b).kind for b in (False, True))
    found = [plan.costs.stages.get(kind, {}).get(stage.cost_key) for kind in (ahead, behind)]
    if ahead == behind or found[0] is None or found[1] is None:
        return found[0] if found[1] else None
    workspace = {**found[1].workspace, "F": found[0].workspace.get("F", 0)}
    return replace(found[1], F=found[0].F, workspace=workspace)


def device_of(plan: Plan, stage: Stage, *, backward: bool = False) -> Device:
    """Where a stage runs, or its backward; of unlike replicas the one that takes longest."""
    where: Sequence[int] = (stage.index,)
    if plan.placement:
        where = plan.placement.sides[backward][stage.index]
    kinds = {(d := plan.cluster.devices[k]).kind: d for k in where}
    if len(kinds) == 1 or plan.costs is None:
        return plan.cluster.devices[where[0]]
    names = [n.name for n in lower(stage.graph).calls]
    return kinds[plan.costs.slowest(kinds, names, trains=plan.trains)]


def _stage(plan: Plan, stage: Stage) -> StageTiming:
    if plan.costs is None or plan.placement is None:
        raise PlanError("stages cannot be timed yet", want="costs and a placement")
    kind, behind = (device_of(plan, stage, backward=b).kind for b in (False, True))
    table, whole = plan.costs.of(kind), find_measured(plan, stage)
    graph, training = lower(stage.graph).graph, plan.trains
    seconds = {n: table.get(n.name, 0.0) for n in graph.calls}
    backward = plan.costs.backward_of(behind) if training else {}
    compute, transfers = sum(seconds.values()), _transfers(plan, stage.index)
    heaviest = max(seconds, key=lambda n: seconds[n])
    share = seconds[heaviest] / compute if compute else 0.0
    compute = whole.F if whole else compute
    bottleneck = f"compute ({share:.0%} in {heaviest.name})"
    if transfers > compute:
        bottleneck = "transfers"
    # What one run makes, and the model's inputs; what is received lies in buffers already.
    made = {i.node for i in graph.inputs_of(InputKind.INPUT)} | {n.name for n in graph.calls}
    return StageTiming(
        interval_seconds=compute + transfers,
        transfer_seconds=transfers,
        latency_seconds=compute + transfers,
        bottleneck=bottleneck,
        memory_bytes=graph.weight_bytes,
        workspace_bytes=0 if training else peak_live_bytes(graph, made),
        output_bytes=0 if training else _output_bytes(graph),
        backward_seconds=sum(backward.get(n.name, 0.0) for n in graph.calls),
    )


def _transfers(plan: Plan, stage: int) -> float:
    assert plan.placement is not None
    place = plan.placement.forward
    ends = [c for c in plan.channels if stage in (c.src, c.dst)]
    return sum(plan.cluster.link(place[c.src][0], place[c.dst][0]).seconds(c.nbytes) for c in ends)


def _output_bytes(graph: Graph) -> int:
    """The memory that outputs of the model keep, views the whole tensor that they show."""
    nodes = graph.nodes
    kept = {holder(nodes[o.node]) for o in graph.outputs_of(OutputKind.OUTPUT)}
    return sum(nbytes(n) for n in kept if n.op == "call_function")


def peak_live_bytes(graph: Graph, counted: Collection[str]) -> int:
    """Bytes of live values at the fullest point when nodes run in graph order.

    A value lives from its node to its last reader, through views; outputs live to the end.
    """
    order = [life(n) for n in graph.module.graph.nodes if n.op != "output"]
    return peak_of(order, [o.node for o in graph.outputs], counted)[0]


class Life(NamedTuple):
    """What of a node decides how long memory lives.

    Attributes:
        name: Name of the node.
        reads: Names of what it reads.
        shows: Whether it shows the memory of the first of them.
        item: Whether it is one of the tensors that the first of them makes.
        own: Bytes that it allocates.
        nbytes: Bytes of what it is.
        kernel: Bytes that it allocates while it runs, where they are known.
    """

    name: str
    reads: tuple[str, ...]
    shows: bool
    item: bool
    own: int
    nbytes: int
    kernel: int


def life(node: fx.Node, kernel: int = 0) -> Life:
    """See `Life`."""
    shows, reads = views(node), tuple(read.name for read in node.all_input_nodes)
    item = node.target is operator.getitem and not shows
    return Life(node.name, reads, shows, item, own_bytes(node), nbytes(node) if item else 0, kernel)


def peak_of(
    order: Sequence[Life],
    results: Collection[str],
    counted: Collection[str],
    *,
    kernels: bool = True,
) -> tuple[int, frozenset[str]]:
    """As `peak_live_bytes`, of nodes that read each other by their names; and which are alive then.

    Args:
        order: The nodes as they run; what they read from elsewhere does not count.
        results: Names of those that live to the end.
        counted: Names of those whose bytes count.
        kernels: Whether what nodes allocate while they run counts.
    """
    home, last = dict[str, str](), dict[str, int]()
    for k, n in enumerate(order):
        reads = [home[read] for read in n.reads if read in home]
        home[n.name] = own = reads[0] if n.shows and reads else n.name
        for read in reads:
            last[read] = k
        last[own] = k
    last |= dict.fromkeys([home[name] for name in results], len(order))
    ends: dict[int, list[str]] = {}
    for name, k in last.items():
        ends.setdefault(k, []).append(name)
    live, peak, fullest = dict[str, int](), 0, frozenset[str]()
    held = 0
    for k, n in enumerate(order):
        live[n.name] = own_size = n.own if n.name in counted else 0
        running = held + max(own_size, n.kernel if kernels else 0)
        held += own_size
        if n.item and live.get(made := n.reads[0]):
            live[n.name] = n.nbytes  # each tensor of a tuple is let go for itself
            live[made] -= n.nbytes
        if running > peak:
            peak, fullest = running, frozenset(name for name, size in live.items() if size)
        for done in ends.get(k, ()):
            held -= live.pop(done)
    return peak, fullest


def holder(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` shows."""
    while _is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or views(node)


def own_bytes(node: fx.Node) -> int:
    """Bytes that a node allocates: none if it only shows another's memory."""
    return 0 if _is_view(node) and node.all_input_nodes else nbytes(node)
