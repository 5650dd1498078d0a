"""Any set of ideals as candidate cuts."""

import numpy as np
import numpy.typing as npt

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.search.family import Family
from pipec.partition.units import Units

BLOCK = 4096


class IdealFamily(Family):
    """Any set of ideals, given by the units they hold, [ideals, units].

    Attributes:
        bits: Which units an ideal holds, [ideals, units].
        counts: How many units of each hyperedge it holds, [ideals, hyperedges].
        degree: How many there are, [hyperedges].
    """

    def __init__(self, units: Units, ref: FloatArray, bits: BoolArray) -> None:
        measure = measure_of(bits, ref)
        # sums of the same numbers may differ in the last bit; the full set has the largest
        measure = np.minimum(measure, measure[bits.all(axis=1)].min(initial=np.inf))
        order = np.lexsort((bits.sum(axis=1), measure))
        bits = bits[order]
        self.bits = bits
        self.ref = measure[order]
        self.size = bits.sum(axis=1)
        self.add_up(units, lambda of: measure_of(bits, of.T).T)
        self.degree = np.diff(units.pin_ptr)
        self._price = units.cost[0]
        self.counts = _counts(units, bits)
        self._partly = (self.counts > 0) & (self.counts < self.degree)
        self.cut = measure_of(self._partly, units.cost.T).T
        self._words = _pack(bits)

    def passing(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Matrix products over the hyperedges partly in some source and partly in some target."""
        edges = np.flatnonzero(
            self._partly[sources].any(axis=0) & self._partly[targets].any(axis=0)
        )
        if not len(edges):
            return np.zeros((len(sources), len(targets)))
        left = self.counts[np.ix_(sources, edges)].astype(np.int64)
        right = self.counts[np.ix_(targets, edges)].astype(np.int64)
        degree, price = self.degree[edges], self._price[edges]
        partly = _share((left > 0) & (left < degree), (right > 0) & (right < degree), price)
        edge, count = _common(left, right, degree)
        return partly + _share(left[:, edge] == count, right[:, edge] == count, price[edge])

    def inside(self, sources: IntArray, targets: IntArray) -> BoolArray:
        """No bit of the source is missing in the target."""
        missing = np.zeros((), np.uint64)
        for word in self._words:
            missing = missing | (word[sources] & ~word[targets])
        return np.asarray(missing == 0)

    def members(self, row: int) -> IntArray:
        """Units of one ideal."""
        return np.flatnonzero(self.bits[row])


def _pack(bits: BoolArray) -> npt.NDArray[np.uint64]:
    """64 units to a word, [words, ideals]."""
    octets = np.packbits(bits, axis=1)
    octets = np.pad(octets, ((0, 0), (0, -octets.shape[1] % 8)))
    return np.ascontiguousarray(octets.view(np.uint64).T)


def measure_of(bits: BoolArray, ref: FloatArray) -> FloatArray:
    """Sums of ref over each row of bits, in blocks: a whole matrix of floats may not fit."""
    blocks = [bits[a : a + BLOCK] @ ref for a in range(0, max(len(bits), 1), BLOCK)]
    return np.concatenate(blocks)


def _counts(units: Units, bits: BoolArray) -> npt.NDArray[np.int16]:
    """Units of each hyperedge inside each ideal, [ideals, hyperedges]."""
    found = np.zeros((len(bits), len(units.pin_ptr) - 1), np.int16)
    if not len(units.pin):
        return found
    for a in range(0, len(bits), BLOCK):
        columns = np.ascontiguousarray(bits[a : a + BLOCK].T).astype(np.int16)
        found[a : a + BLOCK] = np.add.reduceat(columns[units.pin], units.pin_ptr[:-1], axis=0).T
    return found


def _share(left: BoolArray, right: BoolArray, weight: FloatArray) -> FloatArray:
    """Total weight of the columns that are set in a left and in a right row, [left, right].

    Columns that are set everywhere (values that pass over the whole window) only add a constant.
    """
    always = left.all(axis=0) & right.all(axis=0)
    varied = ~always
    product: FloatArray = (left[:, varied] * weight[varied]) @ right[:, varied].T.astype(float)
    return product + float(weight[always].sum())


def _common(left: IntArray, right: IntArray, degree: IntArray) -> tuple[IntArray, IntArray]:
    """(hyperedge, count) pairs, partly inside, that occur on both sides."""
    base = int(degree.max()) + 1
    keys = np.arange(len(degree)) * base
    seen = [np.zeros(len(degree) * base, bool) for _ in range(2)]
    for side, flags in zip((left, right), seen, strict=True):
        flags[(side + keys)[(side > 0) & (side < degree)]] = True
    both = np.flatnonzero(seen[0] & seen[1])
    return both // base, both % base
