"""Memory ports shared by time slots: which engine reads which DDR or HBM port, and how often.

A board has several memory ports (DDR controllers, HBM pseudo-channels), each with a slot table of
A slots that goes round and round; a slot moves one beat of 512 bits. A client with ``a`` of the A
slots reads a word of b beats every ``b*A/a`` cycles, and a word waits up to A cycles for its slot
on top of the memory's own latency:

```text
II = max(beats of a word, ceil(b * period / a))     D = READ_LATENCY + period
period = A / min(1, bandwidth of the port / (64 bytes * clock))
```

Unlike first-come arbitration this keeps every time a maximum of sums, so the simulator, the C++
and the hardware agree whatever the order of requests.
"""

import dataclasses
import math
from dataclasses import dataclass

from pipec.backends.fpga.design import DdrPort, Engine, StageDesign
from pipec.backends.fpga.factors import PORT_BITS
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.runs import busy_cycles
from pipec.cluster.device import Device, FpgaResources
from pipec.errors import BackendError

BEAT_BITS = PORT_BITS
SLOTS = 16
"""Slots of a port's table."""
READ_LATENCY = 64
"""Cycles from a read request to its first beat, about, DDR4 and HBM2 at 200-300 MHz."""


@dataclass
class _Bank:
    """A memory port under assignment."""

    name: str
    free: int = SLOTS


def banks_of(fabric: FpgaResources) -> tuple[str, ...]:
    """Names of a board's memory ports, as ``v++`` knows them: ``DDR[0]``, ``HBM[31]``."""
    return tuple(f"{fabric.memory_kind}[{k}]" for k in range(fabric.memory_ports))


def most_clients(fabric: FpgaResources) -> int:
    """Engines that can read a board's memory: each needs a time slot."""
    return SLOTS * fabric.memory_ports


def period(design: StageDesign, device: Device) -> int:
    """Cycles of one round of a port's slot table."""
    assert device.fpga is not None
    rate = device.memory_bandwidth / device.fpga.memory_ports
    share = min(1.0, rate / (BEAT_BITS // 8 * design.clock_mhz * 1e6))
    return math.ceil(SLOTS / share)


def with_banks(design: StageDesign, device: Device) -> StageDesign:
    """The design with every memory client on a port, its interval and depth those of its slots.

    The most demanding client chooses first, and takes the emptiest port; where slots run out, a
    client gets what is left and its engine slows down.

    Args:
        design: A stage with its FIFOs sized.
        device: Its board.

    Raises:
        BackendError: There are more clients than slots.
    """
    if device.fpga is None or not design.ddr:
        return design
    banks = [_Bank(name) for name in banks_of(device.fpga)]
    rounds, engines = period(design, device), {e.name: e for e in design.engines}
    ports: dict[str, DdrPort] = {}
    most = most_clients(device.fpga)
    if len(design.ddr) > most:
        raise BackendError(
            "more engines read memory than its ports have time slots",
            where=design.name,
            got=len(design.ddr),
            want=f"at most {most}",
        )
    behind = len(design.ddr)
    for port in sorted(design.ddr, key=lambda p: -p.bytes_per_second):
        engine = engines[port.engine]
        bank = max(banks, key=lambda b: b.free)
        behind -= 1  # each of those gets a slot at least
        left = sum(b.free for b in banks) - behind
        slots = min(_wanted(port, engine, design, rounds), bank.free, left)
        bank.free -= slots
        ports[port.name] = dataclasses.replace(port, bank=bank.name, slots=slots, period=rounds)
        engines[engine.name] = dataclasses.replace(
            engine, ii=interval(port, engine, slots, rounds), depth=READ_LATENCY + rounds
        )
    found = dataclasses.replace(
        design,
        engines=tuple(engines[e.name] for e in design.engines),
        ddr=tuple(ports[p.name] for p in design.ddr),
    )
    return dataclasses.replace(found, interval=max(design.interval, busiest(found)[0]))


def interval(port: DdrPort, engine: Engine, slots: int, rounds: int) -> int:
    """Initiation interval of an engine that reads a port in so many slots of a round."""
    return max(engine.ii, math.ceil(port.word_bits / BEAT_BITS * rounds / slots))


def _wanted(port: DdrPort, engine: Engine, design: StageDesign, rounds: int) -> int:
    """Fewest slots at which the engine keeps up with the engine that it feeds."""
    user = design.streams[engine.outputs[0]].consumer
    budget = busy_cycles(design.engine(user) if user is not None else engine)
    firings = busy_cycles(engine) // engine.ii
    for slots in range(1, SLOTS):
        if firings * interval(port, engine, slots, rounds) <= max(budget, busy_cycles(engine)):
            return slots
    return SLOTS
