"""Time the candidates that may be the fastest, keep what fits, and say why each other one lost."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Any

from pipec.errors import PartitionError, PipecError
from pipec.explore.candidate import Candidate, ease_memory, in_parts
from pipec.explore.make import Maker, passes_of
from pipec.explore.predict import Prediction, Predictor, fastest_first, not_timed
from pipec.passes.split_layer import boundary_layers
from pipec.plan.model import Plan, Tried
from pipec.schedule.registry import SYNTHESIZED, plain_name

BASELINES = ("data parallel", "gpipe", "1f1b")
OF_ALIKE, OF_KIND = 24, 6
"""Most candidates that are timed once something fits: on alike devices; more of each schedule."""
MADE, MADE_AT_ALL = 8, 96
"""Most plans that are made to time their candidates: once something fits, and before that."""

Progress = Callable[[int, int], None]
"""Told how many candidates are done, of how many."""


@dataclass(frozen=True)
class Exploration:
    """All predictions, fastest first; what is impossible or was not timed comes last.

    Attributes:
        batch: Samples of one step.
        predictions: One per candidate.
    """

    batch: int
    predictions: tuple[Prediction, ...]

    @property
    def best(self) -> Prediction:
        """The fastest that fits.

        Raises:
            PartitionError: Nothing fits; the message says why the first candidate does not.
        """
        if self.predictions and self.predictions[0].possible:
            return self.predictions[0]
        first = next((p for p in self.predictions if p.tight), None)
        first = first or next(iter(self.predictions), None)
        raise PartitionError(
            "no candidate fits the cluster",
            got=f"{first.candidate}: {first.problem}" if first else "no legal candidate",
            hint="name more devices, or a smaller batch",
        )

    def baseline(self, name: str) -> Prediction | None:
        """The fastest possible candidate of plain data parallelism, GPipe or 1F1B."""
        return next(
            (p for p in self.predictions if p.possible and _kind(p.candidate) == name), None
        )

    def has_tried(self, name: str) -> bool:
        """Whether a baseline is among the candidates, possible or not."""
        return any(_kind(p.candidate) == name for p in self.predictions)

    def why(self, p: Prediction) -> str:
        """Why a prediction did not win, in words."""
        if not p.possible:
            return p.problem
        best = self.best
        if p is best:
            return "chosen"
        slower = f"{p.seconds / best.seconds - 1:.1%} slower"
        whole = self._whole(p)
        if whole and whole.seconds <= p.seconds:
            return f"{slower}: splitting {p.candidate.split} costs more than it balances"
        if slower == "0.0% slower":
            return "as fast"
        idle = p.bubble - best.bubble
        causes = {
            f"bubble {p.bubble:.0%} against {best.bubble:.0%}": idle * p.seconds * (idle > 0.01),
            f"all-reduce {p.reduce_seconds:.3g} s": p.reduce_seconds - best.reduce_seconds,
            "recomputes the forward": p.seconds / 4 if p.candidate.recompute else 0.0,
            "saved values leave or are recomputed": p.seconds / 100 * p.candidate.fitted,
        }
        cause, weight = max(causes.items(), key=lambda c: c[1])
        return f"{slower}: {cause if weight > 0 else _more_work(p, best)}"

    def _whole(self, p: Prediction) -> Prediction | None:
        """The prediction without the split layer that ``p`` has."""
        if not p.candidate.split:
            return None
        wanted = replace(p.candidate, split="", share=Candidate.share)
        return next((q for q in self.predictions if q.candidate == wanted), None)

    def summarize(self) -> tuple[Tried, ...]:
        """What a plan keeps: one row per candidate, fastest first."""
        return tuple(
            Tried(
                str(p.candidate),
                p.seconds if p.seconds < inf else None,
                p.bubble,
                p.peak_bytes,
                self.why(p),
            )
            for p in self.predictions
        )

    def to_json(self) -> list[dict[str, Any]]:
        """One record per candidate, fastest first."""
        return [
            {
                **asdict(p.candidate),
                "seconds": p.seconds if p.possible else None,
                "samples_per_second": self.batch / p.seconds if p.possible else None,
                "bubble": p.bubble if p.possible else None,
                "peak_bytes": list(p.peak_bytes),
                "planned": p.planned,
                "why": self.why(p) if self.predictions[0].possible else p.problem,
            }
            for p in self.predictions
        ]


def explore(
    maker: Maker,
    candidates: Sequence[Candidate],
    batch: int,
    progress: Progress | None = None,
    *,
    synthesized: bool = False,
    parts: bool = False,
) -> tuple[Exploration, Plan]:
    """Time all candidates that may be the fastest, and make the plan of the one that is.

    Args:
        maker: Makes plans of candidates.
        candidates: What may be chosen.
        batch: Samples of one step.
        progress: Told how far it is.
        synthesized: Whether the fastest pipeline is tried with an order made from its costs.
        parts: Whether the fastest of those that memory holds back is tried with stages in parts.

    Returns:
        All predictions; the plan of the best, which keeps them.

    Raises:
        PartitionError: Nothing fits.
    """
    search = _Search(Predictor(maker), progress or (lambda done, of: None))
    search.bound(candidates)
    search.time_all()
    for name in sorted(set(map(_kind, search.found))):
        search.time([c for c in search.found if _kind(c) == name], OF_KIND)
    search.split()
    if synthesized:
        search.synthesize()
    if parts:
        search.part()
    while True:
        found = Exploration(batch, fastest_first(list(search.found.values())))
        best = found.best
        try:
            if not best.planned:
                search.found[best.candidate] = search.predictor.simulate(best.candidate, best.bound)
                continue
        except PipecError as error:
            why = f"no plan: {' '.join(str(error).split())[:160]}"
            search.found[best.candidate] = replace(best, seconds=inf, problem=why)
            search.time(ease_memory(best.candidate), OF_KIND)
            search.time_all()
            continue
        return found, search.predictor.make(best.candidate).replace(explored=found.summarize())


@dataclass
class _Search:
    """What is known so far.

    Attributes:
        predictor: Bounds and times candidates.
        progress: Told how far it is.
        found: A prediction per candidate; those that are not timed have a problem that says so.
        waiting: Candidates that are not timed.
        made: Plans that were made to time their candidates.
    """

    predictor: Predictor
    progress: Progress
    found: dict[Candidate, Prediction] = field(default_factory=dict)
    waiting: dict[Candidate, float] = field(default_factory=dict)
    made: int = 0

    def bound(self, candidates: Iterable[Candidate]) -> None:
        """Bound the candidates; those of a microbatch that cannot be traced are impossible."""
        for c in candidates:
            try:
                bound, guess = self.predictor.bound(c), self.predictor.guess(c)
            except PipecError as error:
                why = f"cannot be traced at {c.microbatch} samples: {error}"
                self.found[c] = Prediction(c, inf, problem=" ".join(why.split())[:200])
                continue
            self._wait(c, bound, guess)

    def time_all(self) -> None:
        """Time candidates of every choice of devices, as many of each whatever others there are.

        So what is found on some devices is found where there are more of them, too. Those that only
        their plans time are few, and come in one order.
        """
        alike = dict[tuple[object, ...], list[Candidate]]()
        for c in sorted(self.waiting, key=lambda c: (self.waiting[c], c)):
            key = () if self._needs_plan(c) else (c.depth, c.replicas, c.order)
            alike.setdefault(key, []).append(c)
        for group in alike.values():
            self.time(group, OF_ALIKE, beside=self.found)
        if not any(p.possible for p in self.found.values()):
            self.time(self.found, 0)

    def time(
        self, candidates: Iterable[Candidate], most: int, beside: Collection[Candidate] = ()
    ) -> None:
        """Time some candidates, in the order of their bounds until none can be the fastest of them.

        What memory holds back is tried eased too, as nothing less can make it faster.

        Args:
            candidates: Bounded before; what is timed already is only compared with.
            most: How many are timed at most; if they are all that there is, once one is possible.
            beside: What they are compared with, too.
        """
        group = set(candidates)
        heap = sorted((self.waiting[c], c) for c in group & self.waiting.keys())
        known = group.union(beside) & self.found.keys()
        best = min((self.found[c].seconds for c in known), default=inf)
        done = 0
        while heap and (done < most or (best == inf and not beside)):
            _, c = heappop(heap)
            bound = self.found[c].bound
            planned = self._needs_plan(c)
            if bound >= best or (planned and self.made >= (MADE if best < inf else MADE_AT_ALL)):
                continue
            p = self.predictor.predict(c, bound, best)
            self.made += p.planned
            done += 1
            del self.waiting[c]
            self.found[c] = p
            if not p.timed:
                self.waiting[c] = p.bound
            best = min(best, p.seconds)
            self.progress(len(self.found) - len(self.waiting), len(self.found))
            least = bound if p.tight else max(bound, p.loose_seconds)
            for other in ease_memory(c) if least < best else ():
                if other not in self.found:
                    self._wait(other, least, max(least, self.predictor.guess(c)))
                    heappush(heap, (self.waiting[other], other))

    def _needs_plan(self, c: Candidate) -> bool:
        """Whether it is timed by its plan alone."""
        return c.eased or c.asynchronous or not self.found[c].bound

    def split(self) -> None:
        """Time the fastest pipeline with a boundary layer split."""
        pipelines = [p for p in self.found.values() if p.possible and p.candidate.stages > 1]
        if pipelines:
            base = min(pipelines, key=lambda p: (p.seconds, p.candidate)).candidate
            for c in split_candidates(self.predictor.maker, base):
                self.found[c] = self.predictor.predict(c)

    def synthesize(self) -> None:
        """Time the fastest pipeline of one stage per device in an order made from its costs."""
        possible = {c: p.seconds for c, p in self.found.items() if p.possible and c.trains}
        pipelines = [(s, c) for c, s in possible.items() if c.stages == c.depth > 1]
        if pipelines:
            made = replace(min(pipelines)[1], schedule=SYNTHESIZED)
            bound = self.predictor.bound(made)
            if 0 < bound < min(possible.values()):  # none is known of devices that stream
                self.found[made] = self.predictor.predict(made, bound)

    def part(self) -> None:
        """Time the fastest that memory holds back with stages in parts: values leave in between."""
        found = [p for p in self.found.values() if in_parts(p.candidate)]
        best = min((p.seconds for p in self.found.values()), default=inf)
        for base in fastest_first(found)[:1]:
            for c in in_parts(base.candidate) if 0 < base.bound < best else ():
                self.found[c] = self.predictor.predict(c, base.bound)

    def _wait(self, c: Candidate, bound: float, guess: float) -> None:
        self.found[c], self.waiting[c] = not_timed(c, bound), guess


def _more_work(p: Prediction, best: Prediction) -> str:
    """Why devices that are not idle for longer take longer."""
    tried, others = p.candidate, best.candidate
    fewer = tried.depth * tried.replicas, others.depth * others.replicas
    if fewer[0] < fewer[1]:
        return f"devices in use: {fewer[0]} against {fewer[1]}"
    if tried.microbatch < others.microbatch:
        return f"microbatches of {tried.microbatch} samples against {others.microbatch}"
    busy, least = (q.seconds * (1 - q.bubble) for q in (p, best))
    return f"a device computes {busy:.3g} s against {least:.3g} s"


def _kind(c: Candidate) -> str:
    """Which baseline a candidate is an instance of, or the name of its schedule.

    On devices that stream, the order of 1F1B is called ``1f1b-as``.
    """
    plain = plain_name(c.schedule)
    return "data parallel" if c.depth == 1 else {"1f1b-as": "1f1b"}.get(plain, plain)


LEAST = 0.05
"""Smallest part of a layer that is worth a cut of its own."""


def split_candidates(maker: Maker, base: Candidate) -> Iterator[Candidate]:
    """A candidate with the layers split that lie next to a neighbour of its slowest stage.

    Each is split into two equal parts, and so that the two stages get even. None where there is
    no boundary or nothing to split.
    """
    passes = passes_of(base)
    names = [p.name for p in passes]
    try:
        whole = maker.make(base, passes=passes[: names.index("partition") + 1])
    except PipecError:  # the candidate itself reports that it cannot be cut
        return
    assert whole.partition is not None
    assert whole.costs is not None
    loads, of = whole.partition.seconds, whole.partition.stage_of
    slow = max(range(len(loads)), key=lambda k: loads[k])
    kind = whole.cluster.devices[slow % whole.cluster.size].kind
    back = whole.costs.backward_of(kind) if maker.trains else {}
    for neighbour, layer in boundary_layers(whole.graph, of, loads).items():
        seconds = whole.costs.of(kind)[layer] + back.get(layer, 0.0)
        part = (loads[slow] - loads[neighbour]) / 2 / seconds if seconds else 0.0
        if LEAST <= part <= 1 - LEAST:
            share = round(part if neighbour < slow else 1 - part, 3)
            yield replace(base, split=layer, share=share)
        yield replace(base, split=layer, share=0.5)
