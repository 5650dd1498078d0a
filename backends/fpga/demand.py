"""What the layers of a network take of a board when all engines keep one target interval.

The network is folded for the target; each engine counts for the placement unit that its node
belongs to. Weights of a layer may lie on chip, in LUT, block or Ultra RAM each, or be streamed
from DDR with buffers of several sizes: these are the options of the layer, and units fit a board
if some choice of options does: a multiple-choice knapsack, in which `Demand.choose` chooses.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array, vstack

from pipec.backends.fpga.banks import SLOTS, beats, blocks_of, slots_for
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Engine, Folded, busy_cycles
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.fifo import deepen_fifos
from pipec.backends.fpga.folding import Built, build_for, design_at
from pipec.backends.fpga.memory import (
    KINDS,
    Item,
    check_limits,
    fifo_item,
    fifos_logic,
    items_of,
    logic,
    place,
)
from pipec.backends.fpga.numbers import bits_of

Numbers = NDArray[np.float64]
NAMES = ("DSP", "LUT", "BRAM36", "UltraRAM", "time slots of memory ports", "FF")
"""Order of the resources in every array here."""
_WORD = 72
"""Bits of a word of what waits: those of both kinds of block memories."""
_NODES = 500
"""Of the search for options that are whole, at most."""
_PRICES = tuple(4.0 / 1.25**k for k in range(16))
"""Of all time slots of the memory ports beside all of one kind of memory, until a choice fits."""
STORES = slice(1, 4)
"""Those of them in which a memory may lie, in the order of `Item.costs`."""


def in_order(used: Resources, slots: float) -> tuple[float, ...]:
    """Resources, and time slots, in the order of `NAMES`."""
    return used.dsp, used.lut, used.bram36, used.uram, slots, used.ff


@dataclass(frozen=True)
class Room:
    """The limits of a board for a stage.

    Attributes:
        most: Beside all that stands there whatever is computed, [resources].
        controllers: How many memory controllers more there may be.
        shell: What each of these takes, [resources].
        lut_memory: LUTs that may serve as memory.
        period: Cycles of one round of the memory ports' time slots.
    """

    most: Numbers
    controllers: int
    shell: Numbers
    lut_memory: float
    period: int


@dataclass(frozen=True)
class Shortage:
    """Why something does not fit a board.

    Attributes:
        exceeded: The limits that are exceeded, each with by how much.
        of_memory: Whether less memory would help.
        least: An interval that might do, if that is known.
    """

    exceeded: tuple[str, ...]
    of_memory: bool = False
    least: int = 0


@dataclass
class Option:
    """Resources of some engines: what is fixed, and memories that go to one of three kinds.

    Attributes:
        block: Vectors per pass over streamed weights; 0 if weights are on chip.
        used: What engines take without memories; block RAMs of adapters.
        rates: Beats per cycle of every client of a memory port.
        items: Memories.
        fifos: FIFOs for about what waits while blocks of vectors are gathered.
        ported: Memory ports, at most, whose controllers it needs.
    """

    block: int = 0
    used: Resources = field(default_factory=Resources)
    rates: list[float] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    fifos: tuple[Item, ...] = ()
    ported: int = 0

    def sum_fixed(self, period: int) -> tuple[float, ...]:
        """Resources besides memories, [resources]; slots are those in rounds of so many cycles."""
        return in_order(self.used, sum(slots_for(rate, period) for rate in self.rates))

    def add(self, engine: Engine) -> None:
        """Count an engine."""
        self.used += logic(engine)
        self.items += items_of(engine)


def fit(options: Sequence[Option], room: Room) -> list[Memory] | Shortage:
    """A kind of memory for every item of some options, or what they exceed of a board together."""
    more = min(max(sum(o.ported for o in options) - 1, 0), room.controllers)
    used = np.sum([o.sum_fixed(room.period) for o in options], axis=0) + more * room.shell
    if exceeded := check_limits(NAMES, used, room.most):
        return Shortage(exceeded)
    beside, limit = used[STORES], room.most[STORES].copy()
    if room.lut_memory < limit[0] - beside[0]:
        beside[0], limit[0] = 0.0, room.lut_memory
    items = [item for o in options for item in o.items]
    kinds = place(items, limit - beside)
    for item, kind in zip(items, kinds, strict=True):
        beside[KINDS.index(kind)] += item.costs[KINDS.index(kind)]
    exceeded = check_limits(NAMES[STORES], beside, limit)
    return Shortage(exceeded, of_memory=True) if exceeded else kinds


@dataclass(frozen=True)
class Group:
    """Engines of one unit: ``options[0]`` has the weights on chip, the others stream them.

    Attributes:
        unit: Placement unit.
        layer: The layer that they compute; empty where there is nothing to choose.
        options: What they may take.
    """

    unit: int
    layer: str
    options: tuple[Option, ...]


T = TypeVar("T")
Engines = tuple[Engine, ...]
Choice = tuple[Option, ...]
"""An option of every group."""


@dataclass(frozen=True)
class Demand:
    """The groups of all units at one target, and which units miss it.

    Attributes:
        groups: In any order.
        late: Whether a unit has an engine that is busy longer than the target, [units].
    """

    groups: tuple[Group, ...]
    late: NDArray[np.bool_]

    def part(self, units: NDArray[np.bool_]) -> "Demand":
        """Of some units only, [units]."""
        return dataclasses.replace(self, groups=tuple(g for g in self.groups if units[g.unit]))

    def choose(
        self, room: Room, attempt: Callable[[Choice], T | Shortage], lacks: Shortage
    ) -> T | Shortage:
        """The result for the first choice of layers to stream that fits.

        Not everything is known when layers are chosen: what waits in FIFOs depends on all choices,
        and memories are whole. At a lower price of time slots a choice takes less memory; the
        highest price at which all fits is found by bisection. Where none fits, options are chosen
        whole, and such that LUTs are left: converters, which depend on all choices, take them.

        Args:
            room: What a board offers.
            attempt: What comes of a choice, or what it lacks.
            lacks: What all weights on chip lack.

        Returns:
            What the last choice that was tried lacked if none fits.
        """
        groups = list[Group]()
        for g in self.groups:  # without ways with a client for which a memory port is too slow
            ways = (
                o
                for o in g.options[1:]
                if all(slots_for(rate, room.period) <= SLOTS for rate in o.rates)
            )
            groups.append(dataclasses.replace(g, options=(g.options[0], *ways)))
        demand, found = dataclasses.replace(self, groups=tuple(groups)), cast("T | Shortage", lacks)
        if not lacks.of_memory or all(len(g.options) == 1 for g in groups):
            return lacks
        low, high = -1, len(_PRICES)
        while high - low > 1:
            middle = (low + high) // 2
            choice = demand.find_cheapest(room, _PRICES[middle])
            if choice is None:
                return found
            tried = attempt(choice)
            if not isinstance(tried, Shortage) or isinstance(found, Shortage):
                found = tried
            if isinstance(tried, Shortage) and tried.of_memory:
                low = middle
            else:
                high = middle
        if isinstance(found, Shortage) and (choice := demand.find_cheapest(room, 0.0, whole=True)):
            return attempt(choice)
        return found

    def find_cheapest(self, room: Room, price: float, *, whole: bool = False) -> Choice | None:
        """The option of each group that costs least in all; None if the board is too small.

        A linear program over the shares of options and of memories in their kinds; a group takes
        the option with the largest share. The price is what all time slots count beside all of one
        kind of memory. If options are ``whole``, LUTs count most, too.
        """
        options = [o for g in self.groups for o in g.options]
        items = [(k, item) for k, o in enumerate(options) for item in (*o.items, *o.fifos)]
        most = room.most - room.controllers * room.shell
        count, limit = len(options), np.append(most, room.lut_memory)
        use = np.zeros((len(limit), count + 3 * len(items)))
        use[:-1, :count] = np.array([o.sum_fixed(room.period) for o in options]).T
        costs = np.array([item.costs for _, item in items]).reshape(-1, 3)
        at = count + 3 * np.arange(len(items))
        for kind in range(3):
            use[STORES.start + kind, at + kind] = costs[:, kind]
        use[-1, at] = costs[:, 0]
        use /= np.maximum(limit, 1e-6)[:, None]
        sums, once = self._constraints([k for k, _ in items])
        memory = 0.3 if whole else 1.0
        prices = np.array([0.0, 1.0, memory, memory, price, 0.0])
        # the stubs know no sparse matrices here
        found: OptimizeResult = milp(
            prices @ use[:-1] + 1e-3 * use.sum(axis=0),
            integrality=np.repeat([int(whole), 0], [count, 3 * len(items)]),
            options={"mip_rel_gap": 1e-3, "node_limit": _NODES},
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(
                vstack([csr_array(use), sums]),
                np.concatenate([np.full(len(use), -np.inf), once]),
                np.concatenate([np.ones(len(use)), once]),
            ),
        )
        if found.x is None:
            return None
        ends = np.cumsum([len(g.options) for g in self.groups])[:-1]
        return self._round(np.split(found.x[:count], ends), room.most[0])

    def _round(self, shares: Sequence[Numbers], dsp: float) -> Choice:
        """One option of each group, of those that are split one of fewer DSPs if they run out."""
        chosen = [g.options[int(x.argmax())] for g, x in zip(self.groups, shares, strict=True)]
        split = [
            (x[n], k, o)
            for k, (g, x) in enumerate(zip(self.groups, shares, strict=True))
            for n, o in enumerate(g.options)
            if x[n] > 1e-6 and o.used.dsp < chosen[k].used.dsp
        ]
        for _, k, option in sorted(split, key=lambda each: -each[0]):
            if sum(o.used.dsp for o in chosen) > dsp:
                chosen[k] = option
        return tuple(chosen)

    def _constraints(self, owner: Sequence[int]) -> tuple[csr_array, Numbers]:
        """One option per group, one kind per memory of an option that is taken: matrix and sums."""
        sizes = [len(g.options) for g in self.groups]
        groups, options, items = len(sizes), sum(sizes), len(owner)
        of = groups + np.arange(items)
        rows = np.concatenate([np.repeat(np.arange(groups), sizes), np.repeat(of, 3), of])
        columns = np.concatenate([np.arange(options + 3 * items), np.array(owner, dtype=np.int64)])
        values = np.concatenate([np.ones(options + 3 * items), -np.ones(items)])
        shape = (groups + items, options + 3 * items)
        matrix = csr_array((values, (rows, columns)), shape=shape)
        return matrix, np.concatenate([np.ones(groups), np.zeros(items)])

    def fits(self, room: Room) -> bool:
        """Whether some choice of options fits a board, memories placed."""
        on_chip = fit([g.options[0] for g in self.groups], room)
        if not isinstance(on_chip, Shortage):
            return True
        return not isinstance(self.choose(room, lambda c: fit(c, room), on_chip), Shortage)


@dataclass
class Demands:
    """Demands of one network by target, made when asked for.

    Attributes:
        network: The layers.
        precision: Element type of the streams.
        unit_of: Node name to unit; engines of other nodes (inputs) count for their reader.
        units: Number of units.
    """

    network: Network
    precision: str
    unit_of: Mapping[str, int]
    units: int = 1

    def __post_init__(self) -> None:
        self._built: dict[tuple[str, Folded], Built] = {}
        self._made: dict[int, Demand] = {}
        self._options: dict[Engines, Option] = {}
        self._blocks = blocks_of(self.network)
        self._dense = {y.name: y for y in self.network.layers if isinstance(y.nest, Mvu)}
        self._beside = bits_beside(self.network)

    def at(self, target: int) -> Demand:
        """The demand when no engine is busy longer than ``target`` cycles."""
        if target not in self._made:
            self._made[target] = self._demand(target)
        return self._made[target]

    def design(self, target: int, streamed: Mapping[str, int] | None = None) -> StageDesign:
        """The network folded for a target; of ``streamed`` layers the vectors per pass."""
        return design_at(
            self.network, target, dtype=self.precision, streamed=streamed, built=self._built
        )

    def _unit(self, engine: Engine, engines: Mapping[str, Engine], design: StageDesign) -> int:
        """The unit of an engine; one at an input of the model counts for what it feeds."""
        while engine.node not in self.unit_of:
            readers = [design.streams[s].consumer for s in engine.outputs]
            known = [engines[r] for r in readers if r is not None]
            if not known:
                return 0
            engine = known[0]
        return self.unit_of[engine.node]

    def _demand(self, target: int) -> Demand:
        design = deepen_fifos(self.design(target))
        engines = {e.name: e for e in design.engines}
        late = np.zeros(self.units, dtype=bool)
        plain: dict[int, Option] = {}
        chips = {name: Option() for name in self._blocks}
        member = {e.name: name for name in chips for e in self._engines(name, target, 0)}
        for engine in design.engines:
            unit, name = self._unit(engine, engines, design), member.get(engine.name)
            late[unit] |= busy_cycles(engine) > target
            option = plain.setdefault(unit, Option()) if name is None else chips[name]
            option.add(engine)
            option.used += fifos_logic(design.streams[s] for s in engine.outputs)
        for stream in design.streams.values():
            item, owner = fifo_item(stream), stream.producer or stream.consumer
            if item is not None and owner is not None:
                unit = self._unit(engines[owner], engines, design)
                plain.setdefault(unit, Option()).items.append(item)
        groups = [Group(unit, "", (option,)) for unit, option in plain.items()]
        for name, chip in chips.items():
            unit = self.unit_of.get(self._dense[name].node, 0)
            groups.append(Group(unit, name, (chip, *self._stream_options(name, target))))
        return Demand(tuple(groups), late)

    def _engines(self, name: str, target: int, block: int) -> Engines:
        return build_for(self._dense[name], target, self.precision, block, self._built).engines

    def _stream_options(self, name: str, target: int) -> list[Option]:
        """The layer with streamed weights, where it meets the target so.

        A block's results leave together and wait for their reader, and so long waits what goes
        around the layer.
        """
        found, layer = list[Option](), self._dense[name]
        for block in self._blocks[name]:
            engines = self._engines(name, target, block)
            if max(map(busy_cycles, engines)) > target:
                continue
            if engines not in self._options:
                assert isinstance(layer.nest, Mvu)
                results = block * layer.channels * bits_of(layer.dtype or self.precision)
                words = int(results + self._beside[name] * block / layer.nest.n) // _WORD
                fifos = (Item(name, "fifo", _WORD, words),) if words else ()
                self._options[engines] = option = Option(block, fifos=fifos, ported=1)
                for engine in engines:
                    option.add(engine)
                    if isinstance(engine.nest, Load):
                        option.rates.append(beats(engine, busy_cycles(engines[-1])))
            found.append(self._options[engines])
        return found


def bits_beside(network: Network) -> dict[str, int]:
    """Bits per frame of the values that go past each layer: written before it, read behind it."""
    number = {layer.name: k for k, layer in enumerate(network.layers)}
    last: dict[str, tuple[int, int]] = {}
    for k, layer in enumerate(network.layers):
        for use in layer.inputs:
            last[use.edge] = (k, use.rows * use.channels * bits_of(use.dtype))
    change = np.zeros(len(number) + 1, dtype=np.int64)
    for edge, (reader, bits) in last.items():
        writer = number.get(edge, -1)
        if reader > writer + 1:
            change[writer + 1] += bits
            change[reader] -= bits
    return dict(zip(number, np.cumsum(change).tolist(), strict=False))
