"""Rules on tasks: which engine is called, with which streams and tables, in which order."""

import re
from collections.abc import Iterator

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.engines.base import Engine, Nest, Unit
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.stagejson import Json, nest_of
from pipec.backends.fpga.tables import BEAT_BYTES
from tests.fpga.lint.source import Block, Finding

TASK = re.compile(r"TASK\(engine::(\w+)<cfg::(\w+)>\((.*)\)\)")
"""A task: function, configuration, arguments."""

_FUNCTIONS = {
    "concat": {"concat"}, "const": {"source"}, "dwc": {"dwc"}, "fork": {"fork"},
    "gather": {"gather"}, "load": {"load"}, "map": {"map1", "map2"}, "matmul": {"matmul"},
    "perm": {"perm", "perm_words", "transpose"}, "reduce": {"reduce"}, "repeat": {"repeat"},
    "slice": {"slice"}, "swg": {"swg_line", "swg_ring"}, "vvu": {"vvu"},
}  # fmt: skip
"""Kind of engine to its functions, where more than the kind does not matter."""


def check_calls(file: str, region: Block, record: Json) -> Iterator[Finding]:
    """Every task calls its engine's function with ``frames``, its streams and its own tables."""
    engines = {identifier(e["name"]): e for e in record["engines"]}
    for number, line in region.lines:
        match = TASK.fullmatch(line)
        if match is None:
            continue
        function, name, text = match.groups()
        arguments = [a.strip() for a in text.split(",")]
        if arguments[0] != "frames":
            yield Finding(file, number, "call", f"{name} runs for {arguments[0]}, not for frames")
        if name in engines:
            yield from _engine(file, number, (function, arguments), engines[name])
        elif name in record["ports"]:
            yield from _port(file, number, (function, arguments), name, record["ports"][name])


def check_loads(file: str, root: Block, record: Json) -> Iterator[Finding]:
    """Every table on chip is filled from its own beats of the image of its type, in order."""
    beats: dict[str, int] = {}
    wanted = []
    for engine in record["engines"]:
        for weight in engine["weights"]:
            if weight["memory"] != "ddr":
                image = f"tables_{identifier(weight['dtype'])}"
                name = f"table::{identifier(engine['name'])}_{weight['role']}"
                wanted.append(f"engine::load_table({image}, {beats.get(image, 0)}, {name})")
                size = ceil_div(weight["bits"] // 8, BEAT_BYTES)
                beats[image] = beats.get(image, 0) + size
    lines = (line for block in root.all() for line in block.lines)
    found = [(number, line) for number, line in lines if "load_table(" in line]
    for k in range(max(len(found), len(wanted))):
        number, line = found[k] if k < len(found) else (1, "no table loaded")
        want = wanted[k] if k < len(wanted) else "no more"
        if line != want:
            yield Finding(file, number, "call", f"{line}, want {want}")


def _port(
    file: str, line: int, call: tuple[str, list[str]], name: str, stream: str
) -> Iterator[Finding]:
    side = "in" if name.startswith("in_") else "out"
    streams = [name, identifier(stream)] if side == "in" else [identifier(stream), name]
    if call != (f"axis_{side}", ["frames", *streams]):
        yield Finding(file, line, "call", f"{name} is not axis_{side} of {' and '.join(streams)}")


def _engine(file: str, line: int, call: tuple[str, list[str]], engine: Json) -> Iterator[Finding]:
    functions = _functions(engine)
    if functions is None:
        return
    function, (_, *arguments) = call
    name = identifier(engine["name"])
    if function not in functions:
        yield Finding(file, line, "call", f"{name} calls {function}, not {sorted(functions)}")
    streams = _order(engine)
    if arguments[: len(streams)] != streams:
        yield Finding(file, line, "call", f"{name} wants the streams {', '.join(streams)}")
    tables = [
        f"table::{name}_{weight['role']}"
        for weight in engine["weights"]
        if weight["memory"] != "ddr"
    ]
    if [a for a in arguments if a.startswith("table::")] != tables:
        yield Finding(file, line, "call", f"{name} wants the tables {', '.join(tables) or 'none'}")


def _functions(engine: Json) -> set[str] | None:
    """What may be called for an engine; None if no rule says."""
    nest = engine["nest"]
    if engine["kind"] == "mvu":
        return {"mvu_block" if nest["block"] > 1 else f"mvu_{nest['order'].lower()}"}
    if engine["kind"] == "norm":
        return {nest["op"].removeprefix("log_")}
    if engine["kind"] in Nest.KINDS and Nest.KINDS[engine["kind"]].sample is not None:
        return {_unit(engine).function}
    return _FUNCTIONS.get(engine["kind"])


def _unit(engine: Json) -> Unit:
    """How a kind says that it is called, of what ``stage.json`` says of an engine."""
    nest, reads, writes = nest_of(engine), tuple(engine["inputs"]), tuple(engine["outputs"])
    return nest.unit(Engine(engine["name"], nest, reads, writes, dtype=engine["numbers"]["dtype"]))


def _order(engine: Json) -> list[str]:
    """Streams as the engine's function takes them."""
    reads, writes = ([identifier(s) for s in engine[end]] for end in ("inputs", "outputs"))
    if engine["kind"] == "concat":
        return [*writes, *reads]
    if engine["kind"] in Nest.KINDS and Nest.KINDS[engine["kind"]].sample is not None:
        leading = _unit(engine).leading
        return [*reads[:leading], *writes, *reads[leading:]]
    if engine["kind"] == "mvu":  # weights that are streamed come behind the result
        return [*reads[:1], *writes, *reads[1:]]
    return [*reads, *writes]
