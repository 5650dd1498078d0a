"""Prefixes of several orders that agree on a few ideals, the borders of zones.

Within a zone a cut may come from any order; every cut of one zone lies inside every cut of a later
one.

::

    order 0   a b c | d e f g | h i j       zone borders at 3 and 7:
    order 1   b a c | f d e g | i h j       {a, b, c, f} and {a .. g, h} may be cuts of one pipeline
"""

from collections.abc import Sequence

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.search.family import Family, PrefixFamily, passing_spans
from pipec.partition.units import Units


def zoned(orders: Sequence[IntArray], borders: IntArray) -> list[IntArray]:
    """Every order rearranged so that it agrees with the first one on the prefixes at the borders.

    Args:
        orders: Linear orders of the same units.
        borders: Ascending lengths of prefixes of ``orders[0]``.
    """
    n = len(orders[0])
    zone = np.empty(n, np.int64)
    zone[orders[0]] = np.searchsorted(borders, np.arange(n), "right")
    place = np.empty(n, np.int64)
    found = [orders[0]]
    for order in orders[1:]:
        place[order] = np.arange(n)
        found.append(np.lexsort((place, zone)))
    return found


class MixedFamily(Family):
    """Some prefixes of each of several zoned orders, as one family.

    Args:
        units: The DAG.
        ref: Work measure, [units].
        orders: From ``zoned``.
        borders: The same borders.
        windows: (least, largest) ref of the prefixes wanted; the two ends are always there.
    """

    def __init__(
        self,
        units: Units,
        ref: FloatArray,
        orders: Sequence[IntArray],
        borders: IntArray,
        windows: Sequence[tuple[float, float]],
    ) -> None:
        self._parts = [PrefixFamily(units, ref, order) for order in orders]
        n = units.size
        part: list[IntArray] = []
        rows: list[IntArray] = []
        for number, family in enumerate(self._parts):
            wanted = np.zeros(n + 1, bool)
            for low, high in windows:
                a, b = np.searchsorted(family.ref, [low, high])
                wanted[a : b + 1] = True
            wanted[borders] &= number == 0  # shared
            wanted[[0, n]] = number == 0
            rows.append(np.flatnonzero(wanted))
            part.append(np.full(len(rows[-1]), number))
        which, row = np.concatenate(part), np.concatenate(rows)
        measure = self._gather(which, row, [f.ref for f in self._parts])
        order = np.lexsort((which, row, measure))
        self._part, self._row = which[order], row[order]
        # zones count by two, so that a border lies between those on its sides
        self._zone = np.searchsorted(borders, self._row, "left") + np.searchsorted(
            borders, self._row, "right"
        )
        self._zone[self._row == 0] -= 1
        self._zone[self._row == n] += 1
        self.ref = measure[order]
        self.size = self._row
        at = (self._part, self._row)
        self.work = self._gather(*at, [f.work for f in self._parts])
        self.blocked = self._gather(*at, [f.blocked for f in self._parts])
        self.weight = self._gather(*at, [f.weight for f in self._parts])
        self.activation = self._gather(*at, [f.activation for f in self._parts])
        self.cut = self._gather(*at, [f.cut for f in self._parts])

    @staticmethod
    def _gather(part: IntArray, row: IntArray, arrays: list[FloatArray]) -> FloatArray:
        """One value per (part, row), along the last axis."""
        found = np.empty((*arrays[0].shape[:-1], len(row)))
        for number, array in enumerate(arrays):
            here = part == number
            found[..., here] = array[..., row[here]]
        return found

    def passing(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """By pairs of orders: pins before a source are seen by its own order, and so behind."""
        found = np.zeros((len(sources), len(targets)))
        for a, before in enumerate(self._parts):
            i = np.flatnonzero(self._part[sources] == a)
            for b, behind in enumerate(self._parts):
                j = np.flatnonzero(self._part[targets] == b)
                if len(i) and len(j):
                    rows = self._row[sources[i]], self._row[targets[j]]
                    found[np.ix_(i, j)] = passing_spans(before.spans.start, behind.spans, *rows)
        return found

    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """An earlier zone, or a shorter prefix of the same order in the same one."""
        same = self._zone[sources] == self._zone[targets]
        same &= self._part[sources] == self._part[targets]
        ahead = self._zone[sources] < self._zone[targets]
        return np.asarray(ahead | (same & (self._row[sources] <= self._row[targets])))

    def members(self, row: int) -> IntArray:
        """Units of one prefix."""
        part = self._parts[int(self._part[row])]
        return part.members(int(self._row[row]))
