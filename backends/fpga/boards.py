"""All boards of a pipeline as one network: stages joined by links that serialise.

A link is a process like any other: it takes the beats of one stage's output port and gives them to
the next stage's input port, a frame of B bytes in ``ceil(B / (payload per cycle))`` cycles, each
beat visible its flight time later. Values that share a link share its rate in proportion to their
bytes, each paced evenly over the frame.
"""

import math
from collections.abc import Iterator, Sequence

from pipec.backends.fpga.cycles import measured, network_of
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator.process import Process
from pipec.cluster.cluster import Link
from pipec.compiler.cycles import StageCycles
from pipec.errors import BackendError

SLACK = 8
"""Beats that each end of a link holds; those in flight have room of their own where they arrive."""


def paced(beats: int, cycles: int, reads: int = 1, writes: int = 1) -> Runs:
    """``beats`` firings, evenly over ``cycles`` (one per cycle if there are fewer).

    Example:
        >>> paced(5, 7)
        (Loop(times=2, body=(Run(count=1, delta=2, reads=1, writes=1),\
 Run(count=1, delta=1, reads=1, writes=1))), Run(count=1, delta=1, reads=1, writes=1))
    """
    base, late = divmod(max(cycles, beats), beats)
    if not late:
        return (Run(beats, base, reads, writes),)
    between = beats // late - 1
    body = (Run(1, base + 1, reads, writes), *([Run(between, base, reads, writes)] * (between > 0)))
    rest = beats - late * (between + 1)
    return (Loop(late, body), *([Run(rest, base, reads, writes)] * (rest > 0)))


def cycles_of_boards(designs: Sequence[StageDesign], links: Sequence[Link]) -> StageCycles:
    """Simulate all stages and the links between them at once.

    Args:
        designs: The stages in order.
        links: What joins each stage to the next.

    Raises:
        BackendError: The boards have unlike clocks, or it deadlocks.
    """
    clocks = {design.clock_mhz for design in designs}
    if len(clocks) != 1:
        raise BackendError("boards of unlike clocks are not simulated together", got=clocks)
    ways, depths, initial = list[Process](), dict[str, int](), dict[str, int]()
    joined: dict[tuple[str, str], str] = {}
    for k, link in enumerate(links):
        for process, ends in _led(designs[k], designs[k + 1], link, k):
            ways.append(process)
            depths |= dict.fromkeys((*process.inputs, *process.outputs), SLACK)
            joined |= dict(zip(ends, (*process.inputs, *process.outputs), strict=True))
    stages = list[Process]()
    for stage, found, deep, held in ((d.name, *network_of(d)) for d in designs):
        for p in found:
            reads, writes = (
                tuple(joined.get((stage, s), f"{stage}.{s}") for s in ends)
                for ends in (p.inputs, p.outputs)
            )
            stages.append(Process(f"{stage}.{p.name}", p.table, reads, writes, p.depth))
        depths |= {f"{stage}.{s}": depth for s, depth in deep.items()}
        initial |= {f"{stage}.{s}": tokens for s, tokens in held.items()}
    return measured("all boards", clocks.pop(), [*stages, *ways], depths, initial)


def _led(
    here: StageDesign, there: StageDesign, link: Link, k: int
) -> Iterator[tuple[Process, tuple[tuple[str, str], tuple[str, str]]]]:
    """What leads each value from stage k to the next: process, and ports at its ends."""
    wanted = {p.value: name for name, p in port_names(there).items() if name.startswith("in_")}
    leaving = {p.value: name for name, p in port_names(here).items() if name.startswith("out_")}
    shared = {p.value: here.streams[p.stream] for p in here.outputs if p.value in wanted}
    clock = here.clock_mhz * 1e6
    total = math.ceil(sum(s.nbytes for s in shared.values()) * clock / link.bytes_per_second)
    flight = math.ceil(link.latency_seconds * clock - 1e-6) + 1
    for value, stream in shared.items():
        name, table = f"link{k}.{value}", paced(stream.tokens, total)
        process = Process(name, table, (f"{name}.out",), (f"{name}.in",), flight)
        yield process, ((here.name, leaving[value]), (there.name, wanted[value]))
