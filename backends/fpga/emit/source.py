"""The kernel itself: ``types.h`` (configurations), ``stage_top.h``, ``stage_top.cpp``."""

import re
from collections.abc import Sequence

from pipec.backends.fpga.cpp import comment, cpp_type, identifier, struct
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.engines import call_of, struct_of
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.tables import BURST, WIDEST_WORD_BITS, OnChip, on_chip, pointers
from pipec.backends.fpga.engines.parts import Memory

_INCLUDED = re.compile(r'^#include "(?!hls_|ap_)(\w+\.h)"', re.MULTILINE)
"""Names of headers that a header includes, the vendor's left out."""
_LONGEST = 80
"""Characters of a port's name: files of data are called by it."""
_RAMS = {Memory.LUT: "lutram", Memory.BRAM: "bram", Memory.URAM: "uram"}
"""Where a table lies, in the words of ``BIND_STORAGE``."""


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


def port_names(design: StageDesign) -> dict[str, Port]:
    """C++ name of every stage port, inputs first; also the names of its data files.

    An input that nothing reads has no stream and no port.
    """
    found: dict[str, Port] = {}
    taken = {identifier(name) for name in design.streams}
    for prefix, ports in (("in", design.inputs), ("out", design.outputs)):
        for k, port in enumerate(p for p in ports if p.stream):
            name = identifier(f"{prefix}_{port.value[:_LONGEST]}")
            found[f"{name}_{k}" if name in taken | set(found) else name] = port
    return found


def stream_type(stream: Stream) -> str:
    """Element type and lanes of a stream as template arguments."""
    return f"{cpp_type(stream.dtype)}, {stream.lanes}"


def types_h(design: StageDesign) -> str:
    """Every constant of the stage: one configuration struct per engine and port."""
    structs = [_port_struct(name, port, design) for name, port in port_names(design).items()]
    structs += [struct_of(engine) for engine in design.engines]
    return filled(
        "types.h",
        stage=design.name,
        includes=[f'#include "engines/{name}"' for name in headers(design)],
        structs="\n\n".join(structs),
    )


def _port_struct(name: str, port: Port, design: StageDesign) -> str:
    stream = design.streams[port.stream]
    order = ",".join(map(str, port.order))
    about = f"{port.value}: {port.dtype}{list(port.shape)}, axes in the order {order}"
    constants = {"LANES": stream.lanes, "TOKENS": stream.tokens, "II": 1, "DEPTH": 1}
    return struct(name, about, cpp_type(stream.dtype), constants)


def arguments(design: StageDesign) -> list[tuple[str, str]]:
    """Type and name of every argument of the top function: ports, memories, scalars."""
    found = [
        (f"engine::axis_stream<{stream_type(design.streams[port.stream])}> &", name)
        for name, port in port_names(design).items()
    ]
    found += [(f"{'' if p.writes else 'const '}{p.word} *", p.name) for p in pointers(design)]
    found += [("int ", name) for name in numbering(design)]
    return [*found, ("int ", "frames"), ("int ", "load_tables")]


def numbering(design: StageDesign) -> tuple[str, ...]:
    """The scalar arguments that tell a kernel which microbatch it works on."""
    return max((p.mover.counts for p in pointers(design) if p.mover), key=len, default=())


def stage_top_h(design: StageDesign) -> str:
    """Declaration of the top function."""
    board, signature = comment(design.device) or "a board", _signature(design)
    return filled("stage_top.h", stage=design.name, board=board, signature=signature)


def _signature(design: StageDesign) -> str:
    lines = ",\n    ".join(kind + name for kind, name in arguments(design))
    return f"void {top_name(design)}(\n    {lines})"


def stage_top_cpp(design: StageDesign) -> str:
    """The kernel: tables, the dataflow of engines, the top function."""
    tables = on_chip(design)
    inner = [
        (kind, name)
        for kind, name in arguments(design)
        if name != "load_tables" and not name.startswith("tables_")
    ]
    load = filled("stage_top.cpp", "load", loads=_loads(tables)).rstrip("\n")
    return filled(
        "stage_top.cpp",
        stage=design.name,
        tables=filled("stage_top.cpp", "tables", arrays=_arrays(tables)) if tables else "",
        parameters=",\n    ".join(kind + name for kind, name in inner),
        streams=[line for s in design.streams.values() for line in _stream(s)],
        tasks=_tasks(design),
        signature=_signature(design),
        pragmas=_pragmas(design, tables),
        load=load if tables else "  (void)load_tables;",
        passed=", ".join(name for _, name in inner),
    )


def _arrays(tables: Sequence[OnChip]) -> list[str]:
    return [
        f"static vec<{t.element}, {t.weight.lanes}> {t.name}[{t.weight.words}];"
        f"  // {comment(', '.join(t.weight.sources) or 'constant')}"
        for t in tables
    ]


def _loads(tables: Sequence[OnChip]) -> list[str]:
    return [
        f"engine::load_table(tables_{identifier(t.weight.dtype)}, {t.first_beat}, table::{t.name});"
        for t in tables
    ]


def _tasks(design: StageDesign) -> list[str]:
    """Ports and engines as tasks of the dataflow: inputs, engines, outputs."""
    memory = {p.port.engine: p.name for p in pointers(design) if p.port is not None}
    ends: dict[str, list[str]] = {"in": [], "out": []}
    for name, port in port_names(design).items():
        way, stream = name.partition("_")[0], identifier(port.stream)
        streams = f"{name}, {stream}" if way == "in" else f"{stream}, {name}"
        ends[way].append(f"TASK(engine::axis_{way}<cfg::{name}>(frames, {streams}));")
    calls = [call_of(engine, memory.get(engine.name)) for engine in design.engines]
    return [*ends["in"], *calls, *ends["out"]]


def _stream(stream: Stream) -> list[str]:
    name = identifier(stream.name)
    kind = f"hls::stream<vec<{stream_type(stream)}>, {stream.depth}>"
    lines = [
        f'  {kind} {name}("{name}");',
        f"#pragma HLS STREAM variable = {name} depth = {stream.depth}",
    ]
    if stream.memory is not None:
        impl = f"type = fifo impl = {stream.memory.value}"
        lines.append(f"#pragma HLS BIND_STORAGE variable = {name} {impl}")
    return lines


def _pragmas(design: StageDesign, tables: Sequence[OnChip]) -> list[str]:
    """Interfaces of the top function, and where its tables lie."""
    lines = [f"#pragma HLS INTERFACE axis port = {name}" for name in port_names(design)]
    for p in pointers(design):
        lines += [
            f"#pragma HLS INTERFACE m_axi port = {p.name} offset = slave bundle = {p.bundle} "
            f"depth = {p.words} max_read_burst_length = {BURST}",
            f"#pragma HLS INTERFACE s_axilite port = {p.name}",
        ]
    scalars = (*numbering(design), "frames", "load_tables", "return")
    lines += [f"#pragma HLS INTERFACE s_axilite port = {name}" for name in scalars]
    return lines + [line for t in tables for line in _storage(t)]


def _storage(t: OnChip) -> list[str]:
    where = f"variable = table::{t.name}"
    bind = f"type = ram_2p impl = {_RAMS[t.weight.memory]}"
    if t.weight.word_bits <= WIDEST_WORD_BITS:
        return [
            f"#pragma HLS AGGREGATE {where}",
            f"#pragma HLS BIND_STORAGE {where} {bind}",
        ]
    return [
        f"#pragma HLS DISAGGREGATE {where}",
        f"#pragma HLS ARRAY_PARTITION {where}.lane dim = 2 complete",
        f"#pragma HLS BIND_STORAGE {where}.lane {bind}",
    ]
