"""What one candidate takes: a bound before it is cut, and the timeline of its best cut.

Candidates are cut by the pass `partition` and timed by `pipec.compiler.timeline`, as the plans are
that ``pipec compile`` makes: figures of a candidate are those of its plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

from pipec.compiler.cut_search import NotFasterError
from pipec.compiler.endless import round_of
from pipec.compiler.pass_manager import run_passes
from pipec.errors import PartitionError, PipecError, PlanError
from pipec.explore.candidate import Candidate
from pipec.explore.make import Maker, passes_of
from pipec.passes.partition import PartitionPass
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import generate
from pipec.simulate.costs import takes_costs
from pipec.simulate.timeline import Timeline

NOT_TIMED = "not timed"
_BELOW = 1 - 1e-9
"""What a bound is lowered by for roundings."""


@dataclass(frozen=True)
class Prediction:
    """What one candidate does.

    Attributes:
        candidate: What was predicted.
        seconds: Of one step (the whole batch, gradients reduced), without a flush of one more round
            of a run that goes on; infinite if it is impossible or was not timed.
        bound: No plan of the candidate has a faster step.
        bubble: Share of device time without compute or a step.
        peak_bytes: Most bytes held, per device.
        reduce_seconds: Longest all-reduce of a stage's gradients over its replicas.
        loose_seconds: No cut that does not fit has a faster step; infinite if all fit.
        planned: Whether the plan was made.
        tight: Whether no cut fits the memory.
        problem: Why it is impossible or was not timed; empty if it is possible.
    """

    candidate: Candidate
    seconds: float
    bound: float = 0.0
    bubble: float = 0.0
    peak_bytes: tuple[float, ...] = ()
    reduce_seconds: float = 0.0
    loose_seconds: float = inf
    planned: bool = False
    tight: bool = False
    problem: str = ""

    @property
    def possible(self) -> bool:
        """Whether it can run and fits the memory, as far as is known."""
        return not self.problem

    @property
    def timed(self) -> bool:
        """Whether it was timed, or found impossible; else its bound says that it need not be."""
        return not self.problem.startswith(NOT_TIMED)


@dataclass
class Predictor:
    """Predicts candidates of one model on one cluster; keeps the plans that it had to make."""

    maker: Maker
    plans: dict[Candidate, Plan] = field(default_factory=dict)
    _work: dict[tuple[int, tuple[str, ...]], "_Work"] = field(default_factory=dict)

    def guess(self, c: Candidate) -> float:
        """Seconds by the work alone, dealt out as well as can be.

        Device k of n waits for the forwards of those before it, and what comes last goes back over
        them; with m microbatches, w seconds of work each, and a share r of the work that the
        devices in front do before device k begins (and behind it, where a backward is in one
        piece), ``T >= r (w1 + ... + w[k-1]) + m w[k]``, which is least where all are equal:
        ``T = r w / (1 - (1 - r / m) ** n)``. Where devices are unlike, and one is nowhere faster
        than 1 / s of what is best for each node, it counts as 1 / s of a device.

        Raises:
            PipecError: The model cannot be traced at the microbatch.
        """
        used = c.on(self.maker.cluster).devices[: c.depth * c.replicas]
        kinds = [d.kind for d in used]
        known = self._sums(c.microbatch, tuple(sorted(set(kinds))))
        m, speed = c.microbatches, sum(known.speeds[kind] for kind in kinds)
        found = max(m * known.work * c.replicas / speed, m * known.heaviest)
        if c.chunks == 1 and not c.asynchronous:  # the others begin with an empty pipeline
            r = known.share if _traits(c.schedule, c.depth)[0] else 1.0
            if r > 0:
                found = max(found, r * known.work / (1 - (1 - r / m) ** c.depth))
        return found

    def bound(self, c: Candidate) -> float:
        """A time that no step of the candidate is faster than.

        None is known, and 0 is given, where devices stream, compute forward and backward at a
        time, or have one of the two alone.

        Raises:
            PipecError: The model cannot be traced at the microbatch.
        """
        streams = any(d.streams for d in self.maker.cluster.devices)
        return 0.0 if streams or not _traits(c.schedule, c.depth)[1] else self.guess(c) * _BELOW

    def predict(self, candidate: Candidate, bound: float = 0.0, below: float = inf) -> Prediction:
        """Cut and time one candidate; what makes it impossible is returned, not raised.

        Args:
            candidate: What to predict.
            bound: A time that it is not faster than.
            below: A time that it must be faster than; if it is not, it may not be timed.
        """
        try:
            return replace(self._predict(candidate, below), bound=bound)
        except NotFasterError as found:
            return replace(not_timed(candidate, found.bound), loose_seconds=found.loose)
        except PipecError as error:
            tight = isinstance(error, PartitionError | PlanError)
            return Prediction(
                candidate, inf, bound, tight=tight, problem=" ".join(str(error).split())[:160]
            )

    def make(self, candidate: Candidate) -> Plan:
        """The plan of a candidate; each is made once.

        Raises:
            PipecError: As `Maker.make`.
        """
        if candidate not in self.plans:
            self.plans[candidate] = self.maker.make(candidate)
        return self.plans[candidate]

    def simulate(self, candidate: Candidate, bound: float = 0.0) -> Prediction:
        """The figures of a candidate's plan.

        Raises:
            PipecError: As `make`.
        """
        plan = self.make(candidate)
        assert plan.timeline is not None
        found = replace(_figures(candidate, plan.timeline), bound=bound, planned=True)
        return replace(found, **vars(round_of(plan))) if candidate.asynchronous else found

    def _predict(self, c: Candidate, below: float) -> Prediction:
        """The figures of the best cut; where it cannot be timed before it is made, of the plan."""
        if takes_costs(c.schedule) or c.asynchronous:
            return self.simulate(c)
        passes = passes_of(c)
        at = [p.name for p in passes].index("partition")
        cut = passes[at]
        assert isinstance(cut, PartitionPass)
        base = self.maker.cost_model(c.microbatch).replace(cluster=c.on(self.maker.cluster))
        base = run_passes(passes[:at], base) if at else base  # which is verified, once
        # refuses what does not fit in any way
        found = cut.search(base, counted=True, below=below)
        if found is None or c.eased:
            return self.simulate(c)
        return replace(_figures(c, found.cut.timeline), loose_seconds=found.cut.loose)

    def _sums(self, samples: int, kinds: tuple[str, ...]) -> "_Work":
        """Of one microbatch, each node on the device that is best for it."""
        if (samples, kinds) not in self._work:
            plan = self.maker.cost_model(samples)
            assert plan.costs is not None
            whole, shares = dict[str, dict[str, float]](), [1.0]
            for kind in kinds:
                back = plan.costs.backward_of(kind) if self.maker.trains else {}
                seconds = plan.costs.of(kind)
                whole[kind] = {n: s + back.get(n, 0.0) for n, s in seconds.items()}
                shares += [s / whole[kind][n] for n, s in seconds.items() if whole[kind][n]]
            least = {n: min(of[n] for of in whole.values()) for n in whole[kinds[0]]}
            speeds = {
                kind: max((least[n] / s for n, s in of.items() if s), default=1.0)
                for kind, of in whole.items()
            }
            every = least.values()
            self._work[samples, kinds] = _Work(
                sum(every), max(every, default=0.0), min(shares), speeds
            )
        return self._work[samples, kinds]


@dataclass(frozen=True)
class _Work:
    """What a microbatch takes, each node on the device that is best for it.

    Attributes:
        work: Seconds of all nodes.
        heaviest: Seconds of the heaviest one.
        share: The least share of any node's that is forward.
        speeds: Kind of device to how fast it is at most beside the best one, over all nodes.
    """

    work: float
    heaviest: float
    share: float
    speeds: Mapping[str, float]


@lru_cache(maxsize=256)
def _traits(schedule: str, depth: int) -> tuple[bool, bool]:
    """What a bound must know of a schedule.

    Returns:
        Whether gradients of weights are computed apart, behind those of inputs; whether every
        device computes forward and backward of its stages, one at a time.
    """
    try:
        made = generate(schedule, depth, 2 * depth)
    except PipecError:  # it is reported when the candidate is predicted
        return True, True
    kinds = set(made.kind.tolist())
    return ActionKind.W in kinds, made.lanes.compute != "split" and not made.placement.separate


def _figures(candidate: Candidate, timeline: Timeline) -> Prediction:
    return Prediction(
        candidate,
        timeline.seconds,
        bubble=timeline.bubble,
        peak_bytes=tuple(timeline.peak_bytes),
        reduce_seconds=max(timeline.times.reduce, default=0.0),
    )


def not_timed(candidate: Candidate, bound: float) -> Prediction:
    """A candidate that is not timed; its bound says that it need not be, 0 if none is known."""
    why = f"{NOT_TIMED}: takes {bound:.4g} s at least" if bound else NOT_TIMED
    return Prediction(candidate, inf, bound, problem=why)


def fastest_first(predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """What is possible by its time, then the others by their bounds."""
    return tuple(
        sorted(predictions, key=lambda p: (not p.possible, p.seconds, p.bound, p.candidate))
    )
