"""Interval, latency, stalls and bottleneck of a stage, simulated."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipec.backends.fpga.cycles import depths_of, initial_of, processes_of, steady_state
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.runs import cycles
from pipec.backends.fpga.simulator.process import Flow, Process, Style
from pipec.backends.fpga.stagejson import Json
from pipec.compiler.cycles import EngineCycles, StageCycles
from pipec.errors import BackendError

_OF_ENGINE = ("name", "kind", "dsp", "busy_cycles", "ii", "depth", "resources")
_OF_FIFO = ("name", "from", "to", "depth", "tokens", "width_bits")


def cycles_of(design: StageDesign) -> StageCycles:
    """Simulate a stage until its frames repeat.

    Raises:
        BackendError: Its FIFO depths deadlock.
    """
    processes, depths = processes_of(design), depths_of(design)
    return measured(design.name, design.clock_mhz, processes, depths, initial_of(design))


def measured(
    name: str,
    clock_mhz: float,
    processes: Sequence[Process],
    depths: Mapping[str, int],
    initial: Mapping[str, int],
) -> StageCycles:
    """What a simulation says of every process.

    Args:
        name: Of the stage.
        clock_mhz: Its clock.
        processes: What is simulated.
        depths: Declared FIFO depth per stream.
        initial: Tokens that a stream holds at reset.

    Raises:
        BackendError: It deadlocks.
    """
    trace = steady_state(processes, depths, initial)
    try:
        rigid = steady_state(processes, depths, initial, Style.STALL).interval
    except BackendError as error:
        if "deadlocks" not in str(error) and "per frame" not in str(error):
            raise
        rigid = None
    engines = tuple(_engine(p, trace.flows) for p in processes)
    least = min(engines, key=lambda e: (e.empty + e.full, -e.busy))
    return StageCycles(
        stage=name,
        clock_mhz=clock_mhz,
        interval=trace.interval,
        latency=trace.latency,
        steady=trace.steady,
        bottleneck=least.name,
        handshakes=sum(f.tokens for f in trace.flows.values()) // len(trace.ends),
        engines=engines,
        rigid_interval=rigid,
    )


def _engine(process: Process, flows: Mapping[str, Flow]) -> EngineCycles:
    waits = {s: flows[s].last_empty for s in process.inputs if s in flows}
    waits |= {s: flows[s].last_full for s in process.outputs if s in flows}
    most = max(waits, key=lambda s: waits[s], default="")
    return EngineCycles(
        name=process.name,
        busy=cycles(process.table),
        empty=sum(flows[s].last_empty for s in process.inputs if s in flows),
        full=sum(flows[s].last_full for s in process.outputs if s in flows),
        waits_for=most if waits.get(most) else "",
    )


def engines_of(
    records: Sequence[tuple[int, Json]], simulated: Sequence[StageCycles]
) -> list[dict[str, Any]]:
    """The engines and FIFOs of every kernel, for the report.

    Args:
        records: The stage of every kernel, and what its ``stage.json`` says.
        simulated: What a simulation found per stage, or nothing.
    """
    cycles = {c.stage: c for c in simulated}
    return [_engines(k, record, cycles) for k, record in records]


def _engines(number: int, record: Json, cycles: dict[str, StageCycles]) -> dict[str, Any]:
    found = cycles.get(record["stage"])
    waits = {e.name: e for e in found.engines} if found else {}
    engines = []
    for engine in record["engines"]:
        row = {key: engine.get(key) for key in _OF_ENGINE}
        ran = waits.get(engine["name"])
        row |= {"busy": row.pop("busy_cycles") or 0, "empty": 0, "full": 0, "simulated": bool(ran)}
        if ran:
            row |= {"busy": ran.busy, "empty": ran.empty, "full": ran.full}
            row["waits_for"] = ran.waits_for
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
