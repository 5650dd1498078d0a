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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.banks import BEAT_BITS, banks_of
from pipec.backends.fpga.design import Floorplan, StageDesign
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.resources import too_much
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
_KINDS = {"dsp": "DSP", "lut": "LUT", "bram36": "BRAM36", "uram": "UltraRAM"}
_ALMOST = 1.001
"""A limit is kept if it is exceeded by no more than this."""

Numbers = NDArray[np.float64]


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
        found = _solved(design, fabric, shell, grain)
        lacks.append(_exceeded(found))
        if not lacks[-1]:
            return found
    return min(lacks, key=len)


def _exceeded(plan: Floorplan) -> list[str]:
    """The limits of regions and boundaries that a plan exceeds, each with by how much."""
    checks: list[tuple[str, float, float]] = [
        (f"{name} in SLR{k}", getattr(used, kind), getattr(limit, kind))
        for k, (used, limit) in enumerate(zip(plan.used, plan.limits, strict=True))
        for kind, name in _KINDS.items()
    ]
    checks += [
        (f"wires between SLR{k} and SLR{k + 1}", wires, plan.wire_limit)
        for k, wires in enumerate(plan.wires)
    ]
    return [told for name, used, limit in checks if used > _ALMOST * limit
            for told in too_much(name, used, limit)]  # fmt: skip


def _solved(
    design: StageDesign, fabric: FpgaResources, shell: Resources, grain: float
) -> Floorplan:
    wires = fabric.crossings * fabric.logic_limit
    layout = _Layout(_limits(fabric, shell), wires, grain)
    for engine in design.engines:
        layout.add(engine)
    for stream in design.streams.values():
        if stream.producer is not None and stream.consumer is not None:
            layout.join(stream.producer, stream.consumer, stream.token_bits + HANDSHAKE_WIRES)
    banks = dict(zip(banks_of(fabric), fabric.memory_regions, strict=False))
    for port in design.ddr:
        if port.bank in banks:
            layout.tie(port.engine, banks[port.bank], BEAT_BITS + ADDRESS_WIRES)
    return layout.solved()


def _limits(fabric: FpgaResources, shell: Resources) -> Numbers:
    """What engines may use, [regions, kinds]: each region's share, its part of the shell gone."""
    logic, memory = fabric.logic_limit + SLACK, fabric.memory_limit + SLACK
    whole = Resources(
        dsp=fabric.dsp * logic,
        lut=fabric.lut * logic,
        bram36=fabric.bram36 * memory,
        uram=fabric.uram * memory,
    )
    rows = []
    for region in fabric.regions:
        each = [getattr(whole, k) * getattr(region, k) for k in _KINDS]
        fixed = [getattr(shell, k) / len(fabric.regions) for k in _KINDS]
        rows.append([max(a - b, 0.0) for a, b in zip(each, fixed, strict=True)])
    return np.array(rows)


@dataclass
class _Layout:
    """Parts of engines in regions, and the wires between them.

    Attributes:
        limits: Of every region, [regions, kinds].
        wire_limit: Of every boundary.
        grain: Share of a region above which an engine is taken apart.
        parts: Engine of every part; ``uses`` what it takes of each region, as shares
            ``[regions, kinds]``.
        wires: Part to the parts that it is joined to, with the number of wires.
        ties: Part to a region that it is wired to.
        where: Region of every part.
    """

    limits: Numbers
    wire_limit: float
    grain: float
    parts: list[str] = field(default_factory=list)
    uses: list[Numbers] = field(default_factory=list)
    wires: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    ties: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    where: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._parts_of: dict[str, list[int]] = {}
        self._raw: list[Numbers] = []

    @property
    def regions(self) -> int:
        """How many there are."""
        return len(self.limits)

    def add(self, engine: Engine) -> None:
        """Add an engine, in as many equal parts as it needs to fit regions."""
        use = np.array([getattr(engine.resources, k) for k in _KINDS])
        room = np.maximum(self.limits.min(axis=0), 1e-9)
        count = max(1, min(math.ceil((use / room).max() / self.grain), _PARTS))
        first = len(self.parts)
        self._parts_of[engine.name] = list(range(first, first + count))
        for _ in range(count):
            self.parts.append(engine.name)
            self._raw.append(use / count)
            self.uses.append(use / count / np.maximum(self.limits, 1e-9))

    def join(self, producer: str, consumer: str, wires: int) -> None:
        """Lead a stream from the last part of an engine to the first one of another."""
        self._wire(self._parts_of[producer][-1], self._parts_of[consumer][0], wires)
        for name in (producer, consumer):  # what an engine of several parts hands on inside
            for a, b in itertools.pairwise(self._parts_of[name]):
                self._wire(a, b, wires)

    def _wire(self, a: int, b: int, wires: int) -> None:
        self.wires[a].append((b, wires))
        self.wires[b].append((a, wires))

    def tie(self, engine: str, region: int, wires: int) -> None:
        """Lead wires from an engine to something that has a fixed region, such as a memory port."""
        self.ties[self._parts_of[engine][0]].append((region, wires))

    def solved(self) -> Floorplan:
        """One region if all fits into it, else the best of filling from the bottom or the top."""
        for region in range(self.regions):
            self._place([region] * len(self.parts))
            if self._cost(self._used, np.zeros(self.regions - 1)) < _TOO_MUCH and not self.ties:
                return self._floorplan()
        found = []
        for start in (self._in_order(), [self.regions - 1 - r for r in self._in_order()]):
            self._place(start)
            self._improve()
            found.append((self._cost(self._used, self._crossed), list(self.where)))
        self._place(min(found)[1])
        return self._floorplan()

    def _in_order(self) -> list[int]:
        """Parts in the order of the dataflow, every region filled alike."""
        total = np.array([use.mean() for use in self.uses])
        middle = (np.cumsum(total) - total / 2) / max(total.sum(), 1e-12)
        return [min(int(m * self.regions), self.regions - 1) for m in middle]

    def _place(self, where: Sequence[int]) -> None:
        self.where = list(where)
        self._used = np.zeros_like(self.limits)
        for use, region in zip(self.uses, where, strict=True):
            self._used[region] += use[region]
        self._crossed = np.zeros(self.regions - 1)
        for a in range(len(self.parts)):
            self._crossed += self._crossings(a, self.where[a], above=a)

    def _crossings(self, part: int, region: int, above: int = -1) -> Numbers:
        """Wires of a part over every boundary if it lay in a region; each pair counts once."""
        found = np.zeros(self.regions - 1)
        for other, wires in self.wires.get(part, ()):
            if other > above:
                _cross(found, region, self.where[other], wires)
        for other, wires in self.ties.get(part, ()):
            _cross(found, region, other, wires)
        return found

    def _cost(self, used: Numbers, crossed: Numbers) -> float:
        full = np.maximum(used - 1.0, 0.0).sum()
        wires = np.maximum(crossed / max(self.wire_limit, 1.0) - 1.0, 0.0).sum()
        return float(_TOO_MUCH * 1e3 * (full + wires) + crossed.sum())

    def _move(self, part: int, region: int) -> None:
        before = self.where[part]
        self._crossed += self._crossings(part, region) - self._crossings(part, before)
        self._used[before] -= self.uses[part][before]
        self._used[region] += self.uses[part][region]
        self.where[part] = region

    def _improve(self) -> None:
        for _ in range(_PASSES):
            before = cost = self._cost(self._used, self._crossed)
            for moves in self._moves(swaps=before >= _TOO_MUCH):
                cost = self._tried(moves, cost)
            if cost >= before - 1e-9:
                return

    def _moves(self, *, swaps: bool) -> Iterator[tuple[tuple[int, int], ...]]:
        """Every part to every other region; then pairs, if regions are too full."""
        for part in range(len(self.parts)):
            for region in range(self.regions):
                if region != self.where[part]:
                    yield ((part, region),)
        if not swaps:
            return
        large = sorted(range(len(self.parts)), key=lambda p: -float(self.uses[p].max()))
        for a, b in itertools.combinations(large[:_SWAPPED], 2):
            if self.where[a] != self.where[b]:
                yield ((a, self.where[b]), (b, self.where[a]))

    def _tried(self, moves: tuple[tuple[int, int], ...], cost: float) -> float:
        """Make the moves; take them back if they do not help."""
        if len(moves) == 1 and cost < _TOO_MUCH and not self._saves_wires(*moves[0]):
            return cost
        back = [(part, self.where[part]) for part, _ in moves]
        used, crossed = self._used.copy(), self._crossed.copy()
        for part, region in moves:
            self._move(part, region)
        found = self._cost(self._used, self._crossed)
        if found < cost - 1e-9:
            return found
        for part, region in back:
            self.where[part] = region
        self._used, self._crossed = used, crossed
        return cost

    def _saves_wires(self, part: int, region: int) -> bool:
        """Whether fewer wires cross with a part elsewhere."""
        at = self.where[part]
        ends = [(self.where[other], n) for other, n in self.wires.get(part, ())]
        ends += self.ties.get(part, ())
        return sum(n * (abs(region - end) - abs(at - end)) for end, n in ends) < 0

    def _floorplan(self) -> Floorplan:
        used = np.zeros_like(self.limits)
        for use, region in zip(self._raw, self.where, strict=True):
            used[region] += use
        return Floorplan(
            {e: tuple(sorted({self.where[p] for p in at})) for e, at in self._parts_of.items()},
            tuple(map(_resources, used)),
            tuple(map(_resources, self.limits)),
            tuple(int(n) for n in self._crossed),
            int(self.wire_limit),
        )


_TOO_MUCH = 1e6
"""Cost of a thousandth of a region too much: more than all wires that may cross."""
_SWAPPED = 60
"""Largest parts that are swapped in pairs."""


def _cross(found: Numbers, a: int, b: int, wires: int) -> None:
    found[min(a, b) : max(a, b)] += wires


def _resources(row: Numbers) -> Resources:
    return Resources(**dict(zip(_KINDS, map(float, row), strict=True)))


def filled(plan: Floorplan) -> Mapping[str, tuple[float, str]]:
    """Of every region the share of the kind that fills it most, and its name.

    Example:
        >>> plan = Floorplan({}, (Resources(dsp=3.0, lut=1.0),), (Resources(dsp=4.0, lut=8.0),))
        >>> filled(plan)
        {'SLR0': (0.75, 'dsp')}
    """
    found = {}
    for k, (used, limit) in enumerate(zip(plan.used, plan.limits, strict=True)):
        shares = [(getattr(used, n) / max(getattr(limit, n), 1e-9), n) for n in _KINDS]
        found[f"SLR{k}"] = max(shares)
    return found
