"""All boards of a pipeline as one network: stages joined by links that serialise.

A link is a process like any other: it takes the beats of one stage's output port and gives them to
the next stage's input port, a frame of B bytes in ``ceil(B / (payload per cycle))`` cycles, each
beat visible its flight time later. Values that share a link share its rate in proportion to their
bytes, each paced evenly over the frame.
"""

import math
from collections.abc import Sequence

from pipec.backends.fpga.cycles import steady_state
from pipec.backends.fpga.runs import Loop, Run, Table
from pipec.backends.fpga.simulator.process import Process
from pipec.backends.fpga.stage_cycles import measured, rigid_interval
from pipec.backends.fpga.stagejson import Json, network
from pipec.cluster.cluster import Link
from pipec.compiler.cycles import StageCycles
from pipec.errors import BackendError

SLACK = 8
"""Beats that a link's receiver holds beyond those in flight."""


def paced(beats: int, cycles: int, reads: int = 1, writes: int = 1) -> Table:
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

    def __init__(self, records: Sequence[Json]) -> None:
        self.records = records
        self.processes: dict[str, Process] = {}
        self.depths: dict[str, int] = {}
        self.initial: dict[str, int] = {}
        for record in records:
            self._add(record)

    def _add(self, record: Json) -> None:
        processes, depths, initial = network(record)
        stage = str(record["stage"])

        def own(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(f"{stage}.{name}" for name in names)

        for p in processes:
            name = f"{stage}.{p.name}"
            self.processes[name] = Process(name, p.table, own(p.inputs), own(p.outputs), p.depth)
        self.depths |= {f"{stage}.{name}": depth for name, depth in depths.items()}
        self.initial |= {f"{stage}.{name}": tokens for name, tokens in initial.items()}

    def join(self, k: int, link: Link) -> None:
        """Lead the outputs of stage k that stage k + 1 reads through a link."""
        here, there = self.records[k], self.records[k + 1]
        wanted = {port["value"]: port for port in there["inputs"] if port["stream"]}
        shared = [port for port in here["outputs"] if port["value"] in wanted]
        clock = here["clock_mhz"] * 1e6
        total = math.ceil(
            sum(port["bytes_per_frame"] for port in shared) * clock / link.bytes_per_second
        )
        flight = math.ceil(link.latency_seconds * clock - 1e-6) + 1
        for port in shared:
            beats = _beats(here, port["stream"])
            name = f"link{k}.{port['value']}"
            cycles = max(total, beats)
            self._open(here, port["stream"], f"{name}.out", writes=True)
            self._open(there, wanted[port["value"]]["stream"], f"{name}.in", writes=False)
            self.processes[name] = Process(
                name, paced(beats, total), (f"{name}.out",), (f"{name}.in",), flight
            )
            self.depths[f"{name}.out"] = SLACK
            self.depths[f"{name}.in"] = SLACK + beats * flight // cycles

    def _open(self, record: Json, stream: str, outside: str, *, writes: bool) -> None:
        """A stage's port reads from or writes to a stream outside too."""
        port = next(n for n, s in record["ports"].items() if s == stream)
        name = f"{record['stage']}.{port}"
        old = self.processes[name]
        table = (Run(_beats(record, stream), 1, 1, 1),)
        ins, outs = (old.inputs, (outside,)) if writes else ((outside,), old.outputs)
        self.processes[name] = Process(name, table, ins, outs, old.depth)


def _beats(record: Json, stream: str) -> int:
    return next(int(s["tokens"]) for s in record["fifos"] if s["name"] == stream)


def cycles_of_boards(records: Sequence[Json], links: Sequence[Link]) -> StageCycles:
    """Simulate all stages and the links between them at once.

    Args:
        records: ``stage.json`` of every stage, in order.
        links: What joins each stage to the next.

    Raises:
        BackendError: The boards have unlike clocks, a record is damaged, or it deadlocks.
    """
    clocks = {float(record["clock_mhz"]) for record in records}
    if len(clocks) != 1:
        raise BackendError("boards of unlike clocks are not simulated together", got=clocks)
    boards = _Boards(records)
    for k, link in enumerate(links):
        boards.join(k, link)
    processes = list(boards.processes.values())
    trace = steady_state(processes, boards.depths, boards.initial)
    rigid = rigid_interval(processes, boards.depths, boards.initial)
    return measured("all boards", clocks.pop(), processes, trace, rigid)
