"""What `make test` takes of long lists of cases; `make exhaustive` takes all of them.

A sample is the same each time. PIPEC_TESTS=all asks for all.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from hypothesis import settings

ALL = os.environ.get("PIPEC_TESTS") == "all"
FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
Row = tuple[Any, ...]
T = TypeVar("T")


def some(count: int, values: Iterable[T], *kept: T) -> list[T]:
    """So many of the values, evenly spread from the first to the last, and those named."""
    every = list(values)
    if ALL or len(every) <= count:
        return every
    step = (len(every) - 1) / max(count - 1, 1)
    places = {round(k * step) for k in range(count)}
    return [v for k, v in enumerate(every) if k in places or v in kept]


def without(values: Iterable[T], others: Iterable[T]) -> list[T]:
    """All but those whose faults are seen without them."""
    left_out = [] if ALL else list(others)
    return [v for v in values if v not in left_out]


def each(*columns: Iterable[Any], times: int = 1) -> list[Row]:
    """Rows in which every value stands as often as said, each time beside other ones."""
    every = [list(column) for column in columns]
    most = max(map(len, every))
    if ALL:
        return list(itertools.product(*every))
    rows = itertools.product(range(times), range(most))
    return list(dict.fromkeys(tuple(_turned(c, k, t, most) for c in every) for t, k in rows))


def _turned(column: Sequence[Any], k: int, time: int, most: int) -> Any:
    """The longest column stands still; others go on by one with each round of theirs."""
    size = len(column)
    return column[k] if size == most else column[(k + k // size + time) % size]


def pairs(*columns: Iterable[Any]) -> list[Row]:
    """Rows in which any two values of two columns meet at least once."""
    product = list(itertools.product(*columns))
    if ALL:
        return product
    left, found = {pair for row in product for pair in _pairs(row)}, list[Row]()
    while left:
        found.append(max(product, key=lambda row: len(left & _pairs(row))))
        left -= _pairs(found[-1])
    return found


def _pairs(row: Row) -> set[tuple[tuple[int, Any], ...]]:
    return set(itertools.combinations(enumerate(row), 2))


def examples(every: int, few: int) -> settings:
    """As many random examples as `make fuzz` and `make exhaustive` draw; few in `make test`."""
    return settings(max_examples=every if ALL or FUZZ else few, deadline=None)
