"""The kernel: ``types.h`` (configurations), ``stage_top.h``, ``stage_top.cpp``; its test bench."""

import re
from typing import Any

from pipec.backends.fpga.cpp import comment, identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.mover import Mover
from pipec.backends.fpga.engines.parts import BURST, OUTSTANDING
from pipec.backends.fpga.tables import on_chip, pointers, scalars, table_name
from pipec.backends.fpga.wire import ports_of, stream_type
from pipec.errors import BackendError

_INCLUDED = re.compile(r'^#include "(?!hls_|ap_)(\w+\.h)"', re.MULTILINE)
"""Names of headers that a header includes, the vendor's left out."""


def headers(design: StageDesign) -> list[str]:
    """The engine headers that a stage needs, those that they include too."""
    wanted = {"axis.h", "memory.h", *(e.nest.header() for e in design.engines)}
    texts = {name: own_header(f"engines/{name}") for name in wanted}
    while more := {h for t in texts.values() for h in _INCLUDED.findall(t)} - texts.keys():
        texts |= {name: own_header(f"engines/{name}") for name in more}
    return sorted(texts)


def top_name(design: StageDesign) -> str:
    """Name of the kernel's top function."""
    return identifier(f"{design.name}_top")


def arguments(design: StageDesign) -> list[tuple[str, str]]:
    """Type and name of every argument of the top function: ports, memories, scalars."""
    found = [(f"engine::axis_stream<{p.kind}> &", p.name) for p in ports_of(design).values()]
    found += [(f"{'' if p.writes else 'const '}{p.word} *", p.name) for p in pointers(design)]
    return found + [("int ", name) for name in scalars(design)]


def facts(design: StageDesign) -> dict[str, Any]:
    """The facts that any template may print: of the stage, its board, ports and memory."""
    ports, every = [*ports_of(design).values()], arguments(design)
    memory = {p.port.engine: p.name for p in pointers(design) if p.port is not None}
    return {
        "design": design,
        "stage": design.name,
        "board": comment(design.device) or "a board",
        "part": design.part,
        "clock": f"{design.clock_mhz:g}",
        "top": top_name(design),
        "ports": ports,
        "inputs": [p for p in ports if p.is_input],
        "outputs": [p for p in ports if not p.is_input],
        "pointers": pointers(design),
        "tables": on_chip(design),
        "arguments": every,
        "inner": [a for a in every if not a[1].startswith(("load_tables", "tables_"))],
        "scalars": scalars(design),
        "headers": headers(design),
        "calls": [call_of(engine, memory.get(engine.name)) for engine in design.engines],
        "bench_call": _call(design),
        "burst": BURST,
        "outstanding": OUTSTANDING,
        "stream_type": stream_type,
    }


def call_of(engine: Engine, memory: str | None = None) -> str:
    """The call of an engine, as a task of the dataflow.

    The pointer of its memory port follows the streams, if it has one.
    """
    unit = engine.nest.unit(engine)
    inputs, outputs = ([identifier(s) for s in group] for group in (engine.inputs, engine.outputs))
    streams = [*inputs[: unit.leading], *outputs, *inputs[unit.leading :]]
    pointers = [memory] if memory is not None else []
    tables = [_table(engine, role) for role in unit.tables]
    arguments = ", ".join(["frames", *streams, *pointers, *tables, *unit.arguments])
    name = f"engine::{unit.function}<cfg::{identifier(engine.name)}>"
    return f"TASK({name}({arguments}));  // {comment(engine.origin or engine.name)}"


def _table(engine: Engine, role: str) -> str:
    role, _, stand_in = role.partition("?")
    if engine.weight(role) is None:
        if not stand_in:
            raise BackendError("an engine lacks a table", where=engine.name, got=role)
        return f"engine::{stand_in}()"
    return f"table::{table_name(engine, role)}"


def _call(design: StageDesign) -> list[str]:
    """A test bench's arguments of the kernel; both ends of a FIFO in memory are one buffer."""
    known = {"load_tables": "done == 0", "frames": "each", Mover.counts[0]: "first + done"}
    buffers: dict[str, str] = {}
    for p in pointers(design):
        shared = p.port.group if p.port and p.mover and not p.crosses else p.name
        known[p.name] = f"{buffers.setdefault(shared, p.name)}.data()"
    return [known.get(name, name) for _, name in arguments(design)]
