"""The kernel itself: ``types.h`` (configurations), ``stage_top.h``, ``stage_top.cpp``."""

import math
import re
from collections.abc import Sequence

from pipec.backends.fpga.cpp import comment, cpp_type, identifier, struct
from pipec.backends.fpga.design import DdrPort, Port, StageDesign, Stream
from pipec.backends.fpga.emit.engines import call_of, struct_of
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.tables import (
    BURST,
    WIDEST_WORD_BITS,
    OnChip,
    beats_of,
    off_chip,
    on_chip,
)
from pipec.backends.fpga.engines.mover import Accumulate, Mover

_INCLUDED = re.compile(r'^#include "(?!hls_|ap_)(\w+\.h)"', re.MULTILINE)
"""Names of headers that a header includes, the vendor's left out."""
_LONGEST = 80
"""Characters of a port's name: files of data are called by it."""


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
    written = {identifier(port.name) for port in moving(design) if _mover(design, port).writes}
    found += [
        (f"{word} *" if name in written else f"const {word} *", name)
        for name, word in memories(design).items()
    ]
    found += [("int ", name) for name in numbering(design)]
    return [*found, ("int ", "frames"), ("int ", "load_tables")]


def _mover(design: StageDesign, port: DdrPort) -> Mover:
    nest = design.engine(port.engine).nest
    assert isinstance(nest, Mover)
    return nest


def numbering(design: StageDesign) -> tuple[str, ...]:
    """The scalar arguments that tell a kernel which microbatch it works on."""
    return max((_mover(design, port).counts for port in moving(design)), key=len, default=())


def moving(design: StageDesign) -> list[DdrPort]:
    """The memory ports through which values move."""
    return [port for port in design.ddr if port.carries is not None]


def crosses(design: StageDesign, port: DdrPort) -> bool:
    """Whether what moves through a port goes to another kernel, and not back to this one."""
    return bool(_mover(design, port).counts)


def memories(design: StageDesign) -> dict[str, str]:
    """Memory pointer to the C++ type of what it points at, the table images first."""
    found = {
        f"tables_{identifier(dtype)}": f"engine::beat<{cpp_type(dtype)}>"
        for dtype in dict.fromkeys(t.weight.dtype for t in on_chip(design))
    }
    for port, _, weight in off_chip(design):
        found[identifier(port)] = f"engine::beat<{cpp_type(weight.dtype)}>"
    for moved in moving(design):
        found[identifier(moved.name)] = moved_type(design, moved)
    return found


def moved_type(design: StageDesign, port: DdrPort) -> str:
    """C++ type of a token in memory; sums are in float32."""
    stream = design.streams[_carried(port).stream]
    sums = isinstance(design.engine(port.engine).nest, Accumulate)
    return f"vec<{'float' if sums else cpp_type(stream.dtype)}, {stream.lanes}>"


def moved_tokens(design: StageDesign, port: DdrPort) -> tuple[int, int]:
    """Tokens of a frame in memory, and frames; of a FIFO those of a chunk, and chunks."""
    return _mover(design, port).ring


def _carried(port: DdrPort) -> Port:
    assert port.carries is not None
    return port.carries


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
        f"static vec<{t.element}, {t.lanes}> {t.name}[{t.weight.words}];"
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
    pointers = {engine.name: identifier(port) for port, engine, _ in off_chip(design)}
    pointers |= {port.engine: identifier(port.name) for port in moving(design)}
    ends: dict[str, list[str]] = {"in": [], "out": []}
    for name, port in port_names(design).items():
        way, stream = name.partition("_")[0], identifier(port.stream)
        streams = f"{name}, {stream}" if way == "in" else f"{stream}, {name}"
        ends[way].append(f"TASK(engine::axis_{way}<cfg::{name}>(frames, {streams}));")
    calls = [call_of(engine, pointers.get(engine.name)) for engine in design.engines]
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
    for name in memories(design):
        lines += [
            f"#pragma HLS INTERFACE m_axi port = {name} offset = slave bundle = {bundle(name)} "
            f"depth = {_beats(design, name)} max_read_burst_length = {BURST}",
            f"#pragma HLS INTERFACE s_axilite port = {name}",
        ]
    scalars = (*numbering(design), "frames", "load_tables", "return")
    lines += [f"#pragma HLS INTERFACE s_axilite port = {name}" for name in scalars]
    return lines + [line for t in tables for line in _storage(t)]


def bundle(memory: str) -> str:
    """The AXI bundle of a memory pointer: tables share one, streamed weights have their own."""
    return "gmem_tables" if memory.startswith("tables_") else memory


def _beats(design: StageDesign, memory: str) -> int:
    """Words behind a memory pointer (for co-simulation)."""
    for port, _, weight in off_chip(design):
        if identifier(port) == memory:
            return beats_of(weight)
    for moved in moving(design):
        if identifier(moved.name) == memory:
            return math.prod(moved_tokens(design, moved))
    last = [t for t in on_chip(design) if f"tables_{identifier(t.weight.dtype)}" == memory][-1]
    return last.first_beat + last.beats


def _storage(t: OnChip) -> list[str]:
    where = f"variable = table::{t.name}"
    bind = f"type = ram_2p impl = {t.storage}"
    if t.word_bits <= WIDEST_WORD_BITS:
        return [
            f"#pragma HLS AGGREGATE {where}",
            f"#pragma HLS BIND_STORAGE {where} {bind}",
        ]
    return [
        f"#pragma HLS DISAGGREGATE {where}",
        f"#pragma HLS ARRAY_PARTITION {where}.lane dim = 2 complete",
        f"#pragma HLS BIND_STORAGE {where}.lane {bind}",
    ]
