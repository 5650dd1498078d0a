"""Rules on the kernel: canonical dataflow, one writer and one reader per stream."""

import re
from collections.abc import Iterator

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.stagejson import Json
from tests.fpga.lint.calls import TASK, check_calls, check_loads
from tests.fpga.lint.source import Block, Finding, pragmas

_STREAM = re.compile(r"hls::stream<vec<(\w+(?:<[-\d, ]+>)?), (\d+)>, (\d+)> (\w+)\(\"(\w+)\"\)")


def check_kernel(file: str, root: Block, record: Json) -> Iterator[Finding]:
    """All rules on ``stage_top.cpp`` against its ``stage.json``."""
    regions = [b for b in root.all() if any(p.name == "DATAFLOW" for p in pragmas(b))]
    if len(regions) != 1:
        yield Finding(file, 1, "dataflow", f"{len(regions)} dataflow regions, want 1")
        return
    (region,) = regions
    yield from _canonical(file, region)
    yield from _streams(file, region, record)
    yield from _depths(file, region, record)
    yield from _engines(file, region, record)
    yield from check_calls(file, region, record)
    yield from check_loads(file, root, record)


def _canonical(file: str, region: Block) -> Iterator[Finding]:
    """DATAFLOW first, then nothing but streams, tasks, and the end."""
    if not region.lines[0][1].startswith("#pragma HLS DATAFLOW"):
        yield Finding(file, region.line, "dataflow", "DATAFLOW is not the region's first line")
    for number, line in region.lines:
        known = line.startswith("#pragma HLS") or line == "DATAFLOW_END"
        if not (known or _STREAM.fullmatch(line) or TASK.fullmatch(line)):
            yield Finding(file, number, "dataflow", f"not in canonical form: {line}")
    if region.lines[-1][1] != "DATAFLOW_END":
        yield Finding(file, region.end, "dataflow", "DATAFLOW_END is not the region's last line")


def _tasks(region: Block) -> dict[str, tuple[int, list[str]]]:
    """Task to its line and arguments."""
    found = {}
    for number, line in region.lines:
        if (match := TASK.fullmatch(line)) is not None:
            found[match.group(2)] = (number, [a.strip() for a in match.group(3).split(",")])
    return found


def _ends(record: Json) -> dict[str, tuple[set[str], Json]]:
    """C++ name of a stream to its writer and reader, and what ``stage.json`` says of it."""
    ports = {stream: name for name, stream in record["ports"].items()}
    return {
        identifier(s["name"]): (
            {identifier(s[end]) if s[end] else ports.get(s["name"], "") for end in ("from", "to")},
            s,
        )
        for s in record["fifos"]
    }


def _streams(file: str, region: Block, record: Json) -> Iterator[Finding]:
    """Every stream is declared once, and named by its writer's and its reader's call alone."""
    tasks, wanted = _tasks(region), _ends(record)
    declared: dict[str, int] = {}
    for number, line in region.lines:
        if (match := _STREAM.fullmatch(line)) is not None:
            if match.group(4) in declared or match.group(4) != match.group(5):
                yield Finding(file, number, "stream", f"{match.group(4)} is declared twice")
            declared[match.group(4)] = number
    for name in sorted(wanted.keys() ^ declared.keys()):
        where = declared.get(name, region.line)
        yield Finding(file, where, "stream", f"{name} is in one of stage.json and the code alone")
    for name in declared.keys() & wanted.keys():
        users = [task for task, (_, arguments) in tasks.items() if name in arguments]
        if set(users) != wanted[name][0] or len(users) != len(wanted[name][0]):
            want = " and ".join(sorted(wanted[name][0]))
            got = ", ".join(users) or "nobody"
            yield Finding(file, declared[name], "stream", f"{name} joins {want}, is used by {got}")


def _depths(file: str, region: Block, record: Json) -> Iterator[Finding]:
    """Declared depths, STREAM pragmas and lanes are those of ``stage.json``."""
    wanted = {name: fifo for name, (_, fifo) in _ends(record).items()}
    named, bound = (
        {p.options.get("variable"): p for p in pragmas(region) if p.name == kind}
        for kind in ("STREAM", "BIND_STORAGE")
    )
    for number, line in region.lines:
        match = _STREAM.fullmatch(line)
        if match is None or match.group(4) not in wanted:
            continue
        name, fifo = match.group(4), wanted[match.group(4)]
        if match.group(1) != cpp_type(fifo["dtype"]):
            yield Finding(file, number, "stream", f"{name} carries {match.group(1)}")
        if (int(match.group(2)), int(match.group(3))) != (fifo["lanes"], fifo["depth"]):
            text = f"{name} has {match.group(2)} lanes and depth {match.group(3)}, stage.json says"
            yield Finding(file, number, "depth", f"{text} {fifo['lanes']} and {fifo['depth']}")
        pragma = named.get(name)
        if pragma is None or pragma.options.get("depth") != str(fifo["depth"]):
            yield Finding(file, number, "depth", f"no STREAM pragma gives {name} its depth")
        lies = bound[name].options.get("impl") if name in bound else None
        if lies != fifo.get("memory"):
            text = f"{name} lies in {lies}, stage.json says {fifo.get('memory')}"
            yield Finding(file, number, "memory", text)


def _engines(file: str, region: Block, record: Json) -> Iterator[Finding]:
    """Every engine and port is one task."""
    wanted = {identifier(e["name"]) for e in record["engines"]} | record["ports"].keys()
    tasks = [m.group(2) for _, line in region.lines if (m := TASK.fullmatch(line))]
    for name in sorted(wanted.symmetric_difference(tasks)):
        yield Finding(file, region.line, "dataflow", f"{name} is no engine, or has no task")
    for name in sorted({t for t in tasks if tasks.count(t) > 1}):
        yield Finding(file, region.line, "dataflow", f"{name} has several tasks")
