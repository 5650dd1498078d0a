"""All boards of a pipeline as one network: stages joined by links that serialise.

A link is a process like any other: it takes the beats of one stage's output port and gives them to
the next stage's input port, a frame of B bytes in ``ceil(B / (payload per cycle))`` cycles, each
beat visible its flight time later. Values that share a link share its rate in proportion to their
bytes, each paced evenly over the frame.
"""

import math
from collections.abc import Sequence

from pipec.backends.fpga.cycles import measured, network_of
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator.process import Process
from pipec.cluster.cluster import Link
from pipec.compiler.cycles import StageCycles
from pipec.errors import BackendError

SLACK = 8
"""Beats that a link's receiver holds beyond those in flight."""


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


class _Boards:
    """The network under construction."""

    def __init__(self, designs: Sequence[StageDesign]) -> None:
        self.designs = designs
        self.processes: dict[str, Process] = {}
        self.depths: dict[str, int] = {}
        self.initial: dict[str, int] = {}
        for design in designs:
            self._add(design)

    def _add(self, design: StageDesign) -> None:
        def own(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(f"{design.name}.{name}" for name in names)

        processes, depths, initial = network_of(design)
        for p in processes:
            (name,) = own([p.name])
            self.processes[name] = Process(name, p.table, own(p.inputs), own(p.outputs), p.depth)
        self.depths |= {f"{design.name}.{s}": depth for s, depth in depths.items()}
        self.initial |= {f"{design.name}.{s}": n for s, n in initial.items()}

    def join(self, k: int, link: Link) -> None:
        """Lead the outputs of stage k that stage k + 1 reads through a link."""
        here, there = self.designs[k], self.designs[k + 1]
        wanted = {port.value: port.stream for port in there.inputs if port.stream}
        shared = {port.value: port.stream for port in here.outputs if port.value in wanted}
        clock = here.clock_mhz * 1e6
        nbytes = sum(here.streams[stream].nbytes for stream in shared.values())
        total = math.ceil(nbytes * clock / link.bytes_per_second)
        flight = math.ceil(link.latency_seconds * clock - 1e-6) + 1
        for value, stream in shared.items():
            beats, name = here.streams[stream].tokens, f"link{k}.{value}"
            ends = (f"{name}.out",), (f"{name}.in",)
            self._open(here, stream, *ends[0], writes=True)
            self._open(there, wanted[value], *ends[1], writes=False)
            self.processes[name] = Process(name, paced(beats, total), *ends, flight)
            self.depths[f"{name}.out"] = SLACK
            self.depths[f"{name}.in"] = SLACK + beats * flight // max(total, beats)

    def _open(self, design: StageDesign, stream: str, outside: str, *, writes: bool) -> None:
        """A stage's port reads from or writes to a stream outside too."""
        port = next(n for n, p in port_names(design).items() if p.stream == stream)
        name = f"{design.name}.{port}"
        old = self.processes[name]
        table = (Run(design.streams[stream].tokens, 1, 1, 1),)
        ins, outs = (old.inputs, (outside,)) if writes else ((outside,), old.outputs)
        self.processes[name] = Process(name, table, ins, outs, old.depth)


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
    boards = _Boards(designs)
    for k, link in enumerate(links):
        boards.join(k, link)
    processes = list(boards.processes.values())
    return measured("all boards", clocks.pop(), processes, boards.depths, boards.initial)
