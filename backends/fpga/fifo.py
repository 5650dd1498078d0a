"""FIFO depths: what a valid schedule at the least interval holds, stream by stream."""

import dataclasses
import math

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.flow import held, schedule
from pipec.backends.fpga.runs import busy_cycles

MIN_DEPTH = 8
"""Least depth: a shift register of 32 costs the same."""


def busiest(design: StageDesign) -> tuple[int, str]:
    """Cycles per frame of the busiest engine, and its name."""
    return max(((busy_cycles(e), e.name) for e in design.engines), default=(0, ""))


def sized(design: StageDesign) -> StageDesign:
    """The design with FIFO depths that let it reach its busiest engine's interval.

    Interval and latency are filled in: the latency is that of one frame fed at full speed.
    """
    interval, _ = busiest(design)
    steady = schedule(design, float(interval))
    streams = {}
    for name, stream in design.streams.items():
        depth = stream.depth
        if name in steady.written and name in steady.read:
            depth = max(depth, held(steady.written[name], steady.read[name], interval))
        streams[name] = dataclasses.replace(stream, depth=max(depth, MIN_DEPTH))
    alone = schedule(design, None)
    return dataclasses.replace(
        design, streams=streams, interval=interval, latency=math.ceil(alone.end)
    )
