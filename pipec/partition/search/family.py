"""Families of candidate cuts; here the prefixes of one order, elsewhere any set of ideals.

A family holds, for every candidate, what lies left of it: work, memory, and the cost of the
hyperedges that are partly inside. The dynamic program in ``frontier`` knows nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.units import Units


class Family(ABC):
    """Candidate cuts, sorted by ``ref``; the first is empty, the last holds every unit.

    Attributes:
        ref: Work measure left of the cut, [cuts].
        size: Units left of the cut, [cuts].
        work: Seconds by class, [classes, cuts]; units that cannot run there count 0.
        blocked: Units left of the cut that cannot run on a class, [classes, cuts].
        weight: Bytes per weight version, [cuts].
        held: Bytes of weights and activations, [cuts].
        cut: Cost of the hyperedges partly left, [kinds, cuts].
    """

    ref: FloatArray
    size: IntArray
    work: FloatArray
    blocked: FloatArray
    weight: FloatArray
    held: FloatArray
    cut: FloatArray

    def add_up(self, units: Units, measure: Callable[[FloatArray], FloatArray]) -> None:
        """Fill in work and memory; ``measure`` adds up what lies left of each cut, [..., units]."""
        blocked = np.isinf(units.work)
        self.work = measure(np.where(blocked, 0.0, units.work))
        self.blocked = measure(blocked.astype(float))
        self.weight, self.held = measure(units.weight_bytes), measure(units.held)

    @abstractmethod
    def passing(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """What ``cut(I) + cut(J)`` counts too much for a stage I - J, [sources, targets].

        A hyperedge p that is partly in both counts ``cost_p`` too much, and twice that if it has as
        many units in I as in J. Rows are ascending; only pairs with J inside I have a meaning.
        """

    @abstractmethod
    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """Whether each source is a subset of the target at the same place; shapes broadcast."""

    @abstractmethod
    def members(self, row: int) -> IntArray:
        """Units left of a cut."""


class PrefixFamily(Family):
    """All prefixes of one linear order of the units; row i holds the first i units."""

    def __init__(self, units: Units, ref: FloatArray, order: IntArray) -> None:
        n = units.size
        self.order = order
        place = np.argsort(order)
        self.ref = _running(ref[order])
        self.size = np.arange(n + 1)
        self.add_up(units, lambda of: _running(of[..., order]))
        # places of the pins, sorted within each hyperedge
        keys = np.sort(units.pin_edge() * (n + 1) + place[units.pin])
        pins = keys - units.pin_edge() * (n + 1)
        self._first, self._last = pins[units.pin_ptr[:-1]], pins[units.pin_ptr[1:] - 1]
        # a hyperedge is cut by the prefixes first+1 .. last
        change = [
            np.bincount(self._first + 1, row, n + 2) - np.bincount(self._last + 1, row, n + 2)
            for row in units.cost
        ]
        self.cut = np.maximum(np.cumsum(np.array(change), axis=1)[:, : n + 1], 0.0)
        self.cut[:, 0] = self.cut[:, n] = 0.0
        self._spans = _spans(units, pins, self._first, self._last)

    def passing(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Sums over the spans that hold both prefixes: a histogram and two running sums."""
        start, stop, price = self._spans
        shape = (len(sources), len(targets))
        live = np.flatnonzero((start < sources[-1]) & (stop >= targets[0]))
        if not len(live):
            return np.zeros(shape)
        i = np.searchsorted(sources, start[live], "right")
        j = np.searchsorted(targets, stop[live], "right") - 1
        grid = np.bincount(i * shape[1] + j, price[live], shape[0] * shape[1]).reshape(shape)
        total = np.cumsum(np.cumsum(grid, axis=0)[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(total, np.float64)

    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """Shorter prefixes are subsets of longer ones."""
        return sources <= targets

    def members(self, row: int) -> IntArray:
        """The first ``row`` units."""
        return self.order[:row]


def _spans(
    units: Units, pins: IntArray, first: IntArray, last: IntArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Stretches between pins of one hyperedge: prefixes that end in the same one share them.

    One span from the first to the last pin of every hyperedge, then one between any two pins that
    follow each other; a prefix of i units lies in a span if ``start < i <= stop``.

    Returns:
        Places of the earlier and the later pin, and the cost of the hyperedge, [spans] each.
    """
    edge = units.pin_edge()
    same = np.flatnonzero(edge[1:] == edge[:-1])
    price = units.cost[0]
    return (
        np.concatenate([first, pins[same]]),
        np.concatenate([last, pins[same + 1]]),
        np.concatenate([price, price[edge[same]]]),
    )


def _running(rows: FloatArray) -> FloatArray:
    """Sums of everything before each place, with a zero in front, along the last axis."""
    padding = np.zeros((*rows.shape[:-1], 1))
    return np.concatenate([padding, np.cumsum(rows, axis=-1)], axis=-1)
