"""Time and memory of one candidate: cut, schedule, simulate."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from pipec.cluster.cluster import Link, all_reduce_seconds
from pipec.compiler.fit import in_flight
from pipec.compiler.problem import TRAINING_COPIES
from pipec.errors import PipecError
from pipec.explore.candidate import Candidate
from pipec.explore.layout import Layout, lay_out
from pipec.explore.reside import Fitting
from pipec.explore.workload import Workload
from pipec.partition.clock import counted
from pipec.partition.costgraph import CostGraph, FloatArray
from pipec.partition.devices import Device
from pipec.partition.devices import Link as CutLink
from pipec.partition.result import CutResult
from pipec.partition.solve import solve_contiguous
from pipec.passes.partition import HANDED_OVER
from pipec.residency.choose import DoesNotFitError
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.comm import insert_comm
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

QUICKLY, CAREFULLY = 0, 400
"""Work for looking on behind the best cut of some linear orders, in looks at the clock
(`pipec.partition.clock`): a limit of work, so that an exploration does not depend on the machine's
load. Quickly is the optimum already of chains on equal devices, for a tenth of the time."""


@dataclass(frozen=True)
class Prediction:
    """What one candidate would do.

    Attributes:
        candidate: What was predicted.
        seconds: Of one step (the whole batch, gradients reduced); infinite if it is impossible.
        bubble: Share of device time without compute.
        peak_bytes: Most bytes held, per device of one pipeline.
        memory_bytes: What these devices have.
        reduce_seconds: All-reduce of the gradients at the end of the step, over replicas and
            over stages that share a weight.
        transfer_share: Busiest link's share of the pipeline's time.
        recomputed: Share of the saved bytes that is computed again, where it is fitted.
        offloaded: Share of the saved bytes that waits in host memory, where it is fitted.
        loose_seconds: Of a step with the cut that would be fastest if memory were no matter, where
            that cut does not fit and another does; else 0.
        planned: Whether the figures are those of a plan that was made of it.
        problem: Why it is impossible; empty if it is possible.
    """

    candidate: Candidate
    seconds: float
    bubble: float = 0.0
    peak_bytes: tuple[float, ...] = ()
    memory_bytes: tuple[float, ...] = ()
    reduce_seconds: float = 0.0
    transfer_share: float = 0.0
    recomputed: float = 0.0
    offloaded: float = 0.0
    loose_seconds: float = 0.0
    planned: bool = False
    problem: str = ""

    @property
    def possible(self) -> bool:
        """Whether it can run and fits the memory."""
        return not self.problem


@dataclass
class Predictor:
    """Predicts candidates of one workload; equal cuts and schedules are made once."""

    workload: Workload
    _cuts: dict[object, CutResult | str] = field(default_factory=dict)
    _schedules: dict[object, Prepared | str] = field(default_factory=dict)

    def predict(self, candidate: Candidate, work: int = CAREFULLY) -> Prediction:
        """Cut, order and time one candidate; what makes it impossible is told, not raised.

        Args:
            candidate: What to predict.
            work: For the cut (`CAREFULLY`).
        """
        layout = lay_out(candidate, candidate.on(self.workload.cluster))
        schedule = self._schedule(candidate)
        if isinstance(schedule, str):
            return Prediction(candidate, np.inf, problem=schedule)
        cut = self._cut(candidate, layout, work)
        if isinstance(cut, str):
            return Prediction(candidate, np.inf, problem=cut)
        found = self._time(candidate, layout, schedule, cut)
        if found.possible or candidate.fitted or not found.peak_bytes:
            return found
        within = self._cut(candidate, layout, work, limited=True)
        fits = found if isinstance(within, str) else self._time(candidate, layout, schedule, within)
        return replace(fits, loose_seconds=found.seconds) if fits.possible else found

    def cut(self, candidate: Candidate) -> CutResult | None:
        """Where a candidate's stages begin and end; None if it is impossible."""
        if isinstance(self._schedule(candidate), str):
            return None
        cut = self._cut(
            candidate, lay_out(candidate, candidate.on(self.workload.cluster)), CAREFULLY
        )
        return None if isinstance(cut, str) else cut

    def _schedule(self, c: Candidate) -> Prepared | str:
        key = (c.schedule, c.stages, c.microbatches)
        if key not in self._schedules:
            try:
                plain = generate(c.schedule, c.stages, c.microbatches)
                self._schedules[key] = Prepared.of(insert_comm(plain))
            except PipecError as error:
                self._schedules[key] = str(error).splitlines()[0]
        return self._schedules[key]

    def _cut(
        self, c: Candidate, layout: Layout, work: int, *, limited: bool = False
    ) -> CutResult | str:
        """The cut, or why there is none; ``limited`` keeps every stage's share of the memory."""
        schedule = self._schedule(c)
        assert isinstance(schedule, Prepared)
        home = [d[0] for d in schedule.schedule.placement.forward]
        kinds = tuple(layout.devices[p].kind for p in home)
        order = (c.schedule, c.microbatches, layout.memory_bytes) if limited else ()
        key = (c.microbatch, c.recompute, tuple(home), kinds, layout.links, work, order)
        if key not in self._cuts:
            problem = self.workload.problem(c.microbatch, recompute=c.recompute)
            ways = [_joint(layout, a, b) for a, b in pairwise(home)]
            links = [CutLink(w.bytes_per_second, w.latency_seconds) for w in ways]
            room = [layout.memory_bytes[p] / home.count(p) if limited else np.inf for p in home]
            devices = [Device(layout.devices[p].kind, r) for p, r in zip(home, room, strict=True)]
            turns = in_flight(schedule.schedule)
            try:
                with counted():
                    self._cuts[key] = solve_contiguous(
                        problem,
                        devices,
                        links=links,
                        memory=lambda s, _: (1.0, float(turns[s].most)),
                        time_limit=work,
                    )
            except PipecError as error:
                self._cuts[key] = str(error).splitlines()[0]
        return self._cuts[key]

    def _time(self, c: Candidate, layout: Layout, prepared: Prepared, cut: CutResult) -> Prediction:
        schedule = prepared.schedule
        problem = self.workload.problem(c.microbatch, recompute=c.recompute)
        home = [d[0] for d in schedule.placement.forward]
        crossing = _crossing(problem, cut)
        copies = TRAINING_COPIES if c.trains else 1.0
        weights = np.bincount(cut.stage, problem.weight_bytes, c.stages) / copies
        seconds = self.workload.forward(c.microbatch)
        forward = _stage_sums(problem, seconds, cut, layout, home)
        both = _stage_sums(problem, problem.work, cut, layout, home)
        backward = np.maximum(both - forward, 0.0)  # not a rounding error below
        times = _times(forward, backward, schedule, layout, crossing)
        memory = self._memory(c, problem, cut, weights, crossing[0])
        fitted = None
        if c.fitted:
            try:
                fitted = Fitting(prepared, layout, problem, cut, seconds, times, memory).best()
            except DoesNotFitError as error:
                return Prediction(c, np.inf, problem=f"does not fit: {error.got}")
        timeline = fitted.timeline if fitted else simulate(prepared, times, memory)
        reduce = 0.0
        if c.trains:
            reduce += _exposed_reduction(c, layout, timeline, weights, home)
            reduce += _tied_seconds(self.workload, layout, cut, home)
        peak = np.array(timeline.peak_bytes)
        if c.recompute:  # one microbatch at a time is whole again while its backward runs
            np.maximum.at(working := np.zeros(c.depth), home, _saved(problem, cut))
            peak += working
        return Prediction(
            c,
            timeline.seconds + reduce,
            bubble=timeline.bubble,
            peak_bytes=tuple(peak.tolist()),
            memory_bytes=layout.memory_bytes,
            reduce_seconds=reduce,
            transfer_share=_transfer_share(timeline),
            recomputed=fitted.recomputed if fitted else 0.0,
            offloaded=fitted.offloaded if fitted else 0.0,
            problem=overflow(peak.tolist(), layout.memory_bytes),
        )

    def _memory(
        self,
        c: Candidate,
        problem: CostGraph,
        cut: CutResult,
        weights: FloatArray,
        crossing: list[float],
    ) -> Memory:
        """Bytes per stage; under recompute a microbatch keeps its stage's input alone."""
        if not c.trains:
            live, left = self.workload.forward_bytes(cut.stage.tolist(), c.stages, c.microbatch)
            return Memory(weights=weights.tolist(), workspace={"F": live}, outputs=left)
        saved = np.array([0.0, *crossing]) if c.recompute else _saved(problem, cut)
        return Memory(
            weights=weights.tolist(),
            gradients=weights.tolist(),
            optimizer=(2 * weights).tolist(),
            saved=saved.tolist(),
        )


def _times(
    forward: FloatArray,
    backward: FloatArray,
    schedule: Schedule,
    layout: Layout,
    crossing: tuple[list[float], list[float]],
) -> Times:
    """Seconds of every action; ``forward`` and ``backward`` are those of the stages."""
    compute = Times.of_stages(forward.tolist(), backward.tolist()).compute
    return Times(compute, transfer=tuple((s,) for s in _transfers(schedule, layout, crossing)))


def _joint(layout: Layout, a: int, b: int) -> Link:
    """The link between positions ``a`` and ``b`` (over all hops between; none on one device)."""
    hops = layout.links[min(a, b) : max(a, b)]
    if not hops:
        return Link(HANDED_OVER, 0.0)
    return Link(min(v.bytes_per_second for v in hops), sum(v.latency_seconds for v in hops))


def _stage_sums(
    problem: CostGraph, work: FloatArray, cut: CutResult, layout: Layout, home: Sequence[int]
) -> FloatArray:
    """Every stage's part of ``work``, [classes of devices, nodes], on its device."""
    rows = np.array([problem.classes.index(layout.devices[p].kind) for p in home])
    mine = work[rows[cut.stage], np.arange(problem.size)]
    return np.asarray(np.bincount(cut.stage, mine, len(home)), np.float64)


def _crossing(problem: CostGraph, cut: CutResult) -> tuple[list[float], list[float]]:
    """Forward and gradient bytes over every boundary between stages."""
    stages = cut.stages
    edge = np.repeat(np.arange(len(problem.producer)), np.diff(problem.consumer_ptr))
    first = cut.stage[problem.producer]
    last = first.copy()
    np.maximum.at(last, edge, cut.stage[problem.consumer])
    boundary = np.arange(1, stages)
    crosses = (first[:, None] < boundary) & (boundary <= last[:, None])
    return (problem.bytes @ crosses).tolist(), (problem.gradient_bytes @ crosses).tolist()


def _transfers(
    schedule: Schedule, layout: Layout, crossing: tuple[list[float], list[float]]
) -> list[float]:
    """Seconds of one message on each channel of a plain pipeline."""
    forward, backward = schedule.placement.forward, schedule.placement.backward
    found = []
    for c in schedule.channels:
        low = min(c.src, c.dst)
        if c.kind is ChannelKind.F and c.src != c.dst:
            link = _joint(layout, forward[c.src][0], forward[c.dst][0])
            found.append(link.seconds(crossing[0][low]))
        elif c.kind is ChannelKind.B and c.src != c.dst:
            link = _joint(layout, backward[c.src][0], backward[c.dst][0])
            found.append(link.seconds(crossing[1][low]))
        else:
            found.append(0.0)
    return found


def _saved(problem: CostGraph, cut: CutResult) -> np.ndarray:
    """Bytes that one microbatch's forward keeps, per stage."""
    return np.bincount(cut.stage, problem.activation_bytes, cut.stages)


def _exposed_reduction(
    c: Candidate, layout: Layout, timeline: Timeline, weights: np.ndarray, home: Sequence[int]
) -> float:
    """Seconds that reducing gradients over replicas adds to the pipeline's time.

    A stage's reduction starts behind its last backward, beside whatever else its device does; the
    reductions of one device's stages run one after the other.
    """
    last, free = _last_backward(timeline), [0.0] * c.depth
    for s in np.argsort(last, kind="stable").tolist():
        at, ring = home[s], layout.rings[home[s]]
        if ring is not None:
            took = all_reduce_seconds(ring, c.replicas, float(weights[s]))
            free[at] = max(free[at], float(last[s])) + took
    return max(0.0, *free, timeline.seconds) - timeline.seconds


def _last_backward(timeline: Timeline) -> np.ndarray:
    """When each stage has done its last backward."""
    schedule = timeline.schedule
    backward = np.isin(schedule.kind, (ActionKind.B, ActionKind.I, ActionKind.W))
    last = np.zeros(schedule.stages)
    np.maximum.at(last, schedule.stage[backward], timeline.end[backward])
    return last


def _tied_seconds(workload: Workload, layout: Layout, cut: CutResult, home: Sequence[int]) -> float:
    """Gradients of weights that several positions read, exchanged after the last backward."""
    seconds = 0.0
    for size, readers in workload.shared_weights:
        at = sorted({home[s] for s in cut.stage[readers]})
        hops = (all_reduce_seconds(_joint(layout, a, b), len(at), size) for a, b in pairwise(at))
        seconds += max(hops, default=0.0)
    return seconds


def _transfer_share(timeline: Timeline) -> float:
    shares = [use for lane, use in timeline.lane_use.items() if "compute" not in lane]
    return max(shares, default=0.0)


def overflow(peak: Sequence[float], limit: Sequence[float]) -> str:
    """The first device that holds more than it has, in words; empty if all fit."""
    over = [
        f"device {k} needs {p / 2**30:.2f} of {m / 2**30:.2f} GiB"
        for k, (p, m) in enumerate(zip(peak, limit, strict=True))
        if p > m
    ]
    return f"does not fit: {over[0]}" if over else ""
