"""Cycles of a stage: its engines and ports as processes, simulated handshake by handshake.

The semantics are those of `pipec.backends.fpga.runs`, the simulator is
`pipec.backends.fpga.simulator.native`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.engines.base import run_table
from pipec.backends.fpga.simulator.native import simulate
from pipec.backends.fpga.simulator.process import Process, Style, Trace, port_process, written
from pipec.errors import BackendError

__all__ = [
    "Process",
    "Trace",
    "depths_of",
    "initial_of",
    "processes_of",
    "simulate",
    "simulated",
    "steady_state",
]

MOST_FRAMES = 32
"""Frames after which a network that has not become steady is taken as it is."""


def steady_state(
    processes: Sequence[Process],
    depths: Mapping[str, int],
    initial: Mapping[str, int] | None = None,
    style: Style = Style.FREE,
) -> Trace:
    """Run a network until every later frame is known to repeat the last one.

    A FIFO that holds more than two frames needs many frames to show its steady state. It is
    simulated with two frames of slots; if that never makes its writer wait, the same times solve
    the equations of the deeper FIFO too, whose solution is unique.

    Args:
        processes: See `native.simulate`.
        depths: Declared FIFO depth per stream.
        initial: Tokens that a stream holds at reset.
        style: See `native.simulate`.

    Returns:
        A trace whose ``steady`` says whether the last frame repeats for ever.

    Raises:
        BackendError: The network deadlocks.
    """
    held, capped = initial or {}, dict(depths)
    for process in processes:
        in_flight = process.depth if style is Style.FREE else 0
        for name, per_frame in written(process).items():
            slots = max(2 * per_frame + held.get(name, 0), 1)
            capped[name] = min(depths.get(name, 1), slots - in_flight)
    while True:
        try:
            trace = simulate(
                processes, capped, MOST_FRAMES, until_steady=True, initial=initial, style=style
            )
        except BackendError:
            if capped == depths:
                raise
            capped = dict(depths)
            continue
        tight = {s for s, f in trace.flows.items() if f.full and capped[s] < depths[s]}
        if not tight:
            return trace
        capped |= {s: depths[s] for s in tight}


def processes_of(design: StageDesign) -> list[Process]:
    """The processes of a stage: its engines, and one per port, a beat per cycle."""
    engines = [Process(e.name, run_table(e), e.inputs, e.outputs, e.depth) for e in design.engines]
    return engines + [
        port_process(
            name,
            port.stream,
            design.streams[port.stream].tokens,
            is_input=name.startswith("in_"),
        )
        for name, port in port_names(design).items()
    ]


def depths_of(design: StageDesign) -> dict[str, int]:
    """Declared FIFO depth of every stream."""
    return {name: s.depth for name, s in design.streams.items()}


def initial_of(design: StageDesign) -> dict[str, int]:
    """Tokens that every stream holds at reset."""
    return {name: s.initial for name, s in design.streams.items()}


def simulated(design: StageDesign) -> StageDesign:
    """The design with its interval and latency simulated handshake by handshake.

    Args:
        design: A stage with its FIFOs sized.

    Raises:
        BackendError: It deadlocks.
    """
    trace = steady_state(processes_of(design), depths_of(design), initial_of(design))
    return dataclasses.replace(
        design, interval=trace.interval, latency=trace.latency, simulated=True
    )
