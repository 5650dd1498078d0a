"""What the layers of a network take of a board when all engines keep one target interval.

The network is folded for the target; each engine counts for the placement unit that its node
belongs to. Weights of a layer may lie on chip, in LUT, block or Ultra RAM each, or be streamed
from DDR with buffers of several sizes: these are the options of the layer, and units fit a board
if some choice of options does: a multiple-choice knapsack. `Demand.weighed` gives its Lagrangian
bounds, for the cut; `pipec.backends.fpga.choice` solves its relaxation, for one board.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.banks import SLOTS, beats, slots_for
from pipec.backends.fpga.build import Built, build
from pipec.backends.fpga.design import Engine, StageDesign, bits_of
from pipec.backends.fpga.detours import detours
from pipec.backends.fpga.factors import Factors, fold
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.layers import Dense
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.memory import Item, fifo_item, items_of, shift_registers
from pipec.backends.fpga.resources import logic
from pipec.backends.fpga.routing import Load
from pipec.backends.fpga.runs import busy_cycles
from pipec.backends.fpga.streaming import blocks_of, ddr_ports

Numbers = NDArray[np.float64]
RESOURCES = ("dsp", "lut", "bram36", "uram", "ddr")
"""Order of the resources in every array here; ``ddr`` in time slots of memory ports."""
_WORD = 72
"""Bits of a word of what waits: those of both kinds of block memories."""
STORES = slice(1, 4)
"""Those of them in which a memory may lie, in the order of `Item.costs`."""


@dataclass(frozen=True)
class Room:
    """What a board offers a stage.

    Attributes:
        most: Without memory controllers, [resources].
        shell: What these take where weights are streamed, [resources].
        lut_memory: LUTs that may serve as memory.
        period: Cycles of one round of the memory ports' time slots.
    """

    most: Numbers
    shell: Numbers
    lut_memory: float
    period: int


@dataclass
class Option:
    """Resources of some engines: what is fixed, and memories that go to one of three kinds.

    Attributes:
        block: Vectors per pass over streamed weights; 0 if weights are on chip.
        dsp: Slices; ``lut`` without memories.
        rates: Beats per cycle of every client of a memory port.
        items: Memories.
        waits: Bits that wait in FIFOs since blocks of vectors are gathered.
    """

    block: int = 0
    dsp: float = 0.0
    lut: float = 0.0
    waits: float = 0.0
    rates: list[float] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def fixed(self, period: int) -> tuple[float, ...]:
        """What it takes besides memories, [resources], slots in rounds of so many cycles."""
        return (self.dsp, self.lut, 0.0, 0.0, sum(slots_for(rate, period) for rate in self.rates))

    def carried(self, period: int) -> bool:
        """Whether a memory port alone is quick enough for each client."""
        return all(slots_for(rate, period) <= SLOTS for rate in self.rates)

    def add(self, engine: Engine) -> None:
        """Count an engine."""
        used = logic(engine)
        self.dsp, self.lut = self.dsp + used.dsp, self.lut + used.lut
        self.items += items_of(engine)


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


@dataclass(frozen=True)
class Demand:
    """The groups of all units at one target, and which units miss it.

    Attributes:
        units: Number of units.
        groups: In any order.
        late: Whether a unit has an engine that is busy longer than the target, [units].
    """

    units: int
    groups: tuple[Group, ...]
    late: NDArray[np.bool_]

    def on(self, room: Room) -> "Demand":
        """Without ways of streaming for which a memory port is too slow."""
        groups = [
            dataclasses.replace(
                g, options=(g.options[0], *(o for o in g.options[1:] if o.carried(room.period)))
            )
            for g in self.groups
        ]
        return dataclasses.replace(self, groups=tuple(groups))

    def part(self, units: NDArray[np.bool_]) -> "Demand":
        """Of some units only, [units]."""
        return dataclasses.replace(self, groups=tuple(g for g in self.groups if units[g.unit]))

    def weighed(self, weights: Numbers, room: Room, *, streams: bool) -> Numbers:
        """Least use of every unit per weighting of the resources.

        If the sum over a run of units exceeds 1 for any weighting, the run does not fit, whatever
        is chosen (weak duality); by linear programming duality the converse holds but for split
        choices, if all weightings are looked at.

        Args:
            weights: Non-negative, each row sums to 1, [weightings, resources].
            room: What the board offers.
            streams: Whether weights may be streamed.

        Returns:
            Shares of the board, [weightings, units].
        """
        limit = room.most - room.shell if streams else room.most
        price = weights / np.maximum(limit, 1e-9)
        least = _priced([g.options[0] for g in self.groups], price, room.period)
        if streams:
            most = max((len(g.options) for g in self.groups), default=1)
            for k in range(1, most):
                at = np.array([n for n, g in enumerate(self.groups) if k < len(g.options)])
                cost = _priced([self.groups[n].options[k] for n in at], price, room.period)
                least[:, at] = np.minimum(least[:, at], cost)
        at = np.array([g.unit for g in self.groups], dtype=np.int64)
        order = np.argsort(at, kind="stable")
        starts = np.flatnonzero(np.diff(at[order], prepend=-1))
        found = np.zeros((len(weights), self.units))
        found[:, at[order][starts]] = np.add.reduceat(least[:, order], starts, axis=1)
        return found


def _priced(options: Sequence[Option], price: Numbers, period: int) -> Numbers:
    """Cost of options under prices, every memory in its cheapest kind, [weightings, options]."""
    if not options:
        return np.zeros((len(price), 0))
    total: Numbers = price @ np.array([o.fixed(period) for o in options]).T
    owner = np.array([k for k, o in enumerate(options) for _ in o.items], dtype=np.int64)
    if len(owner):
        costs = np.array([item.costs for o in options for item in o.items])
        each = np.min(price[:, None, STORES] * costs, axis=2)
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        total[:, owner[starts]] += np.add.reduceat(each, starts, axis=1)
    return total


@dataclass
class Demands:
    """Demands of one network by target, made when asked for.

    Attributes:
        network: The layers.
        precision: Element type of the streams.
        unit_of: Node name to unit; engines of other nodes (inputs) count for their reader.
        units: Number of units.
        fifos: Memories of deep FIFOs and the units that they count for.
        waiting: How many times the bits that options of streaming say wait are counted.
        built: Engines of layers under factors seen before.
    """

    network: Network
    precision: str
    unit_of: Mapping[str, int]
    units: int = 1
    fifos: tuple[tuple[int, Item], ...] = ()
    waiting: float = 0.0
    built: dict[tuple[str, Factors], Built] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made: dict[int, Demand] = {}
        self._options: dict[tuple[str, Factors], tuple[int, Option]] = {}
        self._blocks = blocks_of(self.network)
        self._dense = {y.name: y for y in self.network.layers if isinstance(y, Dense)}
        self._detours = detours(self.network, self._blocks)

    def at(self, target: int) -> Demand:
        """The demand when no engine is busy longer than ``target`` cycles."""
        if target not in self._made:
            self._made[target] = self._demand(target)
        made = self._made[target]
        deep = [Group(unit, "", (Option(items=[item]),)) for unit, item in self.fifos]
        return dataclasses.replace(made, groups=(*made.groups, *deep))

    def reserve(self, design: StageDesign) -> None:
        """Count the deep FIFOs of a design of the network from now on."""
        engines = {e.name: e for e in design.engines}
        found = []
        for stream in design.streams.values():
            item, owner = fifo_item(stream), stream.producer or stream.consumer
            if item is not None and owner is not None:
                found.append((self._unit(engines[owner], engines, design), item))
        self.count(found)

    def count(self, fifos: Sequence[tuple[int, Item]]) -> None:
        """Count these deep FIFOs, each for a unit, from now on."""
        self.fifos = tuple(fifos)

    def wait(self, times: float) -> None:
        """Count so many times the bits that options of streaming say wait, from now on."""
        self.waiting = times
        self._made.clear()

    def waits(self, target: int, streamed: Mapping[str, int]) -> float:
        """Bits that wait in FIFOs for streamed layers, as their options say, not as counted."""
        return sum(self._made_option(name, target, b)[1].waits for name, b in streamed.items())

    def held(self, target: int, streamed: Mapping[str, int]) -> list[Item]:
        """Memories for what waits for streamed layers, as it is counted."""
        options = ((name, self._made_option(name, target, b)[1]) for name, b in streamed.items())
        return [item for name, option in options for item in self._held(name, option)]

    def _held(self, name: str, option: Option) -> list[Item]:
        words = int(self.waiting * option.waits / _WORD)
        return [Item(f"{name} waits", "fifo", _WORD, words)] if words else []

    def design(self, target: int, streamed: Mapping[str, int] | None = None) -> StageDesign:
        """The network folded for a target.

        Args:
            target: Cycles per frame.
            streamed: Layer to vectors per pass over weights that are streamed.
        """
        return design_at(
            self.network, target, dtype=self.precision, streamed=streamed, built=self.built
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
        design = self.design(target)
        engines = {e.name: e for e in design.engines}
        readers = {p.engine for p in ddr_ports(design)}
        late = np.zeros(self.units, dtype=bool)
        plain: dict[int, Option] = {}
        chips = {name: Option() for name in self._blocks}
        member = {e.name: name for name in chips for e in self._engines(name, target, 0)}
        for engine in design.engines:
            unit, name = self._unit(engine, engines, design), member.get(engine.name)
            late[unit] |= busy_cycles(engine) > target
            option = plain.setdefault(unit, Option()) if name is None else chips[name]
            option.add(engine)
            option.lut += shift_registers(design.streams[s] for s in engine.outputs).lut
            if engine.name in readers:
                user = engines[design.streams[engine.outputs[0]].consumer or engine.name]
                option.rates.append(beats(engine, busy_cycles(user)))
        groups = [Group(unit, "", (option,)) for unit, option in plain.items()]
        for name, chip in chips.items():
            unit = self.unit_of.get(self._dense[name].node, 0)
            groups.append(Group(unit, name, (chip, *self._streamed(name, target))))
        return Demand(self.units, tuple(groups), late)

    def _engines(self, name: str, target: int, block: int) -> tuple[Engine, ...]:
        layer = self._dense[name]
        factors = fold(layer, target, self.precision, block=block)
        key = (name, factors)
        if key not in self.built:
            self.built[key] = build(layer, factors, self.precision)
        return self.built[key].engines

    def _streamed(self, name: str, target: int) -> list[Option]:
        """The layer with streamed weights, where it meets the target so."""
        found = []
        for block in self._blocks[name]:
            busy, option = self._made_option(name, target, block)
            if busy <= target:
                items = [*option.items, *self._held(name, option)]
                found.append(dataclasses.replace(option, items=items))
        return found

    def _made_option(self, name: str, target: int, block: int) -> tuple[int, Option]:
        factors = fold(self._dense[name], target, self.precision, block=block)
        if (name, factors) not in self._options:
            self._options[name, factors] = self._option(name, target, block)
        return self._options[name, factors]

    def _option(self, name: str, target: int, block: int) -> tuple[int, Option]:
        """The layer streaming its weights: the cycles of its busiest engine, what it takes.

        A block's results leave together and wait for their reader, and so long waits what goes
        around the layer.
        """
        engines, layer = self._engines(name, target, block), self._dense[name]
        results = block * layer.out * layer.groups * bits_of(layer.dtype or self.precision)
        option = Option(block, waits=results + self._detours[name] * block / layer.n)
        for engine in engines:
            option.add(engine)
            if isinstance(engine.nest, Load):
                option.rates.append(beats(engine, busy_cycles(engines[-1])))
        return max(busy_cycles(e) for e in engines), option
