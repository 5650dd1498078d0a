"""The two kernels of a stage on one board: F and B folded together, then separated.

Both stand on the board at once, so they are one network of engines to the search: every engine of
either keeps one interval T, and the least T at which all of them fit is the best division of the
board between forward and backward for schedules that run both at the same time (BaPipe's FBP-AS).
F then takes about a third of the multipliers, B, with two products for each of F's, the rest.
What memory moves meanwhile (saved values, gradient sums) has time slots of its own, and counts for
the interval like an engine.

```text
F ── out_saved_x ──► in_saved_x ─ KEEP ─► FIFO ─► out_saved_x ──► in_saved_x ── B
```

A saved value of b bytes per microbatch, n microbatches in flight, takes n*b bytes: on chip one
FIFO, in DDR a ring, where it also moves 2*b bytes per interval, in and out. Every byte kept on chip
saves the same traffic, so the room is filled with the largest values first. The FIFOs are a kernel
of their own, started once for all microbatches of a step, so that it takes tokens while B is not
running; where one is full, F waits.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.banks import with_slots
from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.demand import Shortage
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, busy_cycles
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.engines.route import Fork
from pipec.backends.fpga.fifo import MIN_DEPTH, add_latency, busiest, deepen_fifos
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.memory import Item, allocate, interface
from pipec.backends.fpga.search import Board, Search, deep_fifos, fit_design
from pipec.backends.fpga.training.movers import (
    Place,
    gradient_sum,
    may_wait,
    ring,
    with_fifos,
    with_movers,
    with_rings,
)
from pipec.backends.fpga.training.phases import Phases, gradient_name
from pipec.errors import BackendError
from pipec.graph.ir import Graph


@dataclass(frozen=True)
class Feature:
    """One saved value.

    Attributes:
        value: Name of the value.
        stream: In which it leaves F.
        sets: Microbatches in flight.
        memory: ``uram``, ``bram`` or ``ddr``.
    """

    value: str
    stream: Stream
    sets: int
    memory: Memory = Memory.DDR

    @property
    def on_chip(self) -> bool:
        """Whether it waits on chip."""
        return self.memory is not Memory.DDR

    @property
    def traffic(self) -> int:
        """Bytes that move to and from DDR per microbatch."""
        return 0 if self.on_chip else 2 * self.stream.nbytes

    @property
    def keep(self) -> Engine:
        """The engine in front of its FIFO."""
        name, ends = identifier(f"keep_{self.value}"), ("arriving", "waiting")
        read, written = (f"{self.value}_{end}" for end in ends)
        return Engine(
            name, Fork(self.stream.tokens, 1), (read,), (written,), depth=1,
            dtype=self.stream.dtype, origin=f"{self.value} on chip",
        )  # fmt: skip

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """The stream into its FIFO, and the FIFO of all microbatches in flight."""
        keep, depth = self.keep, self.sets * self.stream.tokens
        arriving = dataclasses.replace(
            self.stream, name=keep.inputs[0], depth=MIN_DEPTH, producer=None, consumer=keep.name
        )
        waiting = dataclasses.replace(
            self.stream, name=keep.outputs[0], depth=depth, producer=keep.name, consumer=None,
            memory=self.memory,
        )  # fmt: skip
        return arriving, waiting

    @property
    def item(self) -> Item:
        """The memory of that FIFO."""
        fifo = self.streams[1]
        return Item(fifo.name, "fifo", fifo.token_bits, fifo.depth)


def place_features(
    streams: Mapping[str, Stream], sets: int, room: Resources
) -> tuple[Feature, ...]:
    """A place for every saved value, in what F and B leave of the board's memories.

    Values leave F in streams; ``sets`` microbatches are in flight.
    """
    left = {Memory.URAM: room.uram, Memory.BRAM: room.bram36}
    found = {v: Feature(v, stream, sets) for v, stream in streams.items()}
    for value in sorted(streams, key=lambda v: (-streams[v].nbytes, v)):
        _, bram, uram = found[value].item.costs
        cost = {Memory.URAM: uram, Memory.BRAM: bram}
        kind = next((k for k in left if cost[k] <= left[k]), Memory.DDR)
        if kind is not Memory.DDR:
            left[kind] -= cost[kind]
        found[value] = dataclasses.replace(found[value], memory=kind)
    return tuple(found.values())


def make_saved_kernel(
    forward: StageDesign, features: Iterable[Feature], name: str
) -> StageDesign | None:
    """The FIFOs of the values that stay on chip; None if there are none.

    They leave the ports of F, on its board.
    """
    kept = [f for f in features if f.on_chip]
    if not kept:
        return None
    engines = {f.value: f.keep for f in kept}
    leaving = {p.value: p for p in forward.outputs if p.value in engines}
    design = StageDesign(
        name,
        tuple(engines.values()),
        {s.name: s for f in kept for s in f.streams},
        tuple(dataclasses.replace(leaving[v], stream=e.inputs[0]) for v, e in engines.items()),
        tuple(dataclasses.replace(leaving[v], stream=e.outputs[0]) for v, e in engines.items()),
        device=forward.device,
        part=forward.part,
        clock_mhz=forward.clock_mhz,
        limits=forward.limits,
        interval=max(map(busy_cycles, engines.values())),
    )
    return add_latency(allocate(design, {f.item: f.memory for f in kept}, interface(design)))


PREFIX = {"F": "f_", "B": "b_"}
"""The prefix of the names of a phase's engines."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of one stage.

    Attributes:
        F: Forward.
        B: Backward, weight gradients included.
        interval: Cycles per microbatch when both run at the same time.
        features: Saved values and their places.
        saved: Kernel of the values that wait on chip; None if none does.
    """

    F: StageDesign
    B: StageDesign
    interval: int
    features: tuple[Feature, ...]
    saved: StageDesign | None


def networks_of(
    phases: Sequence[Phases], precision: str = "float32"
) -> tuple[tuple[Network, Network], ...]:
    """The networks of F and B of every stage, names prefixed.

    A value keeps the axis order in which its producer sends it: values go down the pipeline,
    gradients come up it, saved values stay in their stage.

    Raises:
        BackendError: Ops that no engine computes.
    """
    sent: dict[str, tuple[int, ...]] = {}
    own: list[dict[str, tuple[int, ...]]] = [{} for _ in phases]

    def network(graph: Graph, phase: str, stage: int) -> Network:
        """One phase; where its outputs arrive they have its order."""
        # saved values of several stages may have one name
        found = lower(graph, precision, sent | own[stage], prefix=PREFIX[phase])
        for orders in (sent, own[stage]):
            orders.update({port.value: port.order for port in found.outputs})
        return found

    forward = [network(p.F, "F", k) for k, p in enumerate(phases)]
    backward = [network(p.B, "B", k) for k, p in reversed(list(enumerate(phases)))]
    return tuple(zip(forward, reversed(backward), strict=True))


_NEAR = 1.1
"""How much longer than engines memory may take for a frame."""


def kernels_on(
    networks: tuple[Network, Network], board: Board, name: str, phases: Phases, sets: int
) -> Kernels:
    """F and B folded onto one board such that both keep the least interval.

    The saved values of ``sets`` microbatches in flight are held.

    Raises:
        BackendError: They do not fit.
    """
    f, b = networks
    both = Network(f.layers + b.layers, f.inputs + b.inputs, f.outputs + b.outputs)
    sums = {gradient_name(n): gradient_sum(n) for n in phases.trained}
    tried = list[tuple[StageDesign, tuple[Feature, ...]]]()

    def lay_out(design: StageDesign, fifos: Sequence[Item]) -> StageDesign | Shortage:
        """The design with its movers, saved values on chip as far as there is room.

        Where memory is slower than engines, slower engines leave it less to move.
        """
        whole = fit_design(design, board, fifos, interface(*split(design)))
        if isinstance(whole, Shortage):
            return whole
        found: StageDesign | Shortage
        leaving = {p.value: whole.streams[p.stream] for p in whole.outputs}
        # none where the rest does not fit
        for room in (board.limits - whole.resources, Resources()):
            features = place_features({v: leaving[v] for v in phases.saved}, sets, room)
            rings = {f.value: ring(f.value, sets) for f in features if not f.on_chip}
            found = _complete(_reset_fifos(whole), {**sums, **rings}, features, board)
            if isinstance(found, StageDesign):
                tried.append((found, features))
                slower = Shortage(("cycles of memory",), least=int(found.interval / _NEAR))
                return slower if found.interval > _NEAR * whole.interval else found
            if not found.of_memory:
                break
        return found

    try:
        Search(both, board, name, movable=may_wait, waiting=phases.saved, lay_out=lay_out).best()
    except BackendError:  # no slower engines, though memory is slower still
        if not tried:
            raise
    found, features = min(tried, key=lambda each: each[0].interval)
    forward, backward = (
        add_latency(dataclasses.replace(p, interval=busiest(p)[0])) for p in split(found)
    )
    between = make_saved_kernel(forward, features, f"{name}_saved")
    return Kernels(forward, backward, found.interval, features, between)


def _complete(
    whole: StageDesign, places: Mapping[str, Place], features: Sequence[Feature], board: Board
) -> StageDesign | Shortage:
    """F and B with movers, laid out; what they lack if that does not fit the board."""
    moving = with_fifos(with_movers(whole, places, tuple(PREFIX.values())), tuple(PREFIX.values()))
    moved = with_slots(moving, board.device)
    if isinstance(moved, tuple):
        return Shortage(moved)
    if between := make_saved_kernel(whole, features, whole.name):  # it takes room too
        moved = dataclasses.replace(moved, limits=board.beside(between.resources).limits)
    ends = interface(*split(moved))
    least = fit_design(moved, board, (), ends)
    if isinstance(least, Shortage):
        return least
    slotted = with_rings(deepen_fifos(moved, [f.value for f in features]))
    slotted = dataclasses.replace(slotted, interval=max(slotted.interval, whole.interval))
    return fit_design(slotted, board, deep_fifos(slotted), ends)


def _reset_fifos(design: StageDesign) -> StageDesign:
    """The design with FIFOs as shallow as before they were sized, but for what decides their place.

    Movers change when values come and go.
    """
    streams = {
        name: s if s.memory is not None or s.initial else dataclasses.replace(s, depth=MIN_DEPTH)
        for name, s in design.streams.items()
    }
    return dataclasses.replace(design, streams=streams)


_OUTPUT = re.compile(r"^out_[0-9]+_")
"""The text before the prefix in the name of a width converter at an output."""


def split(whole: StageDesign) -> list[StageDesign]:
    """F and B of both in one."""
    return [_part(whole, f"{whole.name}_{n}", n[0] + "_") for n in ("forward", "backward")]


def _part(whole: StageDesign, name: str, prefix: str) -> StageDesign:
    """The engines of one kernel, with their streams and ports."""
    engines = tuple(e for e in whole.engines if _OUTPUT.sub("", e.name).startswith(prefix))
    names = {e.name for e in engines}
    streams = {k: s for k, s in whole.streams.items() if s.producer in names or s.consumer in names}
    found = dataclasses.replace(
        whole,
        name=name,
        engines=engines,
        streams=streams,
        inputs=tuple(p for p in whole.inputs if p.node.startswith(prefix)),
        outputs=tuple(p for p in whole.outputs if p.node.startswith(prefix)),
        ddr=tuple(p for p in whole.ddr if p.engine in names),
    )
    used = sum((e.resources for e in engines), interface(found))
    return dataclasses.replace(found, resources=used)
