"""Super logic regions: which engine lies in which die of a stacked chip, and what crosses.

```text
SLR2   [pool] ─► [conv9 ..... ] ─► [fc] ─► link        used <= limit of every region
  ▲ wires <= limit of every boundary
SLR1   [conv4 ........ ] ─► [conv5] ─► ...
  ▲
SLR0   in ─► [conv1] ─► [conv2 ....... ] ─► ...  HBM
```

A board's budget is 70 % of its logic and 80 % of its memories; a single region may be filled by
`SLACK` more (FINN+ balances boards in the same way: 0.70 aimed at, 0.80 allowed). Engines are
placed in the order of the dataflow and then moved and swapped one by one, first until no region is
too full and no boundary crossed too often, then while fewer wires cross. An engine that is larger
than a region lies in several, its inputs led to all of them; where nothing else fits, smaller ones
may too. This is a plan for the placer, made from estimates: no placer has seen it.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.banks import BEAT_BITS, banks_of
from pipec.backends.fpga.design import Floorplan, StageDesign
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.memory import too_much
from pipec.cluster.device import FpgaResources

SLACK = 0.10
"""How much fuller than the board a region may be, as a share of what it has."""
HANDSHAKE_WIRES = 2
"""Valid and ready of a stream."""
ADDRESS_WIRES = 64
"""Of a memory port, beside its data."""
_PASSES = 12
_GRAINS = (0.9, 0.4, 0.2)
_PARTS = 40
KINDS = {"dsp": "DSP", "lut": "LUT", "bram36": "BRAM36", "uram": "UltraRAM"}
_ALMOST = 1.001
"""A limit is kept if it is exceeded by no more than this."""

Numbers = NDArray[np.float64]
Where = NDArray[np.int64]
"""Region of every part, [parts]."""


def floorplan(
    design: StageDesign, fabric: FpgaResources, shell: Resources
) -> Floorplan | list[str]:
    """A region for every engine of a design whose memories are placed.

    Args:
        design: Engines with resources; memory ports with banks, if those are known.
        fabric: The board's; without regions everything lies in one.
        shell: What links and memory controllers take, spread over the regions.

    Returns:
        What the nearest to a floorplan exceeds where there is none: regions, or wires.
    """
    if len(fabric.regions) < 2:
        return Floorplan()
    lacks = list[list[str]]()
    for grain in _GRAINS:
        found = _layout(design, fabric, shell, grain).solved()
        lacks.append(_exceeded(found))
        if not lacks[-1]:
            return found
    return min(lacks, key=len)


def _exceeded(plan: Floorplan) -> list[str]:
    """The limits of regions and boundaries that a plan exceeds, each with by how much."""
    checks: list[tuple[str, float, float]] = [
        (f"{name} in SLR{k}", getattr(used, kind), getattr(limit, kind))
        for k, (used, limit) in enumerate(zip(plan.used, plan.limits, strict=True))
        for kind, name in KINDS.items()
    ]
    checks += [
        (f"wires between SLR{k} and SLR{k + 1}", wires, plan.wire_limit)
        for k, wires in enumerate(plan.wires)
    ]
    return [told for name, used, limit in checks if used > _ALMOST * limit
            for told in too_much(name, used, limit)]  # fmt: skip


def _limits(fabric: FpgaResources, shell: Resources) -> Numbers:
    """What engines may use, [regions, kinds]: each region's share, its part of the shell gone."""
    logic, memory = fabric.logic_limit + SLACK, fabric.memory_limit + SLACK
    whole = (fabric.dsp * logic, fabric.lut * logic, fabric.bram36 * memory, fabric.uram * memory)
    shares = np.array([[getattr(region, k) for k in KINDS] for region in fabric.regions])
    fixed = np.array([getattr(shell, k) for k in KINDS]) / len(fabric.regions)
    return np.maximum(shares * whole - fixed, 0.0)


@dataclass(frozen=True)
class _Layout:
    """Parts of engines, and the wires between them.

    Attributes:
        limits: Of every region, [regions, kinds].
        wire_limit: Of every boundary.
        parts: Engine of every part; ``takes`` what it takes, [parts, kinds].
        joints: What is joined, parts or, counted on behind them, regions, [joints, 2].
        wires: Of every joint, [joints].
    """

    limits: Numbers
    wire_limit: float
    parts: Sequence[str]
    takes: Numbers
    joints: NDArray[np.int64]
    wires: NDArray[np.int64]

    def solved(self) -> Floorplan:
        """One region if all fits into it, else the best of filling from the bottom or the top."""
        regions, tied = len(self.limits), (self.joints >= len(self.parts)).any()
        for region in range(regions):
            alone = np.full(len(self.parts), region)
            if not tied and self._costs(alone[None])[0] < _TOO_MUCH:
                return self._floorplan(alone)
        starts = (self._in_order(), regions - 1 - self._in_order())
        found = [self._improved(start) for start in starts]
        return self._floorplan(min(found, key=lambda w: (self._costs(w[None])[0], w.tolist())))

    def _in_order(self) -> Where:
        """Regions of the parts in the order of the dataflow, every region filled alike."""
        total = (self.takes[:, None] / np.maximum(self.limits, 1e-9)).mean(axis=(1, 2))
        middle = (np.cumsum(total) - total / 2) / max(total.sum(), 1e-12)
        place = np.minimum(middle * len(self.limits), len(self.limits) - 1)
        return np.asarray(place, dtype=np.int64)

    def _used(self, trials: Where) -> Numbers:
        """What is used of every region in every trial, [trials, regions, kinds]."""
        count, regions = len(trials), len(self.limits)
        flat = (trials + regions * np.arange(count)[:, None]).ravel()
        sums = [np.bincount(flat, np.tile(take, count), count * regions) for take in self.takes.T]
        return np.stack(sums, axis=-1, dtype=float).reshape(count, regions, len(KINDS))

    def _crossed(self, trials: Where) -> Numbers:
        """Wires over every boundary in every trial, [trials, boundaries]."""
        regions = np.arange(len(self.limits))
        fixed = np.broadcast_to(regions, (len(trials), len(regions)))
        first, second = np.hstack((trials, fixed)).T[self.joints.T]
        wires = self.wires.astype(float)
        return np.stack([wires @ ((first <= r) != (second <= r)) for r in regions[:-1]], axis=-1)

    def _costs(self, trials: Where) -> Numbers:
        """Wires that cross in every trial, and far more where limits are exceeded."""
        crossed = self._crossed(trials)
        full = np.maximum(self._used(trials) / np.maximum(self.limits, 1e-9) - 1.0, 0.0)
        wires = np.maximum(crossed / max(self.wire_limit, 1.0) - 1.0, 0.0).sum(axis=1)
        full = full.reshape(len(trials), -1).sum(axis=1)
        return np.asarray(_TOO_MUCH * 1e3 * (full + wires) + crossed.sum(axis=1))

    def _improved(self, where: Where) -> Where:
        """Parts moved and swapped as long as that helps, each as soon as it does."""
        cost = self._costs(where[None])[0]
        for _ in range(_PASSES):
            before = cost
            moves, done, ahead = self._moves(swaps=before >= _TOO_MUCH), 0, 1
            while done < len(moves):
                a, b, region = moves[done : done + ahead].T
                trials, every = np.tile(where, (len(a), 1)), np.arange(len(a))
                trials[every, a] = np.where(region < 0, where[b], region)
                trials[every, b] = np.where(region < 0, where[a], region)
                costs = self._costs(trials)
                better = np.flatnonzero(costs < cost - 1e-9)
                if better.size:
                    where, cost = trials[better[0]], costs[better[0]]
                done += int(better[0]) + 1 if better.size else len(a)
                ahead = 1 if better.size else min(2 * ahead, _AT_ONCE)
            if cost >= before - 1e-9:
                break
        return where

    def _moves(self, *, swaps: bool) -> NDArray[np.int64]:
        """Every part twice, and every region; then pairs and -1, if regions are too full."""
        parts = range(len(self.parts))
        moves = [(part, part, region) for part in parts for region in range(len(self.limits))]
        if swaps:
            largest = (self.takes[:, None] / np.maximum(self.limits, 1e-9)).max(axis=(1, 2))
            first = np.argsort(-largest, kind="stable")[:_SWAPPED].tolist()
            moves += [(a, b, -1) for a, b in itertools.combinations(first, 2)]
        return np.array(moves)

    def _floorplan(self, where: Where) -> Floorplan:
        engines: dict[str, set[int]] = defaultdict(set)
        for engine, region in zip(self.parts, where.tolist(), strict=True):
            engines[engine].add(region)
        return Floorplan(
            {engine: tuple(sorted(regions)) for engine, regions in engines.items()},
            tuple(map(_resources, self._used(where[None])[0])),
            tuple(map(_resources, self.limits)),
            tuple(int(n) for n in self._crossed(where[None])[0]),
            int(self.wire_limit),
        )


def _layout(design: StageDesign, fabric: FpgaResources, shell: Resources, grain: float) -> _Layout:
    """The engines of a design, each in as many equal parts as it needs to fit regions.

    A stream leads from the last part of an engine to the first one of another, and through all
    parts of both. ``grain`` is the share of a region above which an engine is taken apart.
    """
    limits = _limits(fabric, shell)
    room = np.maximum(limits.min(axis=0), 1e-9)
    parts, takes, own = list[str](), list[Numbers](), dict[str, range]()
    for engine in design.engines:
        use = np.array([getattr(engine.resources, k) for k in KINDS])
        count = max(1, min(math.ceil((use / room).max() / grain), _PARTS))
        own[engine.name] = range(len(parts), len(parts) + count)
        parts += [engine.name] * count
        takes += [use / count] * count
    joints = list[tuple[int, int, int]]()
    for stream in design.streams.values():
        if stream.producer is not None and stream.consumer is not None:
            ends, wires = (own[stream.producer], own[stream.consumer]), stream.token_bits
            pairs = [
                (ends[0][-1], ends[1][0]),
                *(p for end in ends for p in itertools.pairwise(end)),
            ]
            joints += [(a, b, wires + HANDSHAKE_WIRES) for a, b in pairs]
    banks = dict(zip(banks_of(fabric), fabric.memory_regions, strict=False))
    joints += [
        (own[port.engine][0], len(parts) + banks[port.bank], BEAT_BITS + ADDRESS_WIRES)
        for port in design.ddr
        if port.bank in banks
    ]
    table = np.array(joints, dtype=np.int64).reshape(-1, 3)
    wire_limit = fabric.crossings * fabric.logic_limit
    uses = np.array(takes).reshape(-1, len(KINDS))
    return _Layout(limits, wire_limit, parts, uses, table[:, :2], table[:, 2])


_TOO_MUCH = 1e6
"""Cost of a thousandth of a region too much: more than all wires that may cross."""
_SWAPPED = 60
"""Largest parts that are swapped in pairs."""
_AT_ONCE = 64
"""Moves whose costs are computed together: most help nothing."""


def _resources(row: Numbers) -> Resources:
    return Resources(**dict(zip(KINDS, map(float, row), strict=True)))
