"""What memory limits cost: a 32-layer transformer, keep / offload / recompute against the bound.

Prints, for caps from 70 % to 10 % of all saved bytes and three host links, the time that is added
in % of the step by recomputing all, offloading all, a greedy rule, and our choice, and the lower
bound of the linear relaxation in the same run.
"""

import time

import numpy as np

from pipec.errors import PartitionError
from pipec.residency.choose import choose
from pipec.residency.play import play
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, Problem

LAYERS, D, FF, TOKENS, PEAK, MEMORY = 32, 4096, 11_008, 2048, 200e12, 1.5e12


def transformer(cap: float, bandwidth: float) -> Problem:
    """Eleven saved values per layer, bfloat16: six slots forward, twice as long backward."""
    wide, narrow = TOKENS * FF * 2, TOKENS * D * 2
    square, tall = 2 * TOKENS * D * D / PEAK, 2 * TOKENS * D * FF / PEAK
    attention = 4 * TOKENS * TOKENS * D / PEAK
    norm, product = 3 * narrow / MEMORY, 3 * wide / MEMORY
    layer = [  # (slot, bytes, seconds to recompute)
        (0, narrow, norm), (1, narrow, square), (1, narrow, square), (1, narrow, square),
        (2, narrow, attention), (3, narrow, square + narrow / MEMORY), (3, narrow, norm),
        (4, wide, tall), (4, wide, tall), (4, wide, product), (5, narrow, tall),
    ]  # fmt: skip
    slots = [norm, 3 * square, attention, square + norm, 2 * tall + product, tall]
    rows = [(6 * k + s, b, r) for k in range(LAYERS) for s, b, r in layer]
    produced, nbytes, again = (np.array(c) for c in zip(*rows, strict=True))
    forward = np.array(slots * LAYERS)
    return Problem(nbytes.astype(float), again.astype(float), produced, produced, forward,
                   2 * forward, cap * float(nbytes.sum()), bandwidth)  # fmt: skip


def greedy(p: Problem) -> np.ndarray:
    """Cheapest recompute per byte while it is nearly free, then offload from the first value."""
    decision = np.full(p.values, KEEP)
    excess = p.nbytes.sum() - p.cap
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
    """Print one row per link and cap."""
    print("link GB/s  cap %  recompute  offload   greedy     ours    bound      s")
    worst = 0.0
    for bandwidth in (12e9, 25e9, 50e9):
        for cap in (0.7, 0.5, 0.4, 0.3, 0.2, 0.1):
            p = transformer(cap, bandwidth)
            start = time.perf_counter()
            try:
                found = choose(p)
            except PartitionError:
                print(f"{bandwidth / 1e9:9.0f} {100 * cap:6.0f}  nothing fits")
                continue
            took = time.perf_counter() - start
            worst = max(worst, found.added - found.bound)
            print(
                f"{bandwidth / 1e9:9.0f} {100 * cap:6.0f} "
                f"{percent(p, np.full(p.values, RECOMPUTE))}  "
                f"{percent(p, np.full(p.values, OFFLOAD))} {percent(p, greedy(p))} "
                f"{100 * found.added:8.2f} {100 * found.bound:8.2f} {took:6.2f}"
            )
    print(f"largest distance to the bound: {100 * worst:.2f} points (want at most 1)")


if __name__ == "__main__":
    main()
