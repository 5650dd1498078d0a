"""The kernel: ``types.h`` (configurations), ``stage_top.h``, ``stage_top.cpp``; its test bench."""

import re
from collections.abc import Mapping
from typing import Any

from pipec.backends.fpga.cpp import comment, identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.tables import BURST, on_chip, pointers, table_name
from pipec.backends.fpga.engines.base import Engine
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
    found += [("int ", name) for name in numbering(design)]
    return [*found, ("int ", "frames"), ("int ", "load_tables")]


def numbering(design: StageDesign) -> tuple[str, ...]:
    """The scalar arguments that tell a kernel which microbatch it works on."""
    return max((p.mover.counts for p in pointers(design) if p.mover), key=len, default=())


def facts(design: StageDesign) -> dict[str, Any]:
    """What every text of a stage may say: of the stage, its board, its ports and its memory."""
    ports = [*ports_of(design).values()]
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
        "arguments": arguments(design),
        "stream_type": stream_type,
    }


def call_of(engine: Engine, memory: str | None = None) -> str:
    """The call of an engine, as a task of the dataflow.

    Args:
        engine: The engine.
        memory: Name of its memory port's pointer, which follows the streams, if it has one.
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


def stage_top_cpp(design: StageDesign) -> str:
    """The kernel: tables, the dataflow of engines, the top function."""
    memory = {p.port.engine: p.name for p in pointers(design) if p.port is not None}
    return filled(
        "stage_top.cpp",
        **facts(design),
        inner=[a for a in arguments(design) if not a[1].startswith(("load_tables", "tables_"))],
        calls=[call_of(engine, memory.get(engine.name)) for engine in design.engines],
        numbering=numbering(design),
        burst=BURST,
    )


def tb_stage_cpp(design: StageDesign, *, tolerance: float, own: Mapping[str, float]) -> str:
    """The test bench of a stage.

    Run as ``tb [stage directory [frames]]`` it plays the golden frame (over and over, if more
    are asked for) and compares; as ``tb <stage directory> <data directory> <frames>`` it reads
    inputs from and writes outputs to the data directory, one frame at a time: its files may be
    pipes, so that the test benches of all stages run at once. Two further arguments are the number
    of the first microbatch and how many an update has. Memory that kernels share lies in files of
    the data directory, zero where there is none yet.

    Args:
        design: The stage.
        tolerance: Largest error relative to the largest magnitude of an output.
        own: Values of outputs to what is accepted of them, where that is less.
    """
    return filled(
        "tb_stage.cpp",
        **facts(design),
        tolerance=tolerance,
        own=own,
        call=_call(design),
    )


def _call(design: StageDesign) -> list[str]:
    """What the kernel is called with; both ends of a FIFO in memory are one buffer."""
    known = {"load_tables": "done == 0", "frames": "each"}
    known |= dict(zip(numbering(design), ("first + done", "microbatches"), strict=False))
    buffers: dict[str, str] = {}
    for p in pointers(design):
        shared = p.port.group if p.port and p.mover and not p.crosses else p.name
        known[p.name] = f"{buffers.setdefault(shared, p.name)}.data()"
    return [known.get(name, name) for _, name in arguments(design)]
