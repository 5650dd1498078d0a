"""Predicting many candidates of one workload on all cores."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat

from pipec.explore.candidate import Candidate
from pipec.explore.predict import Prediction, Predictor
from pipec.explore.workload import Workload

Progress = Callable[[int], None]
"""Called with the number of candidates that were predicted since the last call."""

Predict = Callable[[Sequence[Candidate], int], list[Prediction]]
"""Candidates and the work for each cut to predictions; see `pipec.explore.predict.Predictor`."""

CHUNK = 16
"""Candidates that a process predicts at a time."""
_predictor: Predictor | None = None


@contextmanager
def predicting(workload: Workload, workers: int, progress: Progress) -> Iterator[Predict]:
    """A function that predicts candidates, in ``workers`` processes; as many as cores if 0.

    A pool that is entered once keeps what its processes have cut and scheduled.
    """
    global _predictor  # noqa: PLW0603 - inherited by the forked workers, never sent to them
    workers = workers or multiprocessing.cpu_count()
    _predictor = predictor = Predictor(workload)
    try:
        if workers == 1:
            yield lambda candidates, work: _serial(predictor, candidates, work, progress)
            return
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            yield lambda candidates, work: _parallel(pool, workers, candidates, work, progress)
    finally:
        _predictor = None


def _serial(
    predictor: Predictor, candidates: Sequence[Candidate], work: int, progress: Progress
) -> list[Prediction]:
    found = []
    for candidate in candidates:
        found.append(predictor.predict(candidate, work))
        progress(1)
    return found


def _parallel(
    pool: ProcessPoolExecutor,
    workers: int,
    candidates: Sequence[Candidate],
    work: int,
    progress: Progress,
) -> list[Prediction]:
    """In chunks whose candidates share cuts, small enough to keep all processes busy."""
    ordered = sorted(candidates, key=lambda c: (c.microbatch, c.depth, c.recompute))
    size = max(1, min(CHUNK, len(ordered) // workers))
    chunks = [ordered[k : k + size] for k in range(0, len(ordered), size)]
    found: list[Prediction] = []
    for predictions in pool.map(_predict_chunk, chunks, repeat(work)):
        found += predictions
        progress(len(predictions))
    return found


def _predict_chunk(candidates: Sequence[Candidate], work: int) -> list[Prediction]:
    assert _predictor is not None
    return [_predictor.predict(c, work) for c in candidates]
