"""Memory ports shared by time slots: which engine reads which DDR or HBM port, and how often.

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
from collections.abc import Mapping, Sequence

from pipec.backends.fpga.design import DdrPort, StageDesign
from pipec.backends.fpga.engines.base import Engine, busy_cycles
from pipec.backends.fpga.engines.memory import Gather, Load
from pipec.backends.fpga.engines.parts import PORT_BITS, Memory
from pipec.backends.fpga.lowering.network import MemoryPorts
from pipec.backends.fpga.numbers import bits_of
from pipec.cluster.device import Device, FpgaResources

BEAT_BITS = PORT_BITS
SLOTS = 64
"""Slots of a port's table: a client that wants little takes no more than a sixty-fourth."""
READ_LATENCY = 64
"""Cycles from a read request to its first beat, about, DDR4 and HBM2 at 200-300 MHz."""


def banks_of(fabric: FpgaResources) -> tuple[str, ...]:
    """Names of a board's memory ports, as ``v++`` knows them: ``DDR[0]``, ``HBM[31]``."""
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
    rate = device.memory_bandwidth * device.fpga.memory_limit / device.fpga.memory_ports
    share = min(1.0, rate / (BEAT_BITS // 8 * device.fpga.clock_hz))
    return math.ceil(SLOTS / share)


def beats(engine: Engine, cycles: int) -> float:
    """Beats per cycle that an engine must read to be done within some cycles, or as fast as it is.

    Times the `period` and rounded up these are the fewest slots at which it keeps up.
    """
    assert isinstance(engine.nest, Load | Gather)
    firings = busy_cycles(engine) // engine.ii
    word = engine.nest.lanes * bits_of(engine.dtype) / BEAT_BITS
    return word / (max(cycles, busy_cycles(engine)) // firings)


def slots_for(rate: float, rounds: int) -> int:
    """Slots in rounds of so many cycles that move so many beats per cycle.

    Example:
        >>> slots_for(1 / 3, 16)
        6
    """
    return max(1, math.ceil(rate * rounds - 1e-9))


def with_banks(design: StageDesign, device: Device) -> StageDesign | None:
    """The design with every memory client on a port, its interval and depth those of its slots.

    Args:
        design: A stage with memory ports.
        device: Its board.

    Returns:
        None if there are not slots enough for every engine to keep up with the one that it feeds,
        or a table is larger than the memory behind a port.
    """
    if device.fpga is None or not design.ddr:
        return design
    rounds, engines = period(device), {e.name: e for e in design.engines}
    slots = {p.name: slots_for(_rate(p, engines, design), rounds) for p in design.ddr}
    sizes = {p.name: _table_bytes(engines[p.engine]) for p in design.ddr}
    banks = assigned(slots, banks_of(device.fpga), sizes, memory_ports(device).room)
    if banks is None:
        return None
    for port in design.ddr:
        engine = engines[port.engine]
        ii = math.ceil(port.word_bits / BEAT_BITS * rounds / slots[port.name])
        engines[engine.name] = dataclasses.replace(
            engine, ii=max(engine.ii, ii), depth=READ_LATENCY + rounds
        )
    return dataclasses.replace(
        design,
        engines=tuple(engines[e.name] for e in design.engines),
        ddr=tuple(
            dataclasses.replace(p, bank=banks[p.name], slots=slots[p.name], period=rounds)
            for p in design.ddr
        ),
    )


def _rate(port: DdrPort, engines: Mapping[str, Engine], design: StageDesign) -> float:
    engine = engines[port.engine]
    user = design.streams[engine.outputs[0]].consumer
    return beats(engine, busy_cycles(engines[user or engine.name]))


def _table_bytes(engine: Engine) -> int:
    """Bytes of the tables that an engine reads from memory."""
    return sum(w.bits // 8 for w in engine.weights if w.memory is Memory.DDR)


def assigned(
    slots: Mapping[str, int],
    banks: Sequence[str],
    sizes: Mapping[str, int] | None = None,
    room: float = math.inf,
) -> dict[str, str] | None:
    """A bank for every client, the most demanding first.

    Each takes the emptiest bank; where slots run out in that way, the fullest that has enough.

    Args:
        slots: Client to the slots that it needs.
        banks: Memory ports.
        sizes: Client to the bytes that it keeps there; nothing if not given.
        room: Bytes behind a port.

    Returns:
        None if a client finds no bank.
    """
    sizes = dict.fromkeys(slots, 0) if sizes is None else sizes
    order = sorted(slots, key=lambda name: (-slots[name], -sizes[name]))
    for packed in (False, True):
        free, left, found = dict.fromkeys(banks, SLOTS), dict.fromkeys(banks, room), {}
        for name in order:
            fitting = [b for b in banks if free[b] >= slots[name] and left[b] >= sizes[name]]
            if not fitting:
                break
            bank = min(fitting, key=lambda b: free[b] if packed else -free[b])
            free[bank] -= slots[name]
            left[bank] -= sizes[name]
            found[name] = bank
        else:
            return found
    return None
