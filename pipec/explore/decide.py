"""The last word of an exploration: its winner as a plan, beside the plans of the baselines.

A prediction knows a stage by the sums of its nodes; a plan knows its graphs, its channels and what
its backward saves. So the fastest candidate and the fastest of plain data parallelism, GPipe and
1F1B, unless they are much slower, are made into plans, and the fastest plan that fits wins. What no
plan was made of is scaled by what making the winner changed.
"""

from dataclasses import dataclass, field, replace
from math import inf

from pipec.errors import PartitionError, PipecError
from pipec.explore.candidate import Candidate
from pipec.explore.explore import BASELINES, Exploration, order
from pipec.explore.make import Maker
from pipec.explore.predict import Prediction, overflow
from pipec.plan.model import Plan

MOST = 12
"""Most plans that are tried for the fastest of all, and for the fastest of each baseline."""
MUCH = 1.25
"""How much slower than the best plan a prediction is that no plan is made of: more than plans and
predictions, scaled by the winner's, differ from each other."""


@dataclass
class _Decision:
    """What is known while plans are made."""

    maker: Maker
    batch: int
    known: dict[Candidate, Prediction]
    plans: dict[Candidate, Plan] = field(default_factory=dict)
    attempts: int = 0

    @property
    def exploration(self) -> Exploration:
        return Exploration(self.batch, tuple(sorted(self.known.values(), key=order)))

    def make(self, candidate: Candidate) -> None:
        """Make the plan and put its figures in the place of the prediction's."""
        guess = self.known[candidate]
        try:
            self.maker.model.at(candidate.microbatch)
        except PipecError as error:
            self._refuse(candidate.microbatch, error)
            return
        self.attempts += 1
        try:
            plan = self.maker.make(candidate)
        except PipecError as error:
            self.known[candidate] = replace(guess, problem=f"no plan: {_first(error)}")
            eased = candidate.fitted or candidate.recompute or not candidate.trains
            if guess.possible and not eased:
                fitted = replace(candidate, fitted=True)
                self.known.setdefault(fitted, replace(guess, candidate=fitted))
            return
        self.known[candidate] = _as_planned(guess, plan)
        self.plans[candidate] = plan

    def _refuse(self, microbatch: int, error: PipecError) -> None:
        """No candidate with this microbatch can be made."""
        why = f"cannot be traced at {microbatch} samples: {_first(error)}"
        for c, p in self.known.items():
            if c.microbatch == microbatch and p.possible:
                self.known[c] = replace(p, problem=why)

    def scale(self, ratio: float) -> None:
        """Correct what no plan was made of."""
        for c, p in self.known.items():
            if not p.planned and p.possible:
                self.known[c] = replace(p, seconds=p.seconds * ratio)


def decide(exploration: Exploration, maker: Maker) -> tuple[Exploration, Plan]:
    """Make the winner's plan, and see that no baseline's is faster.

    Args:
        exploration: Predictions of all candidates.
        maker: Makes their plans.

    Returns:
        The exploration with the figures of the plans that were made, its best among them; and the
        plan of this best, which keeps the exploration.

    Raises:
        PartitionError: Nothing fits, or no candidate that does can be made into a plan.
    """
    known = {p.candidate: p for p in exploration.predictions}
    state = _Decision(maker, exploration.batch, known)
    _make_nearest(state)
    _make_fastest(state)
    for name in BASELINES:
        _make_baseline(state, name)
    _make_fastest(state)
    best = _settled(state)
    plan = state.plans.get(best.candidate) or maker.make(best.candidate)
    found = state.exploration
    return found, plan.replace(explored=found.tried())


def recalled(exploration: Exploration, maker: Maker) -> Plan:
    """The plan of an exploration that was decided before."""
    return maker.make(exploration.best.candidate).replace(explored=exploration.tried())


def _make_nearest(state: _Decision) -> None:
    """Where nothing is predicted to fit: plans of what comes closest, until one does fit.

    A plan's cut is chosen by what its stages really save; a prediction's is not.
    """
    if any(p.possible for p in state.known.values()):
        return
    over = [p for p in state.known.values() if p.peak_bytes]
    for p in sorted(over, key=_share_needed)[:MOST]:
        state.make(p.candidate)
        if state.known[p.candidate].possible:
            return
    _ = state.exploration.best  # tells that nothing fits


def _share_needed(p: Prediction) -> float:
    return max(b / m if m else inf for b, m in zip(p.peak_bytes, p.memory_bytes, strict=True))


def _make_fastest(state: _Decision) -> None:
    """Make plans until the fastest of all is one, `MOST` attempts in all."""
    while state.attempts < MOST:
        best = state.exploration.best
        if best.planned:
            return
        first = not state.plans
        state.make(best.candidate)
        made = state.known[best.candidate]
        if first and made.planned:
            state.scale(made.seconds / best.seconds)


def _make_baseline(state: _Decision, name: str) -> None:
    """Make plans until the fastest of a baseline is one, or is much slower than the fastest plan.

    `MOST` attempts, whatever was tried before.
    """
    for _ in range(MOST):
        found = state.exploration.baseline(name)
        least = min((state.known[c].seconds for c in state.plans), default=inf)
        if found is None or found.planned or found.seconds > MUCH * least:
            return
        state.make(found.candidate)


def _settled(state: _Decision) -> Prediction:
    """The fastest plan there is; what was predicted to be faster is put behind it."""
    plans = [p for p in state.exploration.predictions if p.planned and p.possible]
    if not plans:
        raise PartitionError(
            "none of the fastest candidates can be made into a plan",
            got=next(p.problem for p in state.known.values() if p.problem),
        )
    best = plans[0]
    for c, p in state.known.items():
        if not p.planned and p.possible and p.seconds <= best.seconds:
            why = f"predicted to take {p.seconds:.4g} s, but {MOST} like it came to no faster plan"
            state.known[c] = replace(p, problem=why)
    return best


def _as_planned(guess: Prediction, plan: Plan) -> Prediction:
    timeline = plan.timeline
    assert timeline is not None
    peak = timeline.peak_bytes
    memory = tuple(d.memory_bytes for d in plan.cluster.devices[: len(peak)])
    return replace(
        guess,
        seconds=timeline.seconds,
        bubble=timeline.bubble,
        peak_bytes=peak,
        memory_bytes=memory,
        planned=True,
        problem=overflow(peak, memory),
    )


def _first(error: PipecError) -> str:
    return " ".join(str(error).split())[:160]
