"""All boards of a pipeline as one network: stages joined by links that serialise.

A link is a process like any other: it takes the tokens of one stage's output port and gives them to
the next stage's input port, a frame in `sending_cycles`, each token visible its flight time later.
Values that share a link share its rate, each paced evenly over the frame; of those in packets

```text
port -> send -> link (flight) -> drain -> port      a packet's first token needs a credit,
         ^--------- back (flight) <--'              its last one sends a credit back
```
"""

from collections.abc import Iterator, Sequence

from pipec.backends.fpga.cycles import Simulated, measure_cycles, network_of
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.links import (
    PACKET,
    WINDOW,
    Frame,
    flight_cycles,
    needs_packets,
    sending_cycles,
)
from pipec.backends.fpga.runs import Loop, Run, Runs, clean
from pipec.backends.fpga.simulator.native import Process
from pipec.backends.fpga.wire import ports_of
from pipec.cluster.cluster import Link
from pipec.compiler.cycles import StageCycles
from pipec.errors import BackendError

SLACK = 8
"""Tokens that each end of a link holds; those in flight have room where they arrive."""


def pace(beats: int, cycles: int) -> Runs:
    """``beats`` firings, evenly over ``cycles`` (one per cycle if there are fewer)."""
    base, late = divmod(max(cycles, beats), beats)
    if not late:
        return (Run(beats, base, 1, 1),)
    between = beats // late - 1
    body = (Run(1, base + 1, 1, 1), Run(between, base, 1, 1))
    rest = beats - late * (between + 1)
    return clean((Loop(late, body), Run(rest, base, 1, 1)))


def cycles_of_boards(designs: Sequence[StageDesign], links: Sequence[Link]) -> StageCycles:
    """Simulate all stages, in order, and the links that join each to the next at once.

    Raises:
        BackendError: The boards have unlike clocks, or it deadlocks.
    """
    clocks = {design.clock_mhz for design in designs}
    if len(clocks) != 1:
        raise BackendError("boards of unlike clocks are not simulated together", got=clocks)
    ways, depths, initial = list[Process](), dict[str, int](), dict[str, int]()
    joined: dict[tuple[str, str], str] = {}
    for k, link in enumerate(links):
        for (way, deep, held), ends in _connect(designs[k], designs[k + 1], link, k):
            ways += way
            depths |= deep
            initial |= held
            joined |= dict(zip(ends, [*deep][:2], strict=True))
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
    return measure_cycles("all boards", clocks.pop(), [*stages, *ways], depths, initial)


def _connect(
    here: StageDesign, there: StageDesign, link: Link, k: int
) -> Iterator[tuple[Simulated, tuple[tuple[str, str], tuple[str, str]]]]:
    """Processes that carry each value from stage k to the next, and the ports that they join."""
    wanted = {p.port.value: p.name for p in ports_of(there).values() if p.is_input}
    sent = [p for p in ports_of(here).values() if not p.is_input and p.port.value in wanted]
    leaving, clock = {p.port.value: p.name for p in sent}, here.clock_mhz * 1e6
    shared = {p.port.value: Frame.of(p.stream) for p in sent}
    cycles, flight = sending_cycles([*shared.values()], link, clock), flight_cycles(link, clock)
    packets = needs_packets([*shared.values()])
    for value, frame in shared.items():
        name, table = f"link{k}.{value}", pace(frame.tokens, cycles)
        if packets:
            way = _send_packets(name, table, frame, flight)
        else:
            ends = (f"{name}.out",), (f"{name}.in",)
            deep = dict.fromkeys(sum(ends, ()), SLACK)
            way = [Process(name, table, *ends, flight, free=True)], deep, {}
        yield way, ((here.name, leaving[value]), (there.name, wanted[value]))


def _send_packets(name: str, table: Runs, frame: Frame, flight: int) -> Simulated:
    """A value's way in packets, each of which needs a credit that the drained ones send back."""
    size = PACKET * frame.per_beat
    full, rest = divmod(frame.tokens, size)
    each = [(full, size), (1, rest)]
    sent = clean(
        [Loop(k, (Run(min(n, 1), 1, 0b11, 1), Run(max(n - 1, 0), 1, 0b01, 1))) for k, n in each]
    )
    drained = clean(
        [Loop(k, (Run(max(n - 1, 0), 1, 1, 0b01), Run(min(n, 1), 1, 1, 0b11))) for k, n in each]
    )
    ends = {f"{name}.{end}": SLACK for end in ("out", "in")}
    depths = {f"{name}.sent": 2 * size, f"{name}.there": WINDOW * size}
    depths |= dict.fromkeys((f"{name}.drained", f"{name}.credit"), WINDOW)
    processes = [
        Process(f"{name}.send", sent, (f"{name}.out", f"{name}.credit"), (f"{name}.sent",)),
        Process(name, table, (f"{name}.sent",), (f"{name}.there",), flight,
                free=True),
        Process(f"{name}.drain", drained, (f"{name}.there",), (f"{name}.in", f"{name}.drained")),
        Process(f"{name}.back", (Run(frame.packets, 1, 1, 1),), (f"{name}.drained",),
                (f"{name}.credit",), flight, free=True),
    ]  # fmt: skip
    return processes, {**ends, **depths}, {f"{name}.credit": WINDOW}
