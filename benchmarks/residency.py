"""What memory limits cost: a 32-layer transformer, keep / offload / recompute against the bound.

Prints, for 2, 4 and 8 microbatches in flight, three host links and caps from 70 % to 10 % of all
that they save, the time that is added in % of the step by recomputing all, offloading all, a greedy
rule, and our choice, and the lower bound of the program over whole values in the same run. Copies
run behind whole forwards and beside whole actions, as the passes insert them.
"""

import time

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.choose import choose
from pipec.residency.play import play
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, Problem

LAYERS, D, FF, TOKENS, PEAK, MEMORY = 32, 4096, 11_008, 2048, 200e12, 1.5e12


def transformer(cap: float, bandwidth: float, flight: int) -> Problem:
    """Eleven saved values per layer, bfloat16; the backward takes twice the forward."""
    wide, narrow = TOKENS * FF * 2, TOKENS * D * 2
    square, tall = 2 * TOKENS * D * D / PEAK, 2 * TOKENS * D * FF / PEAK
    attention = 4 * TOKENS * TOKENS * D / PEAK
    norm, product = 3 * narrow / MEMORY, 3 * wide / MEMORY
    layer = [  # (bytes, seconds to recompute)
        (narrow, norm), (narrow, square), (narrow, square), (narrow, square),
        (narrow, attention), (narrow, square + narrow / MEMORY), (narrow, norm),
        (wide, tall), (wide, tall), (wide, product), (narrow, tall),
    ]  # fmt: skip
    forward = LAYERS * (norm + 3 * square + attention + square + norm + 2 * tall + product + tall)
    nbytes, again = (np.array(c, float) for c in zip(*(layer * LAYERS), strict=True))
    limit = cap * flight * float(nbytes.sum())
    return Problem(nbytes, again, forward, 2 * forward, limit, bandwidth, flight)


def greedy(p: Problem) -> np.ndarray:
    """Cheapest recompute per byte while it is nearly free, then offload from the first value."""
    decision = np.full(p.values, KEEP)
    excess = p.nbytes.sum() - p.cap / p.flight
    for v in np.argsort(p.recompute / p.nbytes):
        if excess <= 0 or p.recompute[v] > 1e-4:
            break
        decision[v], excess = RECOMPUTE, excess - p.nbytes[v]
    for v in range(p.values):
        if excess > 0 and decision[v] == KEEP:
            decision[v], excess = OFFLOAD, excess - p.nbytes[v]
    return decision


def percent(p: Problem, decision: np.ndarray) -> str:
    """Added time in % of the step, or a dash where the cap is not kept."""
    seconds = play(p, decision).seconds
    return f"{100 * (seconds / p.step_seconds - 1):8.2f}" if np.isfinite(seconds) else "       -"


def main() -> None:
    """Print one row per microbatches in flight, link and cap."""
    print("flight  link GB/s  cap %  recompute  offload   greedy     ours    bound      s")
    worst = 0.0
    for flight in (2, 4, 8):
        for bandwidth in (12e9, 25e9, 50e9):
            for cap in (0.7, 0.5, 0.3, 0.1):
                worst = max(worst, row(flight, bandwidth, cap))
    print(f"largest distance to the bound: {100 * worst:.2f} points (want at most 1)")


def row(flight: int, bandwidth: float, cap: float) -> float:
    """Print one row; the distance to the bound, as a share of the step."""
    p = transformer(cap, bandwidth, flight)
    head = f"{flight:6} {bandwidth / 1e9:10.0f} {100 * cap:6.0f}"
    start = time.process_time()
    try:
        found = choose(p)
    except PartitionError:
        print(f"{head}  nothing fits")
        return 0.0
    took = time.process_time() - start
    print(
        f"{head} {percent(p, np.full(p.values, RECOMPUTE))}  "
        f"{percent(p, np.full(p.values, OFFLOAD))} {percent(p, greedy(p))} "
        f"{100 * found.added:8.2f} {100 * found.bound:8.2f} {took:6.2f}"
    )
    return found.added - found.bound


if __name__ == "__main__":
    main()
