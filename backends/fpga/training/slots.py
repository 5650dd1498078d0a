"""Time slots of memory ports for values that move; see `pipec.backends.fpga.banks`.

What engines that read weights leave of a port's table is divided more finely among the movers,
which are many and want little each: K*A slots in rounds of K periods.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping

from pipec.backends.fpga.banks import BEAT_BITS, READ_LATENCY, SLOTS, banks_of, period
from pipec.backends.fpga.design import DdrPort, StageDesign
from pipec.backends.fpga.fifo import busiest
from pipec.cluster.device import Device

_EACH = 8
"""Slots for each mover, about."""
_STEP, _SLOWEST = 1.02, 1000.0
"""Growth of the interval until the slots suffice, and when to give up."""


def with_slots(
    design: StageDesign, device: Device, known: Mapping[str, str] | None = None
) -> StageDesign | None:
    """The design with time slots for its movers, at the least interval at which they suffice.

    Args:
        design: Kernels with movers; what reads weights has its slots.
        device: Their board.
        known: Group of memory ports to the bank where its data lies.

    Returns:
        None if what reads weights leaves too little of the memory's time.
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
    rounds, slowest = period(device) * finer, _SLOWEST * max(design.interval, 1)
    interval = max(design.interval, 1)
    while interval <= slowest:
        slots = {p.engine: _slots(design, p, rounds, interval) for p in movers}
        where = _assigned(movers, slots, free, known or {})
        if where is not None:
            return _slotted(design, slots, where, rounds, interval)
        interval = math.ceil(interval * _STEP)
    return None


def _slots(design: StageDesign, port: DdrPort, rounds: int, interval: int) -> int:
    """Fewest slots in which a mover is done within the interval."""
    tokens = design.streams[_stream(port)].tokens
    longest = max(interval // tokens, 1)  # cycles per token
    return max(math.ceil(_beats(port) * rounds / longest), 1)


def _beats(port: DdrPort) -> float:
    return port.word_bits / BEAT_BITS


def _stream(port: DdrPort) -> str:
    assert port.carries is not None
    return port.carries.stream


def _assigned(
    movers: list[DdrPort],
    slots: Mapping[str, int],
    free: Mapping[str, int],
    known: Mapping[str, str],
) -> dict[str, str] | None:
    """A bank for every group, the largest first, the emptiest; None if slots run out."""
    wanted: dict[str, int] = defaultdict(int)
    for port in movers:
        wanted[port.group] += slots[port.engine]
    left, where = dict(free), dict[str, str]()
    for group in sorted(wanted, key=lambda g: (g not in known, -wanted[g])):
        bank = known.get(group) or max(left, key=lambda b: left[b])
        left[bank] -= wanted[group]
        if left[bank] < 0:
            return None
        where[group] = bank
    return where


def _slotted(
    design: StageDesign,
    slots: Mapping[str, int],
    where: Mapping[str, str],
    rounds: int,
    interval: int,
) -> StageDesign:
    clock, ports = design.clock_mhz * 1e6, list[DdrPort]()
    engines = {e.name: e for e in design.engines}
    for port in design.ddr:
        if port.carries is None:
            ports.append(port)
            continue
        count, engine = slots[port.engine], engines[port.engine]
        ii = math.ceil(_beats(port) * rounds / count)
        engines[port.engine] = dataclasses.replace(engine, ii=ii, depth=READ_LATENCY + rounds)
        ports.append(
            dataclasses.replace(
                port,
                bank=where[port.group],
                slots=count,
                period=rounds,
                bytes_per_second=port.bytes_per_frame * clock / interval,
            )
        )
    found = dataclasses.replace(design, engines=tuple(engines.values()), ddr=tuple(ports))
    return dataclasses.replace(found, interval=max(interval, busiest(found)[0]))
