"""What can be wrong with tables of weights, whatever file they lie in."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Change = tuple[str, str, dict[str, Array]]
"""Kind of the fault, where, and the tables that change."""


def changes(tables: Mapping[str, Array], rng: np.random.Generator) -> Iterator[Change]:
    """Every fault of every table that changes it at all.

    Args:
        tables: By name, floats.
        rng: For what a stale version differs by.
    """
    for name, table in tables.items():
        for kind, change in _KINDS.items():
            wrong = change(table)
            if wrong is not None and not np.array_equal(wrong, table):
                yield kind, name, {name: wrong}
    for a, b in combinations(tables, 2):
        if tables[a].shape == tables[b].shape and not np.array_equal(tables[a], tables[b]):
            yield "two weight tables swapped", f"{a}, {b}", {a: tables[b], b: tables[a]}
    if tables:  # all of a stage's weights as they were an update earlier
        older = {n: t - 1e-2 * rng.normal(size=t.shape).astype(t.dtype) for n, t in tables.items()}
        yield "a stale version", ", ".join(tables)[:40], older


def _channels(table: Array) -> Array | None:
    if table.ndim < 1 or len(table) < 2:
        return None
    wrong = table.copy()
    wrong[[0, 1]] = table[[1, 0]]
    return wrong


def _rolled(table: Array) -> Array | None:
    return np.roll(table, 1) if table.ndim == 1 and len(table) > 1 else None


def _transposed(table: Array) -> Array | None:
    square = table.ndim == 2 and table.shape[0] == table.shape[1]
    return np.ascontiguousarray(table.T) if square else None


_KINDS: Mapping[str, Callable[[Array], Array | None]] = {
    "a zeroed table": np.zeros_like,
    "two channels swapped": _channels,
    "a bias off by one row": _rolled,
    "a scale x 1.01": lambda t: t * t.dtype.type(1.01),
    "a transposed matrix": _transposed,
}
