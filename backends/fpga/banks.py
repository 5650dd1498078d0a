"""Memory ports shared by time slots: who streams weights, reads which DDR or HBM port, how often.

A board has several memory ports (DDR controllers, HBM pseudo-channels), each with a slot table of
A slots that goes round and round; a slot moves one beat of 512 bits. A client with ``a`` of the A
slots reads a word of b beats every ``b*A/a`` cycles, and a word waits up to A cycles for its slot
on top of the memory's own latency:

```text
II = max(beats of a word, ceil(b * period / a))     D = READ_LATENCY + period
period = A / min(1, usable bandwidth of the port / (64 bytes * clock))
```

Unlike first-come arbitration this keeps every time a maximum of sums, so the simulator, the C++
and the hardware agree whatever the order of requests.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from pipec.backends.fpga.design import DdrPort, StageDesign
from pipec.backends.fpga.engines.base import Engine, busy_cycles
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mover import Accumulate
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import MemoryPorts, Network
from pipec.backends.fpga.engines.parts import PORT_BITS, Memory
from pipec.backends.fpga.engines.tiles import ceil_div, divisors
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.memory import check_limits
from pipec.backends.fpga.numbers import bits_of
from pipec.cluster.device import PROCESSOR_PORTS, Device, FpgaResources

SLOTS = 64
"""Slots of a port's table: a client that wants little takes no more than a sixty-fourth."""
READ_LATENCY = 64
"""Cycles from a read request to its first beat, about, DDR4 and HBM2 at 200-300 MHz."""
_EACH = 8
"""Slots for each mover, about."""
_STEP, _SLOWEST = 1.02, 1000.0
"""Growth of the interval until the slots suffice, and when to give up."""
SHARES = (64, 16, 4, 2)
"""Buffers of a streamed layer may hold one of these shares of its matrix, none above a half."""


def banks_of(fabric: FpgaResources) -> tuple[str, ...]:
    """Names of a board's memory ports, as ``v++`` knows them: ``DDR[0]``, ``HBM[31]``, ``HP0``."""
    if fabric.hard_memory:
        return PROCESSOR_PORTS[: fabric.memory_ports]
    return tuple(f"{fabric.memory_kind}[{k}]" for k in range(fabric.memory_ports))


def memory_ports(device: Device) -> MemoryPorts:
    """The memory ports of a device; one of any size if it is no FPGA."""
    if device.fpga is None:
        return MemoryPorts()
    return MemoryPorts(device.fpga.memory_ports, device.memory_bytes / device.fpga.memory_ports)


def time_slots(fabric: FpgaResources) -> int:
    """Time slots of all memory ports of a board together."""
    return SLOTS * fabric.memory_ports


def period(device: Device) -> int:
    """Cycles of one round of a port's slot table."""
    assert device.fpga is not None
    rate = device.memory_rate * device.fpga.memory_limit / device.fpga.memory_ports
    share = min(1.0, rate / (PORT_BITS // 8 * device.fpga.clock_hz))
    return math.ceil(SLOTS / share)


def beats(engine: Engine, cycles: int) -> float:
    """Beats per cycle that an engine must read to be done within some cycles, or as fast as it is.

    Times the `period` and rounded up these are the fewest slots at which it keeps up.
    """
    assert isinstance(engine.nest, Load)
    firings = busy_cycles(engine) // engine.ii
    word = engine.nest.lanes * bits_of(engine.dtype) / PORT_BITS
    return word / (max(cycles, busy_cycles(engine)) // firings)


def slots_for(rate: float, rounds: int) -> int:
    """Slots in rounds of so many cycles that move so many beats per cycle."""
    return max(1, math.ceil(rate * rounds - 1e-9))


def with_banks(design: StageDesign, device: Device) -> StageDesign | tuple[str, ...]:
    """The design with every memory client on a port, its interval and depth those of its slots.

    The limits that are exceeded if there are not slots enough for every engine to keep up with the
    one that it feeds, or tables are larger than the memory behind the ports.
    """
    if device.fpga is None or not design.ddr:
        return design
    rounds, engines = period(device), {e.name: e for e in design.engines}
    users = {s: e for e in design.engines for s in e.inputs}
    slots = {}
    for name in (p.engine for p in design.ddr):
        user = users.get(engines[name].outputs[0], engines[name])
        slots[name] = slots_for(beats(engines[name], busy_cycles(user)), rounds)
    sizes = {
        name: sum(w.bits // 8 for w in engines[name].weights if w.memory is Memory.DDR)
        for name in slots
    }
    free = dict.fromkeys(banks_of(device.fpga), SLOTS)
    where = assign_banks(slots, free, sizes, memory_ports(device).room)
    return where if isinstance(where, tuple) else _pace_by_slots(design, slots, where, rounds)


def with_slots(
    design: StageDesign, device: Device, known: Mapping[str, str] | None = None
) -> StageDesign | tuple[str, ...]:
    """The design with time slots for its movers, at the least interval at which they suffice.

    What engines that read weights leave of a port's table is divided more finely among the movers,
    which are many and want little each: K*A slots in rounds of K periods. Groups of memory ports
    whose data lies in a bank already are ``known``. If it is too little, the limits exceeded.
    """
    movers = [port for port in design.ddr if port.carries is not None]
    if not movers or device.fpga is None:
        return design
    banks = banks_of(device.fpga)
    finer = 1 << max(0, math.ceil(math.log2(_EACH * len(movers) / (SLOTS * len(banks)))))
    free = dict.fromkeys(banks, SLOTS * finer)
    for port in design.ddr:
        if port.carries is None and port.bank:
            free[port.bank] -= port.slots * finer
    rounds, interval = period(device) * finer, max(design.interval, 1)
    slowest = _SLOWEST * interval
    tokens = {p.engine: design.streams[p.carries.stream].tokens for p in movers if p.carries}
    while True:
        longest = {name: max(interval // count, 1) for name, count in tokens.items()}
        rates = {p.engine: p.word_bits / PORT_BITS / longest[p.engine] for p in movers}
        slots = {name: slots_for(rate, rounds) for name, rate in rates.items()}
        wanted: dict[str, int] = defaultdict(int)
        for port in movers:
            wanted[port.group] += slots[port.engine]
        banked = assign_banks(wanted, free, None, memory_ports(device).room, known)
        if not isinstance(banked, tuple):
            where = {p.engine: banked[p.group] for p in movers}
            found = _pace_by_slots(design, slots, where, rounds, 1e6 * design.clock_mhz / interval)
            return dataclasses.replace(found, interval=max(interval, busiest(found)[0]))
        interval = math.ceil(interval * _STEP)
        if interval > slowest:
            return banked


def _pace_by_slots(
    design: StageDesign,
    slots: Mapping[str, int],
    where: Mapping[str, str],
    rounds: int,
    frames: float = 0.0,
) -> StageDesign:
    """The design with engines at the pace of their slots; frames per second say what they move."""
    engines, ports = {e.name: e for e in design.engines}, list[DdrPort]()
    for port in design.ddr:
        if port.engine not in slots:
            ports.append(port)
            continue
        count, engine = slots[port.engine], engines[port.engine]
        ii = max(engine.ii, math.ceil(port.word_bits / PORT_BITS * rounds / count))
        depth = READ_LATENCY + rounds
        nest = engine.nest
        if isinstance(nest, Accumulate):
            nest = dataclasses.replace(nest, least=ceil_div(depth, ii))
        engines[engine.name] = dataclasses.replace(engine, nest=nest, ii=ii, depth=depth)
        rate = port.bytes_per_frame * frames or port.bytes_per_second
        ports.append(
            dataclasses.replace(
                port, bank=where[port.engine], slots=count, period=rounds, bytes_per_second=rate
            )
        )
    return dataclasses.replace(design, engines=tuple(engines.values()), ddr=tuple(ports))


def assign_banks(
    slots: Mapping[str, int],
    free: Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    room: float = math.inf,
    known: Mapping[str, str] | None = None,
) -> dict[str, str] | tuple[str, ...]:
    """A bank for every client, the most demanding first.

    Each takes the emptiest bank; where slots run out in that way, the fullest that has enough.

    Args:
        slots: Client to the slots that it needs.
        free: Memory ports and their free slots.
        sizes: Client to the bytes that it keeps there; nothing if not given.
        room: Bytes behind a port.
        known: Clients whose data already lie in a bank.

    Returns:
        The limits that are exceeded, each with by how much, if a client finds no bank.
    """
    sizes, known = sizes or dict.fromkeys(slots, 0), known or {}
    order = sorted(slots, key=lambda name: (name not in known, -slots[name], -sizes[name]))
    for packed in (False, True):
        left, space, found = dict(free), dict.fromkeys(free, room), dict[str, str]()
        for name in order:
            allowed = [known[name]] if name in known else list(free)
            fitting = [b for b in allowed if left[b] >= slots[name] and space[b] >= sizes[name]]
            if not fitting:
                break
            bank = min(fitting, key=lambda b: left[b] if packed else -left[b])
            left[bank] -= slots[name]
            space[bank] -= sizes[name]
            found[name] = bank
        else:
            return found
    whole, most, total = sum(slots.values()), max(free.values()), sum(sizes.values())
    needs = np.array((whole, max(slots.values()), total, max(sizes.values())), np.float64)
    limits = np.array((sum(free.values()), most, len(free) * room, room))
    names = ("time slots", "time slots of one port", "bytes of memory", "bytes behind one port")
    return check_limits(names, needs, limits) or (
        f"{whole:,} time slots and {total:,} bytes of {len(slots)} clients do not divide among "
        f"{len(free)} memory ports of at most {most:,} slots and {room:,.0f} bytes",
    )


def block_of(nest: Mvu, share: int) -> int:
    """Vectors per pass over streamed weights: as many as buffers of 1/share of the matrix hold.

    0 where streaming makes no sense: grouped layers, and buffers larger than that.
    """
    if nest.groups > 1:
        return 0
    matrix, vector = nest.rows * nest.taps * nest.channels, nest.taps * nest.channels + nest.rows
    if nest.n > 1 and vector * share > matrix:
        return 0
    return max(v for v in divisors(nest.n) if v == 1 or v * vector * share <= matrix)


def blocks_of(network: Network) -> dict[str, tuple[int, ...]]:
    """Layers that may stream their weights: name to the choices of vectors per pass."""
    found = {}
    for layer in network.layers:
        if isinstance(layer.nest, Mvu):
            blocks = {block_of(layer.nest, share) for share in SHARES} - {0}
            if blocks:
                found[layer.name] = tuple(sorted(blocks))
    return found


def ddr_ports(design: StageDesign) -> tuple[DdrPort, ...]:
    """The m_axi ports of a design: one per engine that reads DDR.

    A port needs its traffic within the busy cycles of the engine that the words are for.
    """
    ports: list[DdrPort] = []
    clock = design.clock_mhz * 1e6
    for engine in design.engines:
        if isinstance(nest := engine.nest, Load):
            bits = nest.lanes * bits_of(engine.dtype)
            nbytes = nest.words * nest.repeat * bits // 8
            user = design.engine(design.streams[engine.outputs[0]].consumer or engine.name)
            rate = nbytes * clock / busy_cycles(user)
            ports.append(DdrPort(f"gmem{len(ports)}", engine.name, bits, nbytes, rate))
    return tuple(ports)
