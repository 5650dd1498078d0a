"""``stage.json``: a design as plain data, versioned, for people, scripts and RTL."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pipec.backends.fpga.design import (
    DdrPort,
    Engine,
    Floorplan,
    Port,
    Resources,
    StageDesign,
    Stream,
)
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.nests import Swg
from pipec.backends.fpga.runs import Loop, Run, Table, busy_cycles, nest_table, run_table
from pipec.backends.fpga.simulator.process import Process, port_process
from pipec.errors import BackendError

SCHEMA = 1
"""Version of the format; a reader refuses a larger one."""

Json = dict[str, Any]


def stage_record(design: StageDesign) -> Json:
    """The whole design as JSON data: stable keys, no machine-dependent values."""
    cycles, engine = busiest(design)
    return {
        "schema": SCHEMA,
        "stage": design.name,
        **_fields(design, "device part clock_mhz precision"),
        "cycles": {
            **_fields(design, "interval latency simulated"),
            "bottleneck": {"engine": engine, "cycles": cycles},
        },
        "resources": {"estimate": _rounded(design.resources), "limit": _rounded(design.limits)},
        "regions": _regions(design.floorplan),
        "inputs": [_port(p, design) for p in design.inputs],
        "outputs": [_port(p, design) for p in design.outputs],
        "ports": {name: port.stream for name, port in port_names(design).items()},
        "engines": [
            {**_engine(e), "regions": list(design.floorplan.regions.get(e.name, ()))}
            for e in design.engines
        ],
        "fifos": [_fifo(s) for s in design.streams.values()],
        "ddr": [_ddr(p) for p in design.ddr],
    }


def _fields(of: object, names: str) -> Json:
    return {name: getattr(of, name) for name in names.split()}


def _rounded(resources: Resources) -> Json:
    return {k: round(v, 1) for k, v in dataclasses.asdict(resources).items()}


def _regions(plan: Floorplan) -> Json:
    """The super logic regions, if the chip has several: what is used of each, what crosses."""
    kinds = ["dsp", "lut", "bram36", "uram"]
    pairs = zip(plan.used, plan.limits, strict=True)
    regions = [[_rounded(side) for side in pair] for pair in pairs]
    names = ("estimate", "limit")
    return {
        "slr": [
            {name: {k: side[k] for k in kinds} for name, side in zip(names, pair, strict=True)}
            for pair in regions
        ],
        "wires": list(plan.wires),
        "wire_limit": plan.wire_limit,
    }


def _port(port: Port, design: StageDesign) -> Json:
    found = dataclasses.asdict(port)
    if port.stream:
        stream = design.streams[port.stream]
        found["bytes_per_frame"] = stream.tokens * stream.token_bits // 8
    return found


def _fifo(stream: Stream) -> Json:
    return {
        "name": stream.name,
        "from": stream.producer,
        "to": stream.consumer,
        **_fields(stream, "rows channels lanes dtype"),
        "width_bits": stream.token_bits,
        **_fields(stream, "tokens depth initial"),
        **({} if stream.memory is None else {"memory": stream.memory.value}),
    }


def _ddr(port: DdrPort) -> Json:
    found = dataclasses.asdict(port)
    found["bytes_per_second"] = round(port.bytes_per_second)
    return {k: v for k, v in found.items() if v or k not in ("carries", "group")}


def _engine(engine: Engine) -> Json:
    nest = {k: _plain(v) for k, v in dataclasses.asdict(engine.nest).items()}
    return {
        **_fields(engine, "name kind node origin"),
        "nest": nest,
        **_fields(engine, "inputs outputs"),
        "numbers": {
            **_fields(engine, "dtype second result"),
            "narrowing": engine.narrowing and dataclasses.asdict(engine.narrowing),
        },
        **_fields(engine, "ii depth"),
        "busy_cycles": busy_cycles(engine),
        "runs": firing_rule(engine),
        "dsp": round(engine.resources.dsp, 1),
        "resources": _rounded(engine.resources),
        "buffer": {"bits": engine.buffer_bits, "memory": engine.memory.value},
        "weights": [_fields(w, "role shape dtype memory bits sources") for w in engine.weights],
    }


def _plain(value: object) -> object:
    """A nest's field as JSON: infinities by name."""
    if value in (float("inf"), float("-inf")):
        return str(value)
    return value


def firing_rule(engine: Engine) -> object:
    """The run table as nested lists; of a window generator its rule, whose rows repeat.

    A run is ``[count, delta, reads, writes]``, a loop ``{"times": n, "body": [...]}``.
    """
    if isinstance(engine.nest, Swg):
        return "swg"
    return _table(run_table(engine))


def _table(table: Table) -> list[object]:
    return [
        [item.count, item.delta, item.reads, item.writes]
        if isinstance(item, Run)
        else {"times": item.times, "body": _table(item.body)}
        for item in table
    ]


def write_record(record: Json, stage: Path) -> None:
    """Write ``stage.json``."""
    (stage / "stage.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_record(stage: Path) -> Json:
    """``stage.json`` of an emitted stage.

    Raises:
        BackendError: It cannot be read.
    """
    path = stage / "stage.json"
    try:
        record: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError("stage.json cannot be read", where=path, got=error) from error
    return record


def network(record: Json) -> tuple[list[Process], dict[str, int], dict[str, int]]:
    """The processes of a stage as its ``stage.json`` says, with every stream's depth and tokens.

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
        processes += [
            port_process(name, stream, streams[stream]["tokens"], is_input=name.startswith("in_"))
            for name, stream in record["ports"].items()
        ]
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


def _as_table(items: list[Any]) -> Table:
    return tuple(
        Loop(item["times"], _as_table(item["body"])) if isinstance(item, dict) else Run(*item)
        for item in items
    )
