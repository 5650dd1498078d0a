"""Pass ``partition``: the cut whose slowest stage is fastest."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf, lcm
from time import perf_counter
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from pipec.cluster.cluster import Cluster, Link, slowest_link
from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import Cuts
from pipec.compiler.cut_search import Cut, CutSearch
from pipec.compiler.layers import parse_layout, place_layers
from pipec.compiler.outline import Outline
from pipec.compiler.pass_base import Pass
from pipec.compiler.problem import build_problem, share_work
from pipec.compiler.replicate import with_replicas
from pipec.errors import PartitionError, ScheduleError
from pipec.graph.ir import Graph
from pipec.options import parse_one
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray
from pipec.partition.devices import Device
from pipec.partition.result import CutResult, make_result, stage_loads
from pipec.partition.solve import solve_contiguous
from pipec.plan.model import Fact, Partition, Plan, cut_stages
from pipec.runtime.program import check_paired
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.registry import SYNCHRONOUS, generate, stages_on, without_parts
from pipec.schedule.schedule import Placement, Schedule

HANDED_OVER = 1e18
"""Bytes per second between two stages of one device."""
SECONDS = 5.0
"""Processor time for the proof of optimality."""

_seeded = WeakKeyDictionary[fx.GraphModule, dict[object, tuple[CostGraph, IntArray]]]()


@dataclass(frozen=True)
class PartitionPass(Pass):
    """Cuts the graph into contiguous stages, minimising the slowest stage with its transfers.

    1. One stage per device, in the order of the cluster; if the order is ``free``, the cluster's
       devices are put into the best order first.
    2. Nodes that must stay together do (`pipec.graph.units`).
    3. A value that skips stages pays at every boundary that it crosses.
    4. A training graph counts backward work and gradients on the links too.
    5. No stage holds more than its device's memory; where a device has several stages, nor do they
       together.
    6. A backend may have a better way: FPGA stages are folded while they are cut.
    7. A schedule that gives devices several stages, stages replicas, or the backward pass
       devices of its own says where stages are; a stage with r replicas takes an r-th of its work.
       ``pipedream{replicas=auto}`` has them chosen, and the number of stages. Where a schedule
       runs stages in parts, the stages are cut first, and each into parts that save as much.

    Attributes:
        stages: Number of stages; as many as fill the devices if not given.
        schedule: The schedule whose placement is cut for; one stage per device if empty or
            ``fastest``.
        microbatches: Microbatches of that schedule.
        order: Whether devices keep their ``fixed`` order.
        activations: Whether what a microbatch saves counts against the memory; not where a later
            pass moves or recomputes what does not fit.
        state: Whether the optimizer's state counts while no stage steps.
        freed: Which of these two later passes free; they count as long as a cut fits with them.
        layout: Layers of every stage as another runtime writes them (`pipec.compiler.layers`),
            instead of the best cut; its bound is still that of the best cut.
    """

    name: ClassVar[str] = "partition"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COST})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})
    stages: int | None = None
    schedule: str = ""
    microbatches: int = 8
    order: Literal["fixed", "free"] = "fixed"
    activations: bool = True
    state: bool = True
    freed: Sequence[str] = ()
    layout: str = ""

    def run(self, plan: Plan) -> Plan:
        if plan.stages:
            return plan
        named = self._with_replicas(plan)
        if named != self:
            return named.run(plan)
        task = place, problem, _ = self._read(plan)
        try:
            found = self._search(plan, *task)
        except PartitionError:
            if not self.freed:
                raise
            free: dict[str, Any] = dict.fromkeys(self.freed, False)
            return replace(self, freed=(), **free).run(plan)
        if found:
            cluster, partition = found.cluster, _of_step(plan.graph, found.cut, found.compute)
        else:
            cut = self._cut(plan, place, problem)
            cluster = plan.cluster.reorder(cut.device_order)
            partition = _partition(cut, dict(zip(problem.names, cut.stage.tolist(), strict=True)))
        if self.order == "fixed" and len({d.kind for d in cluster.devices}) > 1:
            partition = replace(partition, answers=f"{partition.answers}, devices in this order")
        return plan.replace(
            partition=partition,
            cluster=cluster,
            placement=place,
            stages=cut_stages(plan.graph, partition.stage_of, len(place.forward)),
        )

    def _with_replicas(self, plan: Plan) -> "PartitionPass":
        """The pass with the replicas that a schedule leaves open, and with as many stages."""
        schedule = with_replicas(self.schedule, plan) if self.schedule else ""
        if schedule == self.schedule:
            return self
        if self.stages is not None:
            raise PartitionError(
                "replicas=auto chooses the number of stages, too",
                got=f"stages={self.stages}",
                hint="leave one of them out",
            )
        counts = parse_one(schedule, ScheduleError)[1]["replicas"]
        return replace(self, schedule=schedule, stages=counts.count(",") + 1)

    def search(self, plan: Plan, *, counted: bool = False, below: float = inf) -> "Fastest | None":
        """The cut whose step is fastest, by the timeline that its plan will have.

        None where stages do not run as `pipec.compiler.outline` knows them, or a layout is given:
        then a cut is made for its slowest stage, and timed once the plan is made.

        Args:
            plan: With costs.
            counted: Whether peaks of memory are computed where there is room for all that is saved.
            below: Seconds of a step; only faster cuts are looked for.

        Raises:
            PartitionError: No cut fits.
            NotFasterError: None is faster than ``below``.
        """
        return self._search(plan, *self._read(plan), counted=counted, below=below)

    def _read(self, plan: Plan) -> tuple[Placement, CostGraph, Schedule | None]:
        """Where stages run, what is cut, and the schedule that wants it so, if one is named."""
        size, order = plan.cluster.size, None
        if self.schedule in ("", "fastest"):
            count = size if self.stages is None else self.stages
            _check_fit(count, count, plan)
            place = Placement.together(tuple((k,) for k in range(count)))
        elif self.order == "free":
            raise PartitionError(
                "a schedule places its stages on devices in their order",
                got=f"order=free, schedule={self.schedule}",
            )
        else:
            count = self.stages or stages_on(self.schedule, size, self.microbatches)
            order = generate(self.schedule, count, self.microbatches)
            check_paired(order)
            place = order.placement
            _check_fit(count, place.devices, plan)
            place = place if place.backward else Placement.together(place.forward)
        place = place if plan.trains else Placement(place.forward)
        return place, build_problem(plan, order), order

    def _search(
        self, plan: Plan, place: Placement, problem: CostGraph, order: Schedule | None,
        *, counted: bool = False, below: float = inf,
    ) -> "Fastest | None":  # fmt: skip
        """`search`: the fastest cut that fits, for the best schedule that may be meant."""
        if not (orders := [] if self.layout else self._orders(plan, place, order)):
            return None
        cluster = plan.cluster
        assert plan.costs is not None
        if self.order == "free":
            cluster = cluster.reorder(self._cut(plan, place, problem).device_order)
        given = self.microbatches, self.activations, self.state, counted
        outline = Outline(plan.graph, plan.costs, cluster, *given)
        limits = [d.memory_bytes for d in cluster.devices[: place.devices]]
        found, refused = list[tuple[Cut, Schedule]](), list[PartitionError]()
        for compute in orders:
            whole = without_parts(compute)
            parts = compute.stages // whole.stages
            search = CutSearch(outline, problem, whole, limits, parts)
            seeds = partial(self._seeds, plan, whole.placement, problem)
            try:
                cut = search.find_best(seeds, below)
                found.append((search.split_in_parts(cut, compute) if parts > 1 else cut, compute))
            except PartitionError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        cut, compute = min(found, key=lambda pair: pair[0].timeline.seconds)
        return Fastest(cluster, cut, compute)

    def _orders(self, plan: Plan, place: Placement, order: Schedule | None) -> list[Schedule]:
        """The schedules that may be meant: the one that is named, or those that fit the places.

        None where stages do not run as `pipec.compiler.outline` knows them: in streams, or with
        their backward on devices of its own and saved values that a later pass computes again.
        """
        streams = any(d.streams for d in plan.cluster.devices)
        if streams or (place.separate and not self.activations):
            return []
        if order is not None and (plan.trains or not order.training):
            return [order] if order.training == plan.trains else []
        usual = SYNCHRONOUS if self.schedule else ("1f1b",)
        names = usual if plan.trains else ("inference",)
        found = []
        for name in names:
            try:
                compute = generate(name, len(place.forward), self.microbatches)
            except ScheduleError:
                if len(names) == 1:
                    raise
                continue
            if compute.placement.forward == place.forward and compute.training == plan.trains:
                found.append(compute)
        return found

    def _seeds(self, plan: Plan, place: Placement, problem: CostGraph) -> list[IntArray]:
        """Cuts with the least largest load; many schedules place their stages alike."""
        cluster, free = plan.cluster, self.order == "free"
        links = tuple(_link(cluster, a, b) for a, b in pairwise(place.forward))
        kinds = tuple((d.kind, d.memory_bytes) for d in cluster.devices)
        key = id(problem), plan.target, place.forward, kinds, links, self.activations, free
        known = _seeded.setdefault(plan.graph.module, {})
        if key not in known:
            try:
                cut = self._cut(plan, place, problem)
            except PartitionError:
                roomy = replace(
                    cluster, devices=tuple(replace(d, memory_bytes=inf) for d in cluster.devices)
                )
                cut = self._cut(plan.replace(cluster=roomy), place, problem)
            # the problem is kept, so that no other gets its id
            known[key] = problem, cut.stage
        return [known[key][1]]

    def _cut(self, plan: Plan, place: Placement, problem: CostGraph) -> CutResult:
        count, free, cluster = len(place.forward), self.order == "free", plan.cluster
        if place.forward == tuple((k,) for k in range(count)):
            backend = load_backend(plan.target)
            own = backend.cut(plan, count, free_order=free) if isinstance(backend, Cuts) else None
            if own is not None and self.layout:
                raise PartitionError("this target cuts by itself", got=f"layout={self.layout}")
            if own is not None:
                return own
        if not self.activations:
            nothing = np.zeros_like(problem.activation_bytes)
            problem = replace(problem, activation_bytes=nothing)
        kinds = [[cluster.devices[d] for d in stage] for stage in place.forward]
        problem, names = share_work(problem, [[d.kind for d in stage] for stage in kinds])
        links = [_link(cluster, a, b) for a, b in pairwise(place.forward)]
        memory = np.array([min(d.memory_bytes for d in stage) for stage in kinds])

        def solve(memory: FloatArray) -> CutResult:
            """The best cut, given the memory of every stage's device."""
            return solve_contiguous(
                problem, _devices(names, memory), free_order=free, links=links, time_limit=SECONDS
            )

        if self.layout:
            return self._cut_by_layout(plan, problem, _devices(names, memory), links, solve)
        cut = solve(memory)
        if _holds(cluster, place, cut):
            return cut
        # the stages of one device add up: give each an equal part of it, where that can be done
        try:
            beside = Counter(d for stage in place.forward for d in stage)
            return solve(memory / [max(beside[d] for d in stage) for stage in place.forward])
        except PartitionError:
            return cut

    def _cut_by_layout(
        self,
        plan: Plan,
        problem: CostGraph,
        devices: Sequence[Device],
        links: Sequence[Link],
        solved: Callable[[FloatArray], CutResult],
    ) -> CutResult:
        """The cut that the layout says, beside the bound of the best one."""
        began, layout = perf_counter(), parse_layout(self.layout)
        if len(layout.layers) != len(devices):
            got = f"{len(layout.layers)} in {layout}"
            what = "the layout has another number of stages"
            raise PartitionError(what, got=got, want=len(devices))
        stage = place_layers(plan.graph, layout)
        loads = stage_loads(problem, stage, devices, links=links)
        lower = solved(np.full(len(devices), inf)).lower_bound
        order = range(len(devices))
        return make_result(problem, stage, order, loads, lower, f"layout {layout}", began)


@dataclass(frozen=True)
class Fastest:
    """The cut with the fastest step.

    Attributes:
        cluster: Its devices in their order.
        cut: The cut.
        compute: The compute actions that it was made for.
    """

    cluster: Cluster
    cut: Cut
    compute: Schedule


def _devices(names: Sequence[str], memory: FloatArray) -> list[Device]:
    return [Device(name, bytes_) for name, bytes_ in zip(names, memory.tolist(), strict=True)]


def _holds(cluster: Cluster, place: Placement, cut: CutResult) -> bool:
    """Whether every device that has several stages has memory for all of them."""
    used = np.zeros(cluster.size)
    for stage, bytes_ in zip(place.forward, cut.memory_bytes, strict=True):
        used[list(stage)] += bytes_
    several = np.bincount([d for stage in place.forward for d in stage], minlength=len(used)) > 1
    limit = np.array([d.memory_bytes for d in cluster.devices])
    return bool((used <= limit)[several].all())


def _check_fit(stages: int, devices: int, plan: Plan) -> None:
    if not (stages >= 1 and devices <= plan.cluster.size):
        raise PartitionError(
            "the number of stages does not fit the cluster",
            got=f"{stages} stages, which take {devices} devices",
            want=f"1 to {plan.cluster.size} devices ({plan.cluster})",
            hint="name more devices" if stages > 0 else None,
        )


def _link(cluster: Cluster, src: Sequence[int], dst: Sequence[int]) -> Link:
    """The slowest way between replicas of two stages; stages on one device hand values over.

    Replica m mod r handles microbatch m on both sides, so that as many messages are under way at
    a time as the side with fewer replicas has: each counts an equal part of its time.
    """
    turns = lcm(len(src), len(dst))
    pairs = [(src[m % len(src)], dst[m % len(dst)]) for m in range(turns)]
    ways = [cluster.link(a, b) for a, b in pairs if a != b]
    if not ways:
        return Link(HANDED_OVER, 0.0)
    slowest, beside = slowest_link(ways), min(len(src), len(dst))
    return Link(slowest.bytes_per_second * beside, slowest.latency_seconds / beside)


def _partition(cut: CutResult, stage_of: dict[str, int]) -> Partition:
    return Partition(
        stage_of=stage_of,
        seconds=tuple(cut.loads),
        lower_bound=cut.lower_bound,
        proven=cut.proven,
        answers="contiguous stages, slowest stage with its transfers",
        method=cut.method,
    )


def _of_step(graph: Graph, cut: Cut, compute: Schedule) -> Partition:
    """The partition of a cut that was made for a schedule."""
    times = cut.timeline.times
    seconds = np.sum([times.compute[k] for k in (ActionKind.F, ActionKind.B)], axis=0)
    if not compute.training:
        seconds = np.array(times.compute[ActionKind.F])
    sent, replicas = np.zeros(len(seconds)), [len(d) for d in compute.placement.forward]
    assert isinstance(times.transfer, tuple)
    for c, way in zip(cut.timeline.schedule.channels, times.transfer, strict=True):
        if c.kind in (ChannelKind.F, ChannelKind.B):
            sent[[c.src, c.dst]] += max(way)
    names = [n.name for n in graph.calls]
    return Partition(
        stage_of=dict(zip(names, cut.stage.tolist(), strict=True)),
        seconds=tuple(((seconds + sent) / replicas).tolist()),
        lower_bound=cut.bound,
        proven=cut.bound >= cut.timeline.seconds,
        answers=f"contiguous stages, a step of {compute.name} with "
        f"{compute.microbatches} microbatches",
        method=cut.method,
        step_seconds=cut.timeline.seconds,
    )
