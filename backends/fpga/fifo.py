"""FIFO depths: what a valid schedule at the least interval holds, stream by stream."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import busy_cycles
from pipec.backends.fpga.flow import Schedule, Transfers, peak_tokens, schedule

MIN_DEPTH = 8
"""Least depth: a shift register of 32 costs the same."""


def find_slowest(busy: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """The first of those that are busy longest, as cycles and name."""
    return max(busy, key=lambda each: each[0], default=(0, ""))


def busiest(design: StageDesign) -> tuple[int, str]:
    """Cycles per frame of the busiest engine, and its name."""
    return find_slowest((busy_cycles(e), e.name) for e in design.engines)


def _needs(design: StageDesign, steady: Schedule, interval: int) -> dict[str, int]:
    """Tokens that every stream holds at most in a schedule."""
    return {
        name: peak_tokens(steady.written[name], steady.read[name], interval)
        for name in design.streams
        if name in steady.written and name in steady.read
    }


def join_fifos(designs: Sequence[StageDesign]) -> tuple[StageDesign, ...]:
    """The stages of a pipeline with FIFO depths that let them run behind one another.

    Where a cut parts the two branches of a residual block, both cross the link, one of them much
    later than the other: alone, each stage would run, but together they deadlock unless the early
    one is kept. So the stages are scheduled at the interval of the slowest, each fed when the one
    before sends, and streams that must hold more for it become deeper. Designs in which nothing
    changes are the same objects.
    """
    interval = max((design.interval for design in designs), default=0)
    found, arrivals = [], dict[str, Transfers]()
    for design in designs:
        steady = schedule(design, float(interval), arrivals)
        found.append(_feed(design, steady, interval))
        arrivals |= {
            port.value: steady.written[port.stream]
            for port in design.outputs
            if port.stream in steady.written
        }
    return tuple(found)


def _feed(design: StageDesign, fed: Schedule, interval: int) -> StageDesign:
    """The design with streams that hold more than if it ran alone as deep as that."""
    alone = _needs(design, schedule(design, float(interval)), interval)
    needed = _needs(design, fed, interval)
    streams = {
        name: dataclasses.replace(stream, depth=needed[name])
        for name, stream in design.streams.items()
        if needed.get(name, 0) > max(alone.get(name, 0), stream.depth)
    }
    return dataclasses.replace(design, streams={**design.streams, **streams}) if streams else design


def size_fifos(design: StageDesign) -> StageDesign:
    """The design `deepen_fifos`, and its latency, which takes as long again to work out."""
    return add_latency(deepen_fifos(design))


def deepen_fifos(design: StageDesign, waiting: Collection[str] | None = None) -> StageDesign:
    """The design with its interval, and FIFO depths that let it reach its busiest engine's.

    Inputs that are ``waiting`` lie elsewhere until they are read (`pipec.backends.fpga.flow`).
    """
    interval, _ = busiest(design)
    needed = _needs(design, schedule(design, float(interval), waiting=waiting), interval)
    streams = {
        name: dataclasses.replace(stream, depth=max(stream.depth, needed.get(name, 0), MIN_DEPTH))
        for name, stream in design.streams.items()
    }
    return dataclasses.replace(design, streams=streams, interval=interval)


def add_latency(design: StageDesign) -> StageDesign:
    """The design with its latency: that of one frame fed at full speed."""
    return dataclasses.replace(design, latency=math.ceil(schedule(design, None).end))
