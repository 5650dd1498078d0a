"""Families of candidate cuts: the prefixes of one order, or any set of ideals.

A family holds, for every candidate, what lies left of it: work, memory, and the cost of the
hyperedges that are partly inside. The dynamic program in ``frontier`` knows nothing else.
"""

from abc import ABC, abstractmethod

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
        activation: Bytes per microbatch in flight, [cuts].
        cut: Cost of the hyperedges partly left, [kinds, cuts].
        degree: Units of each hyperedge.
        price: First cost of each hyperedge.
    """

    ref: FloatArray
    size: IntArray
    work: FloatArray
    blocked: FloatArray
    weight: FloatArray
    activation: FloatArray
    cut: FloatArray
    degree: IntArray
    price: FloatArray

    @abstractmethod
    def spanning(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Hyperedges that may be partly left of a source and partly left of a target."""

    @abstractmethod
    def counts(self, rows: IntArray, edges: IntArray) -> IntArray:
        """Units of each hyperedge that lie left of each cut, [rows, edges]."""

    @abstractmethod
    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """Whether each source is a subset of the target at the same place."""

    @abstractmethod
    def members(self, row: int) -> IntArray:
        """Units left of a cut."""


class PrefixFamily(Family):
    """All prefixes of one linear order of the units; row i holds the first i units."""

    def __init__(self, units: Units, ref: FloatArray, order: IntArray) -> None:
        n = units.size
        self.order = order
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        blocked = np.isinf(units.work)
        self.ref = _running(ref[order])
        self.size = np.arange(n + 1)
        self.work = _running(np.where(blocked, 0.0, units.work)[:, order])
        self.blocked = _running(blocked[:, order].astype(float))
        self.weight = _running(units.weight_bytes[order])
        self.activation = _running(units.activation_bytes[order])
        self.degree = np.diff(units.pin_ptr)
        self.price = units.cost[0]
        # places of the pins, sorted within each hyperedge, as one sorted array of numbers
        self._base, self._ptr = n + 1, units.pin_ptr[:-1]
        self._keys = np.sort(units.pin_edge() * self._base + place[units.pin])
        start = np.arange(len(self.degree)) * self._base
        self._first = self._keys[self._ptr] - start
        self._last = self._keys[units.pin_ptr[1:] - 1] - start
        # a hyperedge is cut by the prefixes first+1 .. last
        change = [
            np.bincount(self._first + 1, row, n + 2) - np.bincount(self._last + 1, row, n + 2)
            for row in units.cost
        ]
        self.cut = np.maximum(np.cumsum(np.array(change), axis=1)[:, : n + 1], 0.0)
        self.cut[:, 0] = self.cut[:, n] = 0.0

    def spanning(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Hyperedges open at some source and at some target."""
        return np.flatnonzero((self._first < sources.max()) & (self._last >= targets.min()))

    def counts(self, rows: IntArray, edges: IntArray) -> IntArray:
        """Pins before each prefix's end."""
        column = rows[:, None]
        counted = (self._first[edges] < column).astype(np.int64)
        counted += self._last[edges] < column
        many = np.flatnonzero(self.degree[edges] > 2)
        keys = edges[many] * self._base + column
        found = np.searchsorted(self._keys, keys.ravel()).reshape(keys.shape)
        counted[:, many] = found - self._ptr[edges[many]]
        return counted

    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """Shorter prefixes are subsets of longer ones."""
        return sources <= targets

    def members(self, row: int) -> IntArray:
        """The first ``row`` units."""
        return self.order[:row]


class IdealFamily(Family):
    """Any set of ideals, given by the units they hold, [ideals, units]."""

    def __init__(self, units: Units, ref: FloatArray, bits: BoolArray) -> None:
        dense = bits.astype(np.float32)
        measure = bits @ ref
        order = np.lexsort((bits.sum(axis=1), measure))
        bits, dense = bits[order], dense[order]
        blocked = np.isinf(units.work)
        self.bits = bits
        self.ref = measure[order]
        self.size = bits.sum(axis=1)
        self.work = np.where(blocked, 0.0, units.work) @ bits.T
        self.blocked = blocked.astype(float) @ bits.T
        self.weight = bits @ units.weight_bytes
        self.activation = bits @ units.activation_bytes
        self.degree = np.diff(units.pin_ptr)
        self.price = units.cost[0]
        incidence = np.zeros((units.size, len(self.degree)), np.float32)
        incidence[units.pin, units.pin_edge()] = 1.0
        self._counts = (dense @ incidence).astype(np.int16)
        self._partly = (self._counts > 0) & (self._counts < self.degree)
        self.cut = units.cost @ self._partly.T
        self._words = np.packbits(bits, axis=1)

    def spanning(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Hyperedges partly in some source and partly in some target."""
        return np.flatnonzero(self._partly[sources].any(axis=0) & self._partly[targets].any(axis=0))

    def counts(self, rows: IntArray, edges: IntArray) -> IntArray:
        """Pins inside each ideal."""
        return self._counts[np.ix_(rows, edges)].astype(np.int64)

    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """No bit of the source is missing in the target."""
        missing = self._words[sources] & ~self._words[targets]
        return np.logical_not(missing.any(axis=1))

    def members(self, row: int) -> IntArray:
        """Units of one ideal."""
        return np.flatnonzero(self.bits[row])


def _running(rows: FloatArray) -> FloatArray:
    """Sums of everything before each place, with a zero in front, along the last axis."""
    padding = np.zeros((*rows.shape[:-1], 1))
    return np.concatenate([padding, np.cumsum(rows, axis=-1)], axis=-1)
