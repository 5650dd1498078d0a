"""What can be wrong with tables of weights, whatever file they lie in."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ZERO_POINT = "a zero point + 1"
Change = tuple[str, str, dict[str, Array]]
"""Kind of the fault, where, and the tables that change."""


def changes(
    tables: Mapping[str, Array], rng: np.random.Generator, readers: Mapping[str, int] | None = None
) -> Iterator[Change]:
    """Every fault of every table that changes it at all.

    A zero point that several nodes read moves what is written and what is read alike: no fault.

    Args:
        tables: By name, floats and integers.
        rng: For what a stale version differs by.
        readers: Number of nodes that read a table.
    """
    for name, table in tables.items():
        for kind, change in _KINDS.items():
            wrong = change(table)
            if kind == ZERO_POINT and (readers or {}).get(name) != 1:
                continue
            if wrong is not None and not np.array_equal(wrong, table):
                yield kind, name, {name: np.asarray(wrong)}
    for a, b in combinations(tables, 2):
        if tables[a].shape == tables[b].shape and not np.array_equal(tables[a], tables[b]):
            yield "two weight tables swapped", f"{a}, {b}", {a: tables[b], b: tables[a]}
    floats = {n: t for n, t in tables.items() if t.dtype.kind == "f"}
    if floats:  # all of a stage's weights as they were an update earlier
        older = {
            n: np.asarray(t - 1e-2 * rng.normal(size=t.shape).astype(t.dtype))
            for n, t in floats.items()
        }
        yield "a stale version", ", ".join(floats)[:40], older


def _channels(table: Array) -> Array | None:
    if table.ndim < 1 or len(table) < 2:
        return None
    wrong = table.copy()
    wrong[[0, 1]] = table[[1, 0]]
    return wrong


def _roll(table: Array) -> Array | None:
    return np.roll(table, 1) if table.ndim == 1 and len(table) > 1 else None


def _transpose(table: Array) -> Array | None:
    square = table.ndim == 2 and table.shape[0] == table.shape[1]
    return np.ascontiguousarray(table.T) if square else None


def _shift(table: Array) -> Array | None:
    """One more, of numbers of 8 bits; the largest become one less."""
    if table.dtype.itemsize != 1 or table.dtype.kind == "b" or table.ndim > 1:
        return None
    top = np.iinfo(table.dtype).max
    return np.where(table == top, top - 1, table + (table < top)).astype(table.dtype)


def _exchange(table: Array) -> Array | None:
    """Two single numbers of 8 bits in each other's place."""
    if table.dtype.itemsize != 1 or table.dtype.kind == "b" or table.size < 4:
        return None
    wrong = table.copy().reshape(-1)
    places = [1, table.size // 2]
    wrong[places] = wrong[places[::-1]]
    return wrong.reshape(table.shape)


_KINDS: Mapping[str, Callable[[Array], Array | None]] = {
    "a zeroed table": np.zeros_like,
    "two channels swapped": _channels,
    "a bias off by one row": _roll,
    "a scale x 1.01": lambda t: t * t.dtype.type(1.01) if t.dtype.kind == "f" else None,
    ZERO_POINT: _shift,
    "a transposed matrix": _transpose,
    "two 8-bit numbers swapped": _exchange,
}
