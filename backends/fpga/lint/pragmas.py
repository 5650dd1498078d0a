"""Rules on single pragmas: known names and options, targets that exist, sensible places."""

import re
from collections.abc import Iterator

from pipec.backends.fpga.lint.source import Block, Finding, Pragma, pragmas

OPTIONS: dict[str, frozenset[str]] = {
    "AGGREGATE": frozenset({"variable", "compact"}),
    "ARRAY_PARTITION": frozenset({"variable", "type", "factor", "dim"}),
    "BIND_OP": frozenset({"variable", "op", "impl", "latency"}),
    "BIND_STORAGE": frozenset({"variable", "type", "impl", "latency"}),
    "DATAFLOW": frozenset[str](),
    "DEPENDENCE": frozenset({"variable", "type", "direction", "distance"}),
    "DISAGGREGATE": frozenset({"variable"}),
    "INLINE": frozenset[str](),
    "INTERFACE": frozenset(
        {
            "mode", "port", "bundle", "depth", "offset", "latency", "max_read_burst_length",
            "max_write_burst_length", "num_read_outstanding", "num_write_outstanding",
        }
    ),
    "LOOP_TRIPCOUNT": frozenset({"min", "max", "avg"}),
    "PIPELINE": frozenset({"ii", "style"}),
    "STREAM": frozenset({"variable", "depth", "type"}),
    "UNROLL": frozenset({"factor"}),
}  # fmt: skip
"""Pragma to its options with a value (UG1399)."""

FLAGS: dict[str, frozenset[str]] = {
    "ARRAY_PARTITION": frozenset({"complete", "cyclic", "block"}),
    "DATAFLOW": frozenset({"disable_start_propagation"}),
    "DEPENDENCE": frozenset({"inter", "intra", "true", "false"}),
    "INLINE": frozenset({"off", "recursive"}),
    "INTERFACE": frozenset({"axis", "m_axi", "s_axilite", "ap_ctrl_chain", "ap_ctrl_hs"}),
    "PIPELINE": frozenset({"off", "rewind"}),
    "STREAM": frozenset({"off"}),
    "UNROLL": frozenset({"skip_exit_check", "off"}),
}
"""Pragma to its words without a value."""

VALUES = {
    ("BIND_OP", "op"): {"mul", "add", "sub"},
    ("BIND_OP", "impl"): {"fabric", "dsp"},
    ("BIND_STORAGE", "type"): {"fifo", "ram_1p", "ram_2p", "ram_s2p", "ram_t2p", "rom_1p"},
    ("BIND_STORAGE", "impl"): {"bram", "uram", "lutram", "srl", "auto", "memory"},
    ("PIPELINE", "style"): {"stp", "flp", "frp"},
    ("INTERFACE", "offset"): {"slave", "off", "direct"},
    ("ARRAY_PARTITION", "type"): {"complete", "cyclic", "block"},
}  # fmt: skip
"""Options that take one of a few words."""


def check_pragmas(file: str, root: Block) -> Iterator[Finding]:
    """All rules on single pragmas of a file."""
    for block in root.all():
        for pragma in pragmas(block):
            yield from _known(file, pragma)
            yield from _target(file, pragma, block)
            yield from _partition(file, pragma, block)
            yield from _placed(file, pragma, block)
        yield from _unrolled(file, block)
        yield from _pipelined(file, block)
        yield from _accessible(file, block)


def _known(file: str, p: Pragma) -> Iterator[Finding]:
    if p.name not in OPTIONS:
        yield Finding(file, p.line, "name", f"there is no pragma {p.name}")
        return
    for flag in sorted(p.flags - FLAGS.get(p.name, frozenset())):
        yield Finding(file, p.line, "option", f"{p.name} takes no word {flag}")
    for key, value in p.options.items():
        if key not in OPTIONS[p.name]:
            yield Finding(file, p.line, "option", f"{p.name} has no option {key}")
        allowed = VALUES.get((p.name, key))
        if allowed is not None and value not in allowed:
            yield Finding(file, p.line, "option", f"{p.name} {key} = {value}")


def _target(file: str, p: Pragma, block: Block) -> Iterator[Finding]:
    """The variable is declared in a block around the pragma, a parameter, or in another namespace.

    Of ``acc.sum`` and ``table::w.lane`` the first name counts.
    """
    variable = p.options.get("variable")
    if variable is None:
        if "variable" in OPTIONS.get(p.name, ()):
            yield Finding(file, p.line, "target", f"{p.name} names no variable")
        return
    name, scopes = _named(variable, block)
    if not any(name in scope.declared for scope in scopes):
        yield Finding(file, p.line, "target", f"{p.name} names {variable}, which is not declared")


def _named(variable: str, block: Block) -> tuple[str, list[Block]]:
    """The name that is declared, and the blocks that may declare it."""
    *spaces, name = re.split(r"[.\[]", variable)[0].split("::")
    blocks = list(block.around())
    if spaces:
        blocks = [b for b in blocks[-1].all() if b.head == f"namespace {spaces[-1]}"]
    return name, blocks


def _declaration(variable: str, block: Block) -> str | None:
    """What follows the name where an array is declared."""
    name, scopes = _named(variable, block)
    for scope in scopes:
        for _, line in scope.lines:
            found = re.search(rf"[\w>&*]\s+{name}\s*(\[.*)", line)
            if not line.startswith("#") and found:
                return found.group(1)
    return None


def _partition(file: str, p: Pragma, block: Block) -> Iterator[Finding]:
    """Factors are those of a loop that is unrolled beside it; dimensions exist."""
    if p.name != "ARRAY_PARTITION":
        return
    kind = p.options.get("type") or next(iter(p.flags & {"complete", "cyclic", "block"}), None)
    factor, variable = p.options.get("factor"), p.options.get("variable", "")
    if kind is None:
        yield Finding(file, p.line, "partition", "neither complete, cyclic nor block")
    elif kind == "complete" and factor is not None:
        yield Finding(file, p.line, "partition", "complete takes no factor")
    elif kind != "complete" and factor is None:
        yield Finding(file, p.line, "partition", f"{kind} needs a factor")
    elif factor is not None and factor not in _unroll_bounds(block):
        yield Finding(
            file, p.line, "partition", f"no loop over {variable} is unrolled {factor} times"
        )
    declared = _declaration(variable, block)
    dim = p.options.get("dim", "1")
    if declared is not None and dim.isdigit():
        rank = declared.count("[") + variable.count(".")  # a member is an array itself
        if int(dim) > rank:
            yield Finding(file, p.line, "partition", f"{variable} has no dimension {dim}")


def _unroll_bounds(block: Block) -> set[str]:
    """Bounds of the unrolled loops of the function around a block."""
    function = next((b for b in block.around() if b.head and not b.is_loop), block)
    return {
        bound
        for loop in function.all()
        if loop.is_loop and any(p.name == "UNROLL" for p in pragmas(loop))
        for bound in re.findall(r"[<]=?\s*([\w:]+)\s*;", loop.head)
    }


def _placed(file: str, p: Pragma, block: Block) -> Iterator[Finding]:
    """PIPELINE and UNROLL stand at the head of a loop; a pipelined loop fires at its interval."""
    if p.name in ("PIPELINE", "UNROLL", "LOOP_TRIPCOUNT"):
        before = [line for number, line in block.lines if number < p.line]
        if not block.is_loop or any(not line.lstrip().startswith("#") for line in before):
            yield Finding(file, p.line, "placement", f"{p.name} is not at the head of a loop")
    if p.name == "PIPELINE":
        fires = [re.match(r"FIRE\(\s*(.*?)\s*,", line) for _, line in block.lines]
        found = [f.group(1) for f in fires if f is not None]
        want = p.options.get("ii")
        if want is not None and found != [want]:
            yield Finding(
                file, p.line, "placement", f"PIPELINE II = {want}, but the loop fires {found}"
            )


def _unrolled(file: str, block: Block) -> Iterator[Finding]:
    """Every loop inside a pipelined one is unrolled."""
    inside = any(
        b.is_loop and any(p.name == "PIPELINE" for p in pragmas(b))
        for b in block.around()
        if b is not block
    )
    if block.is_loop and inside and not any(p.name == "UNROLL" for p in pragmas(block)):
        yield Finding(file, block.line, "unroll", f"inside a pipelined loop: {block.head}")


def _pipelined(file: str, block: Block) -> Iterator[Finding]:
    """A loop that fires is pipelined."""
    for number, line in block.lines:
        if line.startswith("FIRE(") and not any(p.name == "PIPELINE" for p in pragmas(block)):
            yield Finding(file, number, "placement", "fires in a loop that is not pipelined")


_SPREAD = frozenset({"ARRAY_PARTITION", "AGGREGATE"})
"""Pragmas that make all elements of an array accessible at once."""


def _accessible(file: str, block: Block) -> Iterator[Finding]:
    """An array of a function that an unrolled loop goes over is not a memory with two ports."""
    if (
        "(" not in block.head
        or block.is_loop
        or (block.parent is not None and block.parent.is_loop)
    ):
        return
    inner = [b for b in block.all() if b.is_loop or b is block]
    arrays = {
        found.group(1): number
        for b in inner
        for number, line in b.lines
        if (found := re.match(r"(?:static )?[\w:]+(?:<.*>)? (\w+)\[", line)) is not None
    }
    spread = {
        re.split(r"[.\[]", p.options.get("variable", ""))[0]
        for b in inner
        for p in pragmas(b)
        if p.name in _SPREAD
    }
    for loop in inner:
        index = re.match(r"for \(\w+ (\w+) =", loop.head)
        if index is None or not any(p.name == "UNROLL" for p in pragmas(loop)):
            continue
        text = " ".join(line for b in loop.all() for _, line in b.lines)
        for name in arrays.keys() - spread:
            if re.search(rf"\b{name}\[[^\]]*\b{index.group(1)}\b", text):
                yield Finding(
                    file, arrays[name], "partition", f"{name} is not partitioned: {loop.head}"
                )
