"""Interval, latency, stalls and bottleneck of a stage, simulated handshake by handshake.

Pipelines are rigid: Vitis HLS makes them so by default, and where it cannot make another style.
An emitted loop runs through all frames of a call, so the last results of a frame leave it
with the first inputs of the next; they leave at once only behind the last frame, where it ends.
Firings and delays are those of `pipec.backends.fpga.runs`, the simulator is
`pipec.backends.fpga.simulator.native`.

FIFO depths of `pipec.backends.fpga.fifo` follow from a schedule in chunks; they suffice but are not
least. Here they are found by simulation: deeper where the interval asks for it, and then as small
as it allows. An interval never falls when a FIFO is made shallower (all times are maxima of sums),
so the least depth of one stream, the others kept, is found by bisection.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import run_table
from pipec.backends.fpga.fifo import busiest, find_slowest
from pipec.backends.fpga.runs import Run, cycles
from pipec.backends.fpga.simulator.native import Flow, Process, Trace, in_flight, simulate, writes
from pipec.backends.fpga.wire import ports_of
from pipec.compiler.cycles import EngineCycles, StageCycles
from pipec.errors import BackendError

Simulated = tuple[list[Process], dict[str, int], dict[str, int]]
"""Processes, depths of streams, and tokens in them at reset."""
_OF_ENGINE = ("name", "kind", "dsp", "busy_cycles", "ii", "depth", "resources")
_OF_FIFO = ("name", "from", "to", "depth", "tokens", "width_bits")
MOST_FRAMES = 32
"""Frames after which a network that has not become steady is taken as it is."""


def steady_state(
    processes: Sequence[Process],
    depths: Mapping[str, int],
    initial: Mapping[str, int] | None = None,
    *,
    rigid: bool = True,
) -> Trace:
    """Run a network until every later frame is known to repeat the last one (``Trace.steady``).

    A FIFO that holds more than two frames needs many frames to show its steady state. It is
    simulated with two frames of slots; if that never makes its writer wait, the same times solve
    the equations of the deeper FIFO too, whose solution is unique. Arguments are those of
    `native.simulate`.

    Raises:
        BackendError: The network deadlocks.
    """
    tokens, capped = initial or {}, dict(depths)
    for process in processes:
        own = in_flight(process, rigid=rigid)
        for name, per_frame in writes(process).items():
            slots = max(2 * per_frame + tokens.get(name, 0), 1)
            capped[name] = min(depths.get(name, 1), slots - own)
    while True:
        try:
            trace = simulate(
                processes, capped, MOST_FRAMES, until_steady=True, initial=initial, rigid=rigid
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


def network_of(design: StageDesign) -> Simulated:
    """A stage as a simulator sees it: engines, and one process per port, a beat per cycle.

    Outside of the stage, a port's stream is called as the port.
    """
    found = [Process(e.name, run_table(e), e.inputs, e.outputs, e.depth) for e in design.engines]
    for p in ports_of(design).values():
        outside, inside = (p.name,), (p.port.stream,)
        ends = (outside, inside) if p.is_input else (inside, outside)
        found.append(Process(p.name, (Run(p.stream.tokens, 1, 1, 1),), *ends))
    streams = design.streams.items()
    return found, {n: s.depth for n, s in streams}, {n: s.initial for n, s in streams}


def simulate_design(design: StageDesign) -> StageDesign:
    """The design, its FIFOs sized, with its interval and latency simulated by handshakes.

    Raises:
        BackendError: It deadlocks.
    """
    network = network_of(design)
    return dataclasses.replace(
        design,
        interval=steady_state(*network).interval,
        latency=latency_of(*network),
        simulated=True,
    )


def latency_of(
    processes: Sequence[Process], depths: Mapping[str, int], initial: Mapping[str, int]
) -> int:
    """Cycles from the first token in to the last one out, in a call for one frame alone."""
    return simulate(processes, depths, initial=initial, rigid=True, call=True).latency


def cycles_of(design: StageDesign) -> StageCycles:
    """Simulate a stage until its frames repeat.

    Raises:
        BackendError: Its FIFO depths deadlock.
    """
    return measure_cycles(design.name, design.clock_mhz, *network_of(design))


def measure_cycles(
    name: str,
    clock_mhz: float,
    processes: Sequence[Process],
    depths: Mapping[str, int],
    initial: Mapping[str, int],
) -> StageCycles:
    """Simulate a network and count the cycles of every process; arguments as of `native.simulate`.

    Raises:
        BackendError: It deadlocks.
    """
    trace = steady_state(processes, depths, initial)
    engines = tuple(_engine(p, trace.flows) for p in processes)
    return StageCycles(
        stage=name,
        clock_mhz=clock_mhz,
        interval=trace.interval,
        latency=latency_of(processes, depths, initial),
        steady=trace.steady,
        bottleneck=find_slowest((e.busy, e.name) for e in engines)[1],
        handshakes=sum(f.tokens for f in trace.flows.values()) // len(trace.ends),
        engines=engines,
        free_interval=steady_state(processes, depths, initial, rigid=False).interval,
    )


def _engine(process: Process, flows: Mapping[str, Flow]) -> EngineCycles:
    waits = {s: flows[s].last_empty for s in process.inputs if s in flows}
    waits |= {s: flows[s].last_full for s in process.outputs if s in flows}
    most = max(waits, key=lambda s: waits[s], default="")
    return EngineCycles(
        name=process.name,
        busy=cycles(process.table),
        empty=sum(waits.get(s, 0) for s in process.inputs),
        full=sum(waits.get(s, 0) for s in process.outputs),
        waits_for=most if waits.get(most) else "",
    )


def engines_of(
    records: Sequence[tuple[int, dict[str, Any]]], simulated: Sequence[StageCycles]
) -> list[dict[str, Any]]:
    """The engines and FIFOs of every kernel, for the report.

    Of each kernel its stage and its ``stage.json``; ``simulated`` has what a simulation found.
    """
    cycles = {c.stage: c for c in simulated}
    return [_engines(k, record, cycles) for k, record in records]


def _engines(number: int, record: dict[str, Any], cycles: dict[str, StageCycles]) -> dict[str, Any]:
    found = cycles.get(record["stage"])
    waits = {e.name: e for e in found.engines} if found else {}
    engines = []
    for engine in record["engines"]:
        row = {key: engine.get(key) for key in _OF_ENGINE}
        ran = waits.get(engine["name"])
        row |= {"busy": row.pop("busy_cycles") or 0, "empty": 0, "full": 0, "simulated": bool(ran)}
        if ran:
            row |= {k: getattr(ran, k) for k in ("busy", "empty", "full", "waits_for")}
        engines.append(row)
    return {
        "stage": number,
        "name": record["stage"],
        "device": record["device"],
        "clock_mhz": record["clock_mhz"],
        "interval": found.interval if found else record["cycles"]["interval"],
        "latency": found.latency if found else record["cycles"]["latency"],
        "resources": record["resources"],
        "engines": engines,
        "fifos": [{key: fifo.get(key) for key in _OF_FIFO} for fifo in record["fifos"]],
    }


FREE_DEPTH = 32
"""Depths up to this cost the same: a shift register of 32 per bit."""
BUDGET = 400_000_000
"""Handshakes to simulate, at most, while shrinking."""


@dataclass
class _Trials:
    """Simulations of one stage under changing depths.

    Attributes:
        processes: Processes of the stage; ``initial`` tokens of its streams.
        best: Depths that are known to be good.
        interval: What they must keep.
        budget: Handshakes that may still be simulated.
    """

    processes: list[Process]
    initial: Mapping[str, int]
    best: dict[str, int]
    interval: int
    budget: int

    def simulate(self, depths: Mapping[str, int]) -> Trace:
        trace = steady_state(self.processes, depths, self.initial)
        self.budget -= sum(flow.tokens for flow in trace.flows.values())
        return trace

    def keeps(self, depths: dict[str, int]) -> bool:
        """Whether these depths are seen to reach the interval; they are the best so far then."""
        try:
            good = self.budget > 0 and self.simulate(depths).interval <= self.interval
        except BackendError:  # it deadlocks
            return False
        self.best = depths if good else self.best
        return good

    def bisect(self, low: int, high: int, depths: Callable[[int], dict[str, int]]) -> None:
        """Bisect for the least number that keeps the interval; ``high`` is known to do."""
        bisect_left(range(low, high), x=True, key=lambda n: self.keeps(depths(n)))

    def grow(self, least: int) -> None:
        """Deepen the streams that are full, until the interval is the least or gains nothing."""
        trace = self.simulate(self.best)
        self.interval = trace.interval
        while self.interval > least and self.budget > 0:
            full = {s for s, flow in trace.flows.items() if flow.last_full}
            depths = {s: 2 * n if s in full else n for s, n in self.best.items()}
            trace = self.simulate(depths)
            if trace.interval >= self.interval:
                return
            self.interval, self.best = trace.interval, depths


def shrink_fifos(design: StageDesign, budget: int = BUDGET) -> StageDesign:
    """The design with the least FIFO depths that keep its interval, and simulated cycles.

    Where the interval is above the busiest engine's, full streams are deepened first. Then all
    streams deeper than `FREE_DEPTH` shrink by one common factor, then each alone, the one with
    most bits first, until none can be shallower or so many handshakes have been simulated.

    Raises:
        BackendError: It deadlocks.
    """
    processes, depths, initial = network_of(design)
    trials = _Trials(processes, initial, depths, 0, budget)
    trials.grow(busiest(design)[0])
    full = trials.best

    def scale(percent: int) -> dict[str, int]:
        return {s: max(n * percent // 100, min(n, FREE_DEPTH)) for s, n in full.items()}

    def with_depth(stream: str, depth: int) -> dict[str, int]:
        return {**trials.best, stream: depth}

    trials.bisect(0, 100, scale)
    bits = {n: s.token_bits for n, s in design.streams.items()}
    for name in sorted(full, key=lambda n: -trials.best[n] * bits[n]):
        if trials.best[name] > FREE_DEPTH:
            trials.bisect(FREE_DEPTH, trials.best[name], partial(with_depth, name))
    streams = {n: dataclasses.replace(s, depth=trials.best[n]) for n, s in design.streams.items()}
    return simulate_design(dataclasses.replace(design, streams=streams))
