"""The test bench: runs the kernel on files, and compares it with golden data."""

from collections.abc import Mapping

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.source import (
    arguments,
    numbering,
    port_names,
    stream_type,
    top_name,
)
from pipec.backends.fpga.emit.tables import on_chip, pointers
from pipec.backends.fpga.engines.mover import Spill


def tb_stage_cpp(
    design: StageDesign, *, frames: int, tolerance: float, own: Mapping[str, float]
) -> str:
    """The test bench of a stage.

    Run as ``tb [stage directory [frames]]`` it plays the golden frames (over and over, if more
    are asked for) and compares; as ``tb <stage directory> <data directory> <frames>`` it reads
    inputs from and writes outputs to the data directory, one frame at a time: its files may be
    pipes, so that the test benches of all stages run at once. Two further arguments are the number
    of the first microbatch and how many an update has. Memory that kernels share lies in files of
    the data directory, zero where there is none yet.

    Args:
        design: The stage.
        frames: Frames of golden data.
        tolerance: Largest error relative to the largest magnitude of an output.
        own: Values of outputs to what is accepted of them, where that is less.
    """
    call = ", ".join(_argument(name, design) for _, name in arguments(design))
    return filled(
        "tb_stage.cpp",
        stage=design.name,
        frames=frames,
        tolerance=repr(tolerance),
        setup=[*table_images(design), *_memory(design), *_ports(design)],
        body=[*_inputs(design), f"{top_name(design)}({call});", *_results(design, own)],
        after=_left_in_memory(design),
    )


def table_images(design: StageDesign) -> list[str]:
    """Statements that read every table: a vector for each memory pointer, of its name."""
    lines = [
        f"std::vector<engine::beat<{cpp_type(dtype)}>> tables_{identifier(dtype)};"
        for dtype in dict.fromkeys(t.weight.dtype for t in on_chip(design))
    ]
    lines += [
        f"tb::append<{t.element}>(tables_{identifier(t.weight.dtype)}, {t.beats}, "
        f'weights + "{t.name}.bin");'
        for t in on_chip(design)
    ]
    for p in (p for p in pointers(design) if p.table):
        read = f'tb::read_file<{p.word}>(weights + "{p.table}.bin", {p.words})'
        lines.append(f"const std::vector<{p.word}> {p.name} =\n      {read};")
    return lines


def _memory(design: StageDesign) -> list[str]:
    """Statements that make the memory through which values move."""
    lines = []
    for p in pointers(design):
        if isinstance(p.mover, Spill):
            lines.append(f"std::vector<{p.word}> {p.name}({p.words});")
        elif p.mover is not None and p.crosses:
            tokens, slots = p.mover.ring
            lines.append(
                f"std::vector<{p.word}> {p.name} =\n"
                f'      tb::memory<{p.word}>(data, "{p.name}", {tokens}, {slots}, '
                f"{str(not p.writes).lower()}, compare);"
            )
    return lines


def _left_in_memory(design: StageDesign) -> list[str]:
    """What kernels have written to memory: compared, or left to other kernels."""
    return [
        f'ok = tb::leave({p.name}, data, "{p.name}", {p.mover.ring[0]}, compare, TOLERANCE) && ok;'
        for p in pointers(design)
        if p.mover and p.writes and p.crosses
    ]


def _ports(design: StageDesign) -> list[str]:
    """Streams and data files; all inputs are opened before the first output, which may wait."""
    lines, outputs = [], []
    for name, port in port_names(design).items():
        kind = stream_type(design.streams[port.stream])
        lines.append(f'engine::axis_stream<{kind}> {name}("{name}");')
        if name.startswith("in_"):
            size = f"cfg::{name}::TOKENS * sizeof(vec<{kind}>)"
            lines.append(f'tb::inlet {name}_file(data + "/{name}.bin", {size});')
        else:
            outputs.append(f'"{name}"')
    if not outputs:
        return lines
    return [
        *lines,
        "std::vector<std::unique_ptr<tb::outlet>> files;",
        f"for (const char *name : {{{', '.join(outputs)}}}) {{",
        '  if (!compare) files.emplace_back(new tb::outlet(data + "/" + name + ".bin"));',
        "}",
    ]


def _inputs(design: StageDesign) -> list[str]:
    names = [name for name in port_names(design) if name.startswith("in_")]
    files = ", ".join(f"&{name}_file" for name in names)
    taken = [f"tb::take({{{files}}}, std::size_t(each));"] if names else []
    return [*taken, *(f"tb::fill({name}, {name}_file);" for name in names)]


def _argument(name: str, design: StageDesign) -> str:
    known = {"load_tables": "done == 0", "frames": "each"}
    known |= dict(zip(numbering(design), ("first + done", "microbatches"), strict=False))
    known |= {out: f"{way_in}.data()" for way_in, out in _fifos(design)}
    known |= {p.name: f"{p.name}.data()" for p in pointers(design) if p.name not in known}
    return known.get(name, name)


def _fifos(design: StageDesign) -> list[tuple[str, str]]:
    """Pointers to the two ends of every FIFO in memory: one buffer."""
    ends: dict[str, list[str]] = {}
    for p in pointers(design):
        if p.mover and p.port and not p.crosses:
            ends.setdefault(p.port.group, []).append(p.name)
    return [(way_in, out) for way_in, out in ends.values()]


def accepted(own: Mapping[str, float], value: str) -> str:
    """The tolerance of an output in C++."""
    return f"std::fmin(TOLERANCE, {own[value]!r})" if value in own else "TOLERANCE"


def _results(design: StageDesign, own: Mapping[str, float]) -> list[str]:
    lines = []
    outputs = [(n, p) for n, p in port_names(design).items() if n.startswith("out_")]
    for k, (name, port) in enumerate(outputs):
        found = f"{name}_tokens"
        lines += [
            f"const std::vector<vec<{stream_type(design.streams[port.stream])}>> {found} =",
            f'    tb::drain({name}, "{name}", std::size_t(each), cfg::{name}::TOKENS);',
            f'tb::print_cycles({name}, "{name}", std::size_t(each));',
            "if (compare) {",
            f'  ok = tb::agree({found}, data + "/{name}.bin", "{name}", std::size_t(frames), '
            f"{accepted(own, port.value)}) && ok;",
            "} else {",
            f"  files[{k}]->put({found});",
            "}",
        ]
    return lines
