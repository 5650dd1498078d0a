"""Search for chunks among ideals: all cuts of k chunks that follow each other, exactly and at once.

k chunks that follow each other run on k different devices. With all other chunks fixed, what a
device pays depends on the two ideals around its one chunk, so the best cuts are a shortest path
through the ideals. This is repeated stretch by stretch until nothing changes; then with random
weights on the devices, which moves several cuts together, and without them again (the noising
method of Charon and Hudry, Operations Research Letters 1993). Many starts, one after the other.
"""

from dataclasses import dataclass
from itertools import cycle, islice
from math import inf
from time import perf_counter

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.orders.linear import linear_orders
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.proof.ideal_family import IdealFamily
from pipec.partition.proof.ideals import Window, enumerate_ideals
from pipec.partition.proof.reduce import CLOSURE_LIMIT
from pipec.partition.units import Units

MOST = 3_000  # ideals, as all pairs of them are kept
CELLS = 20_000_000  # ideals x units or hyperedges
PRODUCTS = 3e8  # pairs of ideals x pins, per second of the limit
SQUARED = (3, 4, 5)  # the energy is the sum of the loads, each squared so many times
PENALTY = 1e9  # energy of a memory that is overrun by its size
FAILURES = 30  # kicks in a row that find nothing better before a new start
NOISE = 8.0  # standard deviation of the logarithm of the weights
KICKS = 3  # stretches that are looked at with weights, at most
STEP = 12_000  # pairs that take as long as the rest of a step


def candidates(
    units: Units, work: FloatArray, seconds: float = 20.0, deadline: float = inf
) -> tuple[BoolArray, bool]:
    """All ideals, or if they are too many prefixes of several orders; and whether these are all.

    Args:
        units: The DAG.
        work: Of each unit, [units].
        seconds: For all that is done with them; the less, the fewer they are.
        deadline: When to stop looking for all (`time.perf_counter`).

    Returns:
        Rows that say which units are in, [ideals, units], and whether no ideal is left out.
    """
    few = int((PRODUCTS * seconds / max(len(units.pin), 1)) ** 0.5)
    most = max(2, min(MOST, few, CELLS // max(units.size, len(units.pin_ptr))))
    if units.size <= CLOSURE_LIMIT:
        window = Window(-1.0, 2 * float(work.sum()) + 1.0)
        every = enumerate_ideals(units, work, [window], most, deadline)
        if every is not None:
            return every, True
    count = max(1, most // units.size)
    steps = np.arange(0, units.size, -(-units.size // most))
    rows = [np.ones((1, units.size), bool)]
    place = np.empty(units.size, np.int64)
    for order in islice(linear_orders(units, work, count), count):
        place[order] = np.arange(units.size)
        rows.append(place[None, :] < steps[:, None])
    every = np.concatenate(rows)
    _, first = np.unique(np.packbits(every, axis=1), axis=0, return_index=True)
    return every[first], False


@dataclass(frozen=True, eq=False)
class _Held:
    """What chunks or devices hold: work, bytes, and units of each hyperedge."""

    work: FloatArray
    bytes: FloatArray
    pins: IntArray


@dataclass(frozen=True, eq=False)
class _Fixed:
    """What the devices of a stretch have without it, by place.

    Attributes:
        work: Seconds, [places].
        paid: Cost of the hyperedges that the other chunks have a part of, [places].
        bytes: Held, [places].
        rest: Units of each hyperedge that are elsewhere, [places, hyperedges].
        shared: Hyperedges that are paid for already and may be met again, [places, hyperedges].
    """

    work: FloatArray
    paid: FloatArray
    bytes: FloatArray
    rest: FloatArray
    shared: BoolArray


class Lattice:
    """Chains of ideals ``cuts``: rows of a family, the empty one first and the full one last.

    Args:
        units: What is placed; values are priced in seconds.
        work: Seconds of each unit, [units].
        devices: k; chunk p runs on device p mod k.
        chunks: Chunks per device.
        memory_bytes: Limit per device.
        seconds: For the search in all; see `candidates`.
        deadline: See `candidates`.

    Attributes:
        complete: Whether every ideal is there.
    """

    def __init__(
        self,
        units: Units,
        work: FloatArray,
        devices: int,
        chunks: int,
        memory_bytes: float,
        seconds: float = 20.0,
        deadline: float = inf,
    ) -> None:
        rows, self.complete = candidates(units, work, seconds, deadline)
        self._family = family = IdealFamily(units, work, rows)
        self._k, self._places, self._limit = devices, devices * chunks, memory_bytes
        self._price, self._bytes = units.cost[0], family.weight + family.activation
        every = np.arange(len(family.size))
        self._last = len(every) - 1
        self._inside = family.inside(every[:, None], every)
        work_of = family.ref - family.ref[:, None]
        self._load = work_of + family.cut[0] + family.cut[0][:, None]
        self._load -= family.passing(every, every)
        self._load[~self._inside] = inf
        self._left, self._squared = 0, SQUARED[0]
        self._scale = (float(family.ref[-1]) + float(self._price.sum())) / devices or 1.0

    def search(self, pairs: int, deadline: float, seed: int) -> IntArray | None:
        """Chunk of every unit for the least largest load found; None if none fits the memory.

        Args:
            pairs: How many pairs of ideals are looked at. The same number finds the same chunks.
            deadline: When to stop before that (`time.perf_counter`).
            seed: Of starts and weights.
        """
        rng = np.random.default_rng(seed)
        even = np.ones(self._k)
        best, found = (inf, inf), None
        self._left = pairs
        while found is None or not self._stopped(deadline):
            cuts = self._settled(self._start(rng), even, rng)
            value, failures = self._value(cuts), 0
            while failures < FAILURES and not self._stopped(deadline):
                weight = np.exp(rng.normal(0.0, NOISE, self._k))
                trial = cuts
                for first in rng.integers(0, self._stretches, rng.integers(1, KICKS + 1)).tolist():
                    trial = self._stretch(trial, first, weight)
                trial = self._settled(trial, even, rng)
                reached = self._value(trial)
                failures = 0 if reached < value else failures + 1
                if reached <= value:
                    cuts, value = trial, reached
            if value < best:
                best, found = value, cuts
        return self._chunks(found) if best[0] == 0 else None

    @property
    def _stretches(self) -> int:
        return self._places - self._k + 1

    def _stopped(self, deadline: float) -> bool:
        return self._left <= 0 or perf_counter() > deadline

    def _chunks(self, cuts: IntArray) -> IntArray:
        """Chunk of every unit."""
        return np.asarray(self._places - self._family.bits[cuts].sum(axis=0), np.int64)

    def _start(self, rng: np.random.Generator) -> IntArray:
        """Equal work with jitter, each cut around the one before."""
        ref = self._family.ref
        cuts = [0]
        for p in range(1, self._places):
            goal = (p + rng.uniform(-0.5, 0.5)) * ref[-1] / self._places
            around = np.flatnonzero(self._inside[cuts[-1]])
            cuts.append(int(around[np.abs(ref[around] - goal).argmin()]))
        return np.array([*cuts, self._last])

    def _settled(self, cuts: IntArray, weight: FloatArray, rng: np.random.Generator) -> IntArray:
        """Stretch by stretch, until none of them changes; each time with another energy."""
        unchanged, self._squared = 0, int(rng.choice(SQUARED))
        for first in cycle(rng.permutation(self._stretches).tolist()):
            better = self._stretch(cuts, first, weight)
            # what has just been solved is not solved again
            unchanged = unchanged + 1 if np.array_equal(better, cuts) else 1
            cuts = better
            if unchanged >= self._stretches:
                break
        return cuts

    def _held(self, cuts: IntArray) -> tuple[_Held, _Held]:
        """Of every chunk, and of every device."""
        family = self._family
        parts = (family.ref, self._bytes, family.counts)
        chunk = [np.diff(part[cuts], axis=0).astype(float) for part in parts]
        device = [
            part.reshape(self._places // self._k, self._k, *part.shape[1:]).sum(axis=0)
            for part in chunk
        ]
        return _Held(*chunk), _Held(*device)

    def _partly(self, pins: IntArray) -> BoolArray:
        return (pins > 0) & (pins < self._family.degree)

    def _over(self, held: FloatArray) -> FloatArray:
        """Bytes beyond the limit, as a share of it."""
        if self._limit == inf:
            return np.zeros_like(held)
        over = held - self._limit * (1 + TOLERANCE)
        return np.maximum(over, 0.0) / max(self._limit, 1.0)

    def _value(self, cuts: IntArray) -> tuple[float, float]:
        """(memory overrun, largest load), rounded so that equal ones compare as equal."""
        _, device = self._held(cuts)
        load = device.work + self._partly(device.pins) @ self._price
        return float(self._over(device.bytes).sum()), round(float(load.max()) / self._scale, 12)

    def _energy(self, load: FloatArray, held: FloatArray | None) -> FloatArray:
        energy = load / self._scale
        for _ in range(self._squared):
            energy *= energy
        return energy if held is None else energy + PENALTY * self._over(held)

    def _stretch(self, cuts: IntArray, first: int, weight: FloatArray) -> IntArray:
        """The best cuts between some chunk and the k-th behind it, if they are better.

        Args:
            cuts: All of them.
            first: The first chunk.
            weight: Of the energy of every device, [devices].
        """
        low, high = cuts[first], cuts[first + self._k]
        rows = np.flatnonzero(self._inside[low] & self._inside[:, high])
        chunk, device = self._held(cuts)
        load = device.work + self._partly(device.pins) @ self._price
        best = float(weight @ self._energy(load, device.bytes))
        on = np.arange(first, first + self._k) % self._k
        fixed = self._fixed(cuts, first, chunk, device)
        least, most = self._windows(rows, fixed.work, best / weight[on])
        origins, states, value = [], [rows[:1]], np.zeros(1)
        for place, d in enumerate(on.tolist()):
            targets = rows[least[place] : most[place]]
            energy = weight[d] * self._reached(fixed, place, states[-1], targets) + value[:, None]
            self._left -= STEP + energy.size
            origin = energy.argmin(axis=0)
            value = energy[origin, np.arange(len(targets))]
            keep = value < best * (1 - TOLERANCE)
            if not keep.any():
                return cuts
            origins.append(origin[keep])
            states.append(targets[keep])
            value = value[keep]
        found, at = cuts.copy(), 0
        for place in reversed(range(1, self._k)):
            at = origins[place][at]
            found[first + place] = states[place][at]
        return found

    def _windows(
        self, rows: IntArray, fixed: FloatArray, best: FloatArray
    ) -> tuple[list[int], list[int]]:
        """From where and up to where rows may be the cut behind each place.

        Args:
            rows: Between the ends of the stretch.
            fixed: Work that the device of each place has anyway, [places].
            best: Its energy is less, [places].
        """
        ref = self._family.ref[rows]
        room = self._scale * best ** (0.5**self._squared) - fixed
        held, slack = np.cumsum(room), TOLERANCE * self._family.ref[-1]
        least = np.searchsorted(ref, ref[-1] - (held[-1] - held) - slack, "left")
        most = np.searchsorted(ref, ref[0] + held + slack, "right")
        return [*least[:-1].tolist(), len(rows) - 1], [*most[:-1].tolist(), len(rows)]

    def _fixed(self, cuts: IntArray, first: int, chunk: _Held, device: _Held) -> _Fixed:
        """What is there without some chunk and the k - 1 behind it."""
        family, at = self._family, slice(first, first + self._k)
        on = np.arange(first, first + self._k) % self._k
        pins = device.pins[on] - chunk.pins[at]
        partly = self._partly(pins)
        within = family.counts[cuts[first]] < family.counts[cuts[first + self._k]]
        return _Fixed(
            device.work[on] - chunk.work[at],
            partly @ self._price,
            device.bytes[on] - chunk.bytes[at],
            family.degree - pins,
            partly & within,
        )

    def _reached(
        self, fixed: _Fixed, place: int, sources: IntArray, targets: IntArray
    ) -> FloatArray:
        """Energy of a device with its other chunks and one more, [sources, targets]."""
        load = self._load[sources[:, None], targets] + (fixed.work[place] + fixed.paid[place])
        edges = np.flatnonzero(fixed.shared[place])
        if len(edges) and load.size:
            # paid for already, and not at all if the new chunk has all the rest
            counts, price = self._family.counts, self._price[edges]
            before, behind = counts[sources[:, None], edges], counts[targets[:, None], edges]
            rest = fixed.rest[place, edges]
            most = behind.max(axis=0) - before.min(axis=0)
            one = most == 1
            twice = price[one] * (1 + (rest[one] == 1))
            load += (before[:, one] @ twice)[:, None] - behind[:, one] @ twice
            for h in np.flatnonzero(most > 1).tolist():
                more = behind[:, h] - before[:, h, None]
                load -= price[h] * ((more > 0) + 1.0 * (more == rest[h]))
        if self._limit == inf:
            return self._energy(load, None)
        held = self._bytes[targets] - self._bytes[sources][:, None] + fixed.bytes[place]
        return self._energy(load, held)
