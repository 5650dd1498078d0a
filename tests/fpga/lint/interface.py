"""Rules on the kernel's edges: an interface per argument, tables where they are said to be."""

import math
import re
from collections.abc import Iterator, Mapping

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.engines.parts import BURST, OUTSTANDING
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.stagejson import Json
from pipec.backends.fpga.tables import BEAT_BYTES
from tests.fpga.lint.source import Block, Finding, Pragma, pragmas


def check_interface(file: str, root: Block, record: Json) -> Iterator[Finding]:
    """All rules on the arguments and tables of ``stage_top.cpp`` against its ``stage.json``."""
    top = next((b for b in root.all() if re.match(r"void \w+_top\(", b.head)), None)
    if top is None:
        yield Finding(file, 1, "interface", "there is no top function")
        return
    written = [a.split()[-2:] for a in _split(top.head[top.head.index("(") + 1 : -1])]
    arguments = {name.lstrip("&*") for _, name in written}
    pointers = {name.lstrip("*") for kind, name in written if "*" in kind + name}
    given = [p for p in pragmas(top) if p.name == "INTERFACE"]
    modes: dict[str, set[str]] = {}
    for p in given:
        port = p.options.get("port", "")
        modes.setdefault(port, set()).update(p.flags)
        if port not in arguments | {"return"}:
            yield Finding(file, p.line, "interface", f"{port} is no argument of {top.head}")
    for argument in sorted(arguments | {"return"}):
        want = {"axis"} if argument in record["ports"] else {"s_axilite"}
        want |= {"m_axi"} if argument in pointers else set()
        if modes.get(argument, set()) != want:
            yield Finding(file, top.line, "interface", f"{argument} wants {' '.join(want)}")
    behind = _words_behind(record)
    for p in given:
        if "m_axi" in p.flags:
            yield from _memory(file, p, behind)
    yield from _storage(file, root, record)


def _memory(file: str, p: Pragma, behind: Mapping[str, int]) -> Iterator[Finding]:
    """A pointer's address is a register, its bundle the one that is given to a bank."""
    port = p.options.get("port", "")
    want = {
        "offset": "slave",
        "bundle": "gmem_tables" if port.startswith("tables_") else port,
        "depth": str(behind.get(port, "")),
        "max_read_burst_length": str(BURST),
        "num_read_outstanding": str(OUTSTANDING),
    }
    for key, value in want.items():
        if p.options.get(key) != value:
            text = f"{port}: {key} is {p.options.get(key)}, want {value}"
            yield Finding(file, p.line, "interface", text)


def _words_behind(record: Json) -> dict[str, int]:
    """Memory pointer to the words behind it, which co-simulation needs to know."""
    found: dict[str, int] = {}
    ports = {port["engine"]: identifier(port["name"]) for port in record["ddr"]}
    for engine in record["engines"]:
        name, nest = ports.get(engine["name"], ""), engine["nest"]
        if engine["kind"] in ("store", "fetch", "accumulate", "spill", "refill"):
            each = nest.get("chunk", nest["tokens"])
            found[name] = math.prod((each, nest.get("slots", 1)))
        for weight in engine["weights"]:
            bits = bits_of(weight["dtype"])
            if weight["memory"] == "ddr":
                found[name] = ceil_div(weight["bits"], nest["beat"] * bits)
            else:
                image = f"tables_{identifier(weight['dtype'])}"
                beats = ceil_div(weight["bits"] // 8, BEAT_BYTES)
                found[image] = found.get(image, 0) + beats * BEAT_BYTES * 8 // bits
    return found


_IMPLEMENTED = {"lut": "lutram", "bram": "bram", "uram": "uram"}
"""Kind of memory to what BIND_STORAGE calls it."""


def _storage(file: str, root: Block, record: Json) -> Iterator[Finding]:
    """Every table lies in the memory that ``stage.json`` says, its words whole or in lanes."""
    found: dict[str, dict[str, Pragma]] = {}
    for block in root.all():
        for p in pragmas(block):
            found.setdefault(p.options.get("variable", "").split(".")[0], {})[p.name] = p
    for engine in record["engines"]:
        for weight in engine["weights"]:
            if weight["memory"] in _IMPLEMENTED:
                name = f"table::{identifier(engine['name'])}_{weight['role']}"
                yield from _table(file, name, found.get(name, {}), weight["memory"])


def _table(file: str, name: str, given: Mapping[str, Pragma], memory: str) -> Iterator[Finding]:
    """A table of whole words is one memory; one whose lanes lie apart is one memory for each."""
    bound, parted = given.get("BIND_STORAGE"), given.get("ARRAY_PARTITION")
    apart = "DISAGGREGATE" in given
    if bound is None or bound.options.get("impl") != _IMPLEMENTED[memory]:
        yield Finding(file, 1, "storage", f"{name} is not bound to {_IMPLEMENTED[memory]}")
    elif bound.options.get("type") != "ram_2p":
        yield Finding(
            file, bound.line, "storage", f"{name} is filled and read, and has no two ports"
        )
    elif bound.options["variable"] != (f"{name}.lane" if apart else name):
        yield Finding(file, bound.line, "storage", f"what is bound of {name} is no memory of it")
    if not {"AGGREGATE", "DISAGGREGATE"} & given.keys():
        yield Finding(file, 1, "storage", f"words of {name} are neither whole nor in lanes")
    if apart and (
        parted is None
        or parted.options != {"variable": f"{name}.lane", "dim": "2"}
        or "complete" not in parted.flags
    ):
        yield Finding(file, 1, "storage", f"the lanes of {name} are not parted")


def _split(arguments: str) -> list[str]:
    """Arguments of a signature, split at the commas outside of angle brackets."""
    found, depth, word = [], 0, ""
    for c in arguments:
        depth += (c == "<") - (c == ">")
        if c == "," and not depth:
            found.append(word)
            word = ""
        else:
            word += c
    return [*found, word]
