"""Predict every candidate, keep what fits, choose the fastest, and say why each other one lost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from pipec.errors import PartitionError
from pipec.explore.candidate import Candidate
from pipec.explore.pool import Predict, Progress, predicting
from pipec.explore.predict import CAREFULLY, QUICKLY, Prediction
from pipec.explore.split import split_boundary
from pipec.explore.workload import Workload
from pipec.plan.model import Tried
from pipec.schedule.registry import plain_name

BASELINES = ("data parallel", "gpipe", "1f1b")
FITTED = 48
"""Most candidates whose saved values are fitted."""
NEAR = 1.1
"""How much longer than the fastest a candidate may take for a careful cut to be worth it."""
TOGETHER = 8
"""Candidates that are fitted before it is looked whether those behind them can still win."""


@dataclass(frozen=True)
class Exploration:
    """All predictions, fastest first; what is impossible comes last.

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
            PartitionError: Nothing fits; the closest is told with its numbers.
        """
        if self.predictions and self.predictions[0].possible:
            return self.predictions[0]
        closest = min(
            (p for p in self.predictions if p.peak_bytes),
            key=lambda p: max(b / m for b, m in zip(p.peak_bytes, p.memory_bytes, strict=True)),
            default=None,
        )
        raise PartitionError(
            "no candidate fits the cluster",
            got=f"{closest.candidate}: {closest.problem}" if closest else "no legal candidate",
            hint="name more devices, or a smaller batch",
        )

    def baseline(self, name: str) -> Prediction | None:
        """The fastest possible candidate of plain data parallelism, GPipe or 1F1B."""
        return next(
            (p for p in self.predictions if p.possible and _kind(p.candidate) == name), None
        )

    def tried_at_all(self, name: str) -> bool:
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
            f"{p.recomputed:.0%} recomputed, {p.offloaded:.0%} offloaded": p.seconds / 100
            if p.candidate.fitted
            else 0.0,
        }
        cause, weight = max(causes.items(), key=lambda c: c[1])
        return f"{slower}: {cause if weight > 0 else _more_work(p, best)}"

    def _whole(self, p: Prediction) -> Prediction | None:
        """The prediction without the split layer that ``p`` has."""
        if not p.candidate.split:
            return None
        wanted = replace(p.candidate, split="", share=Candidate.share)
        return next((q for q in self.predictions if q.candidate == wanted), None)

    def tried(self) -> tuple[Tried, ...]:
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
                "bubble": p.bubble,
                "peak_bytes": list(p.peak_bytes),
                "planned": p.planned,
                "why": self.why(p) if self.predictions[0].possible else p.problem,
            }
            for p in self.predictions
        ]


def explore(
    workload: Workload,
    candidates: Sequence[Candidate],
    batch: int,
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> Exploration:
    """Predict every candidate, and the fastest pipelined one with a boundary layer split.

    All are cut quickly; those that may win are cut with care.

    Args:
        workload: The model on its cluster.
        candidates: What to predict.
        batch: Samples of one step.
        workers: Processes; as many as cores if 0.
        progress: Told how far it is.
    """
    with predicting(workload, workers, progress or (lambda _: None)) as predict:
        found = predict(candidates, QUICKLY)
        found += _fitted(predict, found)
        found = _carefully(predict, found)
    found += split_boundary(workload, min(found, key=_pipelined_first, default=None))
    return Exploration(batch, tuple(sorted(found, key=order)))


def _fitted(predict: Predict, found: Sequence[Prediction]) -> list[Prediction]:
    """What does not fit, again with saved values that leave or are computed again.

    Fitting adds time, so those that would be fastest come first, some at a time on all cores, and
    those that are slower as they stand than what fits are not tried; nor are more than `FITTED`.
    """
    trained = [p for p in found if p.candidate.trains and not p.candidate.recompute]
    tight = [p for p in trained if p.peak_bytes and (p.loose_seconds or not p.possible)]
    over = sorted(
        ((p.loose_seconds or p.seconds, p.candidate) for p in tight),
    )[:FITTED]
    best = min((p.seconds for p in found if p.possible), default=inf)
    tried = list[Prediction]()
    for k in range(0, len(over), TOGETHER):
        some = [candidate for seconds, candidate in over[k : k + TOGETHER] if seconds < best]
        tried += predict([replace(c, fitted=True) for c in some], QUICKLY)
        best = min([best, *(p.seconds for p in tried if p.possible)])
    return tried


def _carefully(predict: Predict, found: Sequence[Prediction]) -> list[Prediction]:
    """The predictions, with more work for the cuts of those that are nearly the fastest."""
    near = NEAR * min((p.seconds for p in found if p.possible), default=0.0)
    cut = [
        p.candidate for p in found if p.possible and p.seconds <= near and p.candidate.stages > 1
    ]
    again = {p.candidate: p for p in predict(cut, CAREFULLY)}
    return [min(p, again.get(p.candidate, p), key=order) for p in found]


def _more_work(p: Prediction, best: Prediction) -> str:
    """Why devices that are not idle for longer take longer."""
    mine, others = p.candidate, best.candidate
    fewer = mine.depth * mine.replicas, others.depth * others.replicas
    if fewer[0] < fewer[1]:
        return f"devices in use: {fewer[0]} against {fewer[1]}"
    if mine.microbatch < others.microbatch:
        return f"microbatches of {mine.microbatch} samples against {others.microbatch}"
    busy, least = (q.seconds * (1 - q.bubble) for q in (p, best))
    return f"a device computes {busy:.3g} s against {least:.3g} s"


def _kind(c: Candidate) -> str:
    """Which baseline a candidate is an instance of, or the name of its schedule.

    On devices that stream, the order of 1F1B is called ``1f1b-as``.
    """
    plain = plain_name(c.schedule)
    return "data parallel" if c.depth == 1 else {"1f1b-as": "1f1b"}.get(plain, plain)


def order(p: Prediction) -> tuple[bool, float, Candidate]:
    """Fastest first, what is impossible last."""
    return not p.possible, p.seconds, p.candidate


def _pipelined_first(p: Prediction) -> tuple[bool, bool, float, Candidate]:
    return p.candidate.depth == 1, *order(p)
