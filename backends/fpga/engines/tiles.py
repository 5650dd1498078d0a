"""Tiles: how many elements, tokens or channels fit how often.

Any factor may be used, the last tile overhangs (*ceil tiles*). Where tokens must end at a boundary
within a row (concatenation along channels), factors are divisors. Where the target can't be
reached the fastest factors are returned.
"""

import math
from functools import lru_cache

LOAD_SHARES = (2, 8)
"""A product of two streams may load the one that it holds in one of these shares of a frame."""


def ceil_div(a: int, b: int) -> int:
    """``ceil(a / b)`` of integers."""
    return -(-a // b)


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """Divisors, ascending."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*low, *(n // d for d in low)}))


@lru_cache(maxsize=4096)
def ceil_tiles(n: int) -> tuple[int, ...]:
    """Smallest tile for every distinct number of tiles, ascending."""
    return tuple(sorted({ceil_div(n, ceil_div(n, t)) for t in range(1, n + 1)}))


def lanes_for(channels: int, rows: int, target: int, passes: int = 1) -> int:
    """Fewest lanes with ``rows * ceil(channels/lanes) * passes <= target``; at most channels."""
    tokens = target // max(rows * passes, 1)
    return channels if tokens < 1 else ceil_div(channels, min(tokens, channels))


def divisor_for(allowed: int, channels: int, rows: int, target: int) -> int:
    """The same among the divisors of ``allowed``."""
    least = lanes_for(channels, rows, target)
    return next((d for d in divisors(allowed) if d >= least), allowed)
