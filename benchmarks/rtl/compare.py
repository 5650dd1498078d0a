"""The cycle simulator's prediction for a stage, beside what its SystemVerilog did."""

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from benchmarks.rtl.generate import Json
from benchmarks.rtl.simulate import Bench, Observed
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import Tile
from pipec.backends.fpga.engines.base import nest_table
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator.native import Process, Trace, simulate
from pipec.backends.fpga.stagejson import SCHEMA
from pipec.errors import BackendError
from tests.fpga.design import rigid

INTERVAL_TOLERANCE = 0.01
"""Largest relative difference of the interval."""
LATENCY_TOLERANCE = 16
"""Largest difference of the latency, in cycles, or in hundredths if that is more."""


@dataclass(frozen=True)
class Comparison:
    """One bench: the simulator's figures and the RTL's.

    Attributes:
        bench: What was run.
        simulated: Interval and latency of the simulator; None if it found a deadlock.
        measured: The same of the RTL.
        handshakes: Tokens whose cycle of visibility was compared.
        different: Number of those that differ.
        stalls: Cycles lost on all streams, simulated and measured.
        stall_difference: Sum over the streams of the absolute difference.
    """

    bench: Bench
    simulated: tuple[int, int] | None
    measured: tuple[int, int] | None
    handshakes: int = 0
    different: int = 0
    stalls: tuple[int, int] = (0, 0)
    stall_difference: int = 0

    @property
    def same_verdict(self) -> bool:
        """Whether both deadlock, or neither."""
        return (self.simulated is None) == (self.measured is None)

    @property
    def interval_error(self) -> float:
        """Relative: the RTL's interval over the simulator's, less one; 0 for two deadlocks."""
        if self.simulated is None or self.measured is None:
            return 0.0 if self.same_verdict else math.inf
        return self.measured[0] / self.simulated[0] - 1

    @property
    def latency_error(self) -> int:
        """Cycles that the RTL's first frame takes longer."""
        if self.simulated is None or self.measured is None:
            return 0
        return self.measured[1] - self.simulated[1]

    @property
    def exact(self) -> bool:
        """Whether every handshake and every stalled cycle is the same."""
        return self.same_verdict and not (
            self.different or self.stall_difference or self.interval_error or self.latency_error
        )

    @property
    def misses(self) -> tuple[str, ...]:
        """Differences above the tolerances, in words."""
        found = []
        if not self.same_verdict:
            found.append("deadlock verdict")
        elif abs(self.interval_error) > INTERVAL_TOLERANCE:
            found.append("interval")
        latency = self.simulated[1] if self.simulated else 0
        if abs(self.latency_error) > max(LATENCY_TOLERANCE, latency // 100):
            found.append("latency")
        if self.bench.style is Style.FREE and self.stall_difference > _phases(self.bench.subject):
            found.append("stalls")
        return tuple(found)


def _phases(subject: Json | Tile) -> int:
    """Stalled cycles that may differ because a client of a shared port waits for its first slot.

    The simulator knows how often a client has a slot, not when its first one is: less than a
    round on every stream, however many frames follow.
    """
    if isinstance(subject, Tile):
        return 0
    rounds = [e["slots"]["of"] for e in subject["engines"] if e.get("slots")]
    return (max(rounds, default=1) - 1) * len(subject["fifos"])


def predict(bench: Bench) -> Trace | None:
    """The result of the cycle simulator; None for a deadlock."""
    if isinstance(bench.subject, Tile):
        return bench.subject.simulate(bench.frames)
    processes, depths, initial = network(dict(bench.subject))
    try:
        if bench.style is Style.FREE:
            return simulate(processes, depths, bench.frames, record=True, initial=initial)
        return rigid.simulate(processes, depths, bench.frames, bench.style, initial=initial)
    except BackendError as error:
        if "deadlock" not in str(error):
            raise
        return None


def compare(bench: Bench, observed: Observed) -> Comparison:
    """Hold a bench's log against the simulator."""
    trace = predict(bench)
    measured = None if observed.deadlocked else _measure(bench, observed)
    if trace is None:
        return Comparison(bench, None, measured)
    simulated = trace.interval, trace.latency
    if measured is None:
        return Comparison(bench, simulated, None)
    pairs = [
        (a, b)
        for name, cycles in trace.handshakes.items()
        for a, b in zip_longest(cycles, observed.visible.get(name, [])[: len(cycles)])
    ]
    flows = {} if isinstance(bench.subject, Tile) else trace.flows
    stalls = {name: flow.empty + flow.full for name, flow in flows.items()}
    return Comparison(
        bench,
        simulated,
        measured,
        len(pairs),
        sum(a != b for a, b in pairs),
        (sum(stalls.values()), sum(observed.stalls.get(n, 0) for n in stalls)),
        sum(abs(n - observed.stalls.get(s, 0)) for s, n in stalls.items()),
    )


def _measure(bench: Bench, observed: Observed) -> tuple[int, int]:
    """Interval and latency of the RTL: frames end with the last result of the last engines."""
    if isinstance(bench.subject, Tile):
        last, ends = 1, [observed.frames["store"]]
    else:
        last, ends = 0, _sinks(bench.subject, observed)
    frames = [max(cycles) + last for cycles in zip(*ends, strict=True)]
    before = frames[-2] if len(frames) > 1 else 0
    return frames[-1] - before, frames[0]


def _sinks(record: Json, observed: Observed) -> list[list[int]]:
    inner = {f["name"] for f in record["fifos"] if f["from"] and f["to"]}
    engines = [e for e in record["engines"] if not inner.intersection(e["outputs"])]
    return [
        [cycle + e["depth"] for cycle in observed.frames[e["name"]]]
        for e in engines or record["engines"]
    ]


def network(record: Json) -> tuple[list[Process], dict[str, int], dict[str, int]]:
    """The processes of a stage by the run tables in its ``stage.json``, streams' depths and tokens.

    The tokens are those that a stream holds at reset.

    Args:
        record: What `stage_record` returned, after a round trip through JSON.

    Raises:
        BackendError: It has another version, or lacks something.
    """
    if record.get("schema") != SCHEMA:
        raise BackendError("stage.json has another version", got=record.get("schema"), want=SCHEMA)
    try:
        streams = {s["name"]: s for s in record["fifos"]}
        processes = [_process(e) for e in record["engines"]]
        for name, stream in record["ports"].items():
            ends = ((name,), (stream,)) if name.startswith("in_") else ((stream,), (name,))
            processes.append(Process(name, (Run(streams[stream]["tokens"], 1, 1, 1),), *ends))
        depths = {name: int(s["depth"]) for name, s in streams.items()}
        return processes, depths, {name: int(s["initial"]) for name, s in streams.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise BackendError("stage.json is damaged", got=repr(error)) from error


def _process(engine: Json) -> Process:
    inputs, outputs = tuple(engine["inputs"]), tuple(engine["outputs"])
    if engine["runs"] == "swg":
        nest = Swg(**{**engine["nest"], "pad_value": float(engine["nest"]["pad_value"])})
        table = nest_table(nest, engine["ii"], len(inputs))
    else:
        table = _as_table(engine["runs"])
    return Process(engine["name"], table, inputs, outputs, engine["depth"])


def _as_table(items: list[Any]) -> Runs:
    return tuple(
        Loop(item["times"], _as_table(item["body"])) if isinstance(item, dict) else Run(*item)
        for item in items
    )
