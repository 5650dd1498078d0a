"""Keep or recompute, few values: all decisions, the fastest first, until one fits.

The program knows what recomputed values hold at one moment each, not what a backward that computes
them in its own order holds. Where that decides, its bound is weak. Here every decision is asked for
its working bytes: the first that fits is the optimum, and no decision before it fits.
"""

import numpy as np

from pipec.residency.play import Played, play
from pipec.residency.problem import KEEP, RECOMPUTE, Problem

VALUES = 16
"""Most values that can be recomputed: there are two to this power decisions."""
CHECKS = 256
"""Most decisions that are asked for their working bytes, which may be slow."""


def exhausted(problem: Problem, best: Played, least: float) -> tuple[Played, float]:
    """The optimum and a bound on the seconds of one forward and one backward.

    Nothing moves, so that k microbatches in flight hold k times what is kept, and the working
    bytes of one. Where these fit at their least, a decision is asked for them.

    Args:
        problem: Whose values do not move.
        best: The best decision so far.
        least: A bound so far.

    Returns:
        The optimum, or ``best`` if there are too many decisions; and the bound: the optimum's
        seconds, or those below which nothing fits.
    """
    able = np.flatnonzero(np.isfinite(problem.recompute))
    if len(able) > VALUES or problem.moves:
        return best, least
    chosen = ((np.arange(2 ** len(able))[:, None] >> np.arange(len(able))) & 1).astype(float)
    seconds = problem.step_seconds + chosen @ problem.recompute[able]
    kept = float(problem.nbytes.sum()) - chosen @ problem.nbytes[able]
    working = (chosen @ problem.alive[:, able].T).max(axis=1, initial=0.0)
    fits = problem.flight * kept + working <= problem.cap * (1 + 1e-12)
    order = np.flatnonzero(fits & (seconds < best.seconds * (1 - 1e-12)))
    order = order[np.argsort(seconds[order], kind="stable")]
    for number in order[:CHECKS].tolist():
        decision = np.full(problem.values, KEEP, dtype=np.int64)
        decision[able[chosen[number] > 0]] = RECOMPUTE
        found = play(problem, decision)
        if found.seconds < np.inf:
            return found, found.seconds
    if len(order) > CHECKS:
        return best, max(least, float(seconds[order[CHECKS]]))
    return best, best.seconds
