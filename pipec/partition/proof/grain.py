"""Loads that can be reached at all, where work comes in whole grains.

Some device holds at least total / devices, and what it holds is a sum of units. If all work is made
of grains (50 equal units, times in whole milliseconds), the least such sum is a better bound: 50
units of one second on 4 devices need 13 seconds, not 12.5.
"""

from math import inf

import numpy as np

from pipec.partition.costgraph import FloatArray

GRAINS = 1 << 18
"""More in all are not told from work of any size."""
NEAR = 1e-10  # of a grain or of a number: as good as whole


def least_share(work: FloatArray, devices: int) -> float:
    """Least sum of units that is no less than total / devices.

    Args:
        work: Of every unit; any numbers >= 0.
        devices: How many share it.
    """
    share = float(work.sum()) / devices
    grain = common_grain(work)
    if not 0 < grain < inf:
        return share
    whole, count = np.unique(np.round(work / grain).astype(np.int64), return_counts=True)
    need = -(-int(whole @ count) // devices)
    over = _sums(whole.tolist(), count.tolist()) >> need
    least = need + (over & -over).bit_length() - 1
    return max(share, float(least * grain * (1 - NEAR)))


def _sums(whole: list[int], count: list[int]) -> int:
    """Bit s: some units have s grains together."""
    sums = 1
    for size, left in zip(whole, count, strict=True):
        rest, taken = left, 1
        while rest:
            taken = min(taken, rest)
            sums |= sums << size * taken
            rest -= taken
            taken *= 2
    return sums


def common_grain(work: FloatArray) -> float:
    """Largest number that divides all work, by Euclid's algorithm; 0 if it is too small to matter.

    Infinite if there is no work.
    """
    least, total = float(work.sum()) / GRAINS, float(work.sum())
    sizes = np.unique(work[work > 0])
    if not np.isfinite(total):
        return 0.0
    grain = inf if not len(sizes) else float(sizes[0])
    for size in sizes.tolist():
        a, b = size, grain
        while b > NEAR * size:
            a, b = b, abs(a - b * round(a / b))
        grain = a
        if grain < least:
            return 0.0
    off = np.abs(sizes / grain - np.round(sizes / grain))
    return grain if not len(sizes) or bool((off <= NEAR * sizes / grain).all()) else 0.0
