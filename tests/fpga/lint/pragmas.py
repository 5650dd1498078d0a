"""Rules on single pragmas: known names and options, targets that exist, factors."""

import re
from collections.abc import Iterable, Iterator

from tests.fpga.lint.source import Block, Finding, Pragma, pragmas

OPTIONS: dict[str, frozenset[str]] = {
    "AGGREGATE": frozenset({"variable"}),
    "ARRAY_PARTITION": frozenset({"variable", "type", "factor", "dim"}),
    "BIND_OP": frozenset({"variable", "op", "impl"}),
    "BIND_STORAGE": frozenset({"variable", "type", "impl"}),
    "DATAFLOW": frozenset[str](),
    "DEPENDENCE": frozenset({"variable", "type", "direction", "distance"}),
    "DISAGGREGATE": frozenset({"variable"}),
    "INLINE": frozenset[str](),
    "INTERFACE": frozenset(
        {
            "port",
            "bundle",
            "depth",
            "offset",
            "max_read_burst_length",
            "max_write_burst_length",
            "num_read_outstanding",
        }
    ),
    "LOOP_TRIPCOUNT": frozenset({"min", "max"}),
    "PIPELINE": frozenset({"ii"}),
    "STREAM": frozenset({"variable", "depth"}),
    "UNROLL": frozenset[str](),
}
"""Pragma to its options with a value: those of UG1399 that leave alone when an engine fires."""

FLAGS: dict[str, frozenset[str]] = {
    "ARRAY_PARTITION": frozenset({"complete", "cyclic", "block"}),
    "DEPENDENCE": frozenset({"true"}),
    "INTERFACE": frozenset({"axis", "m_axi", "s_axilite"}),
}
"""Pragma to its words without a value, likewise: UNROLL has no ``off``, STREAM is no ``pipo``."""

VALUES = {
    ("BIND_OP", "op"): {"mul", "add", "sub"},
    ("BIND_OP", "impl"): {"fabric", "dsp"},
    ("BIND_STORAGE", "type"): {"fifo", "ram_2p"},  # engines read and write at once
    ("BIND_STORAGE", "impl"): {"bram", "uram", "lutram", "srl", "auto", "memory"},
    ("DEPENDENCE", "type"): {"inter"},
    ("DEPENDENCE", "direction"): {"RAW"},
    # what a RAM needs, where the code keeps one word in registers; words visited in turn; `Scatter`
    ("DEPENDENCE", "distance"): {"2", "WORDS", "G::CF", "G::BLOCK", "G::MEETS", "G::FIRINGS"},
    ("INTERFACE", "offset"): {"slave", "off", "direct"},
    ("ARRAY_PARTITION", "type"): {"complete", "cyclic", "block"},
}
"""Options that take one of a few words."""


REQUIRED: dict[str, frozenset[str]] = {
    "BIND_OP": frozenset({"op", "impl"}),
    "BIND_STORAGE": frozenset({"type"}),
    "DEPENDENCE": frozenset({"variable", "type", "direction", "distance"}),
    "INTERFACE": frozenset({"port"}),
    "LOOP_TRIPCOUNT": frozenset({"min", "max"}),
    "STREAM": frozenset({"depth"}),
}
"""Options without which a pragma says nothing."""

_OPERATORS = {"mul": " * ", "add": " + ", "sub": " - "}


def words_of(roots: Iterable[Block]) -> frozenset[str]:
    """Every word of the code of some files, pragmas left out."""
    return frozenset[str]().union(*(root.words for root in roots))


def check_pragmas(file: str, root: Block, words: frozenset[str]) -> Iterator[Finding]:
    """All rules on single pragmas of a file.

    Args:
        file: Its name.
        root: Its text.
        words: Words of the code of all files: an option's value has no others.
    """
    yield from _conditional(file, root)
    for block in root.all():
        yield from _repeated(file, block)
        for pragma in pragmas(block):
            yield from _known(file, pragma)
            yield from _target(file, pragma, block)
            yield from _partition(file, pragma, block)
            yield from _named_in(file, pragma, words)
            yield from _operation(file, pragma, block)


def _conditional(file: str, root: Block) -> Iterator[Finding]:
    """No pragma depends on the preprocessor; the guard around a header counts as no condition."""
    lines = sorted(
        (number, line.split()) for b in root.all() for number, line in b.lines if "#" in line[:9]
    )
    lines = [(number, words) for number, words in lines if words[0].startswith("#")]
    depth = 0
    for k, (number, words) in enumerate(lines):
        if words[0].startswith("#if"):
            guard = lines[k + 1][1][:2] == ["#define", *words[1:2]] if k + 1 < len(lines) else False
            depth += 0 if guard and k == 0 else 1
        elif words[0] == "#endif":
            depth -= 1
        elif depth > 0 and words[:2] == ["#pragma", "HLS"]:
            yield Finding(file, number, "condition", f"{words[2]} depends on the preprocessor")


def _repeated(file: str, block: Block) -> Iterator[Finding]:
    """A thing is said once, and a loop is not both pipelined and unrolled."""
    seen: set[tuple[object, ...]] = set()
    for p in pragmas(block):
        about = [p.options.get(key) for key in ("variable", "port", "dim")]
        flags = p.flags if p.name == "INTERFACE" else frozenset[str]()
        kind = "PIPELINE" if p.name == "UNROLL" else p.name
        if (kind, flags, *about) in seen:
            yield Finding(file, p.line, "repeated", f"a second {p.name} of {about[0] or about[1]}")
        seen.add((kind, flags, *about))


def _known(file: str, p: Pragma) -> Iterator[Finding]:
    if p.name not in OPTIONS:
        yield Finding(file, p.line, "name", f"there is no pragma {p.name}")
        return
    for flag in sorted(p.flags - FLAGS.get(p.name, frozenset())):
        yield Finding(file, p.line, "option", f"{p.name} takes no word {flag}")
    if p.name == "DEPENDENCE" and not p.flags:  # then there is none, and no distance is kept
        yield Finding(file, p.line, "option", "DEPENDENCE is not true")
    for key in sorted(REQUIRED.get(p.name, frozenset()) - p.options.keys()):
        yield Finding(file, p.line, "option", f"{p.name} has no {key}")
    for key, value in p.options.items():
        if key not in OPTIONS[p.name]:
            yield Finding(file, p.line, "option", f"{p.name} has no option {key}")
        allowed = VALUES.get((p.name, key))
        if allowed is not None and value not in allowed:
            yield Finding(file, p.line, "option", f"{p.name} {key} = {value}")


def _named_in(file: str, p: Pragma, words: frozenset[str]) -> Iterator[Finding]:
    """Sizes and members that a pragma names occur in the code."""
    for key in ("variable", "ii", "depth", "factor", "min", "max"):
        for word in re.findall(r"\b[A-Za-z_]\w*", p.options.get(key, "")):
            if word not in words:
                yield Finding(file, p.line, "target", f"{p.name} {key} names {word}: no such word")


def _operation(file: str, p: Pragma, block: Block) -> Iterator[Finding]:
    """The variable of BIND_OP is the result of its operation."""
    if p.name != "BIND_OP" or p.options.get("op") not in _OPERATORS:
        return
    name, operator = p.options.get("variable", ""), _OPERATORS[p.options["op"]]
    values = [re.search(rf"\b{name} = (.*)", line) for line in block.code]
    flat = [re.sub(r"\([^()]*\)", "", v.group(1)) for v in values if v is not None]
    if not any(operator in value for value in flat):
        yield Finding(file, p.line, "target", f"{name} is no result of {p.options['op']}")


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
    elif factor is not None and not _is_unrolled_by(factor, block):
        yield Finding(
            file, p.line, "partition", f"no loop over {variable} is unrolled {factor} times"
        )
    declared = _declaration(variable, block)
    dim = p.options.get("dim", "1")
    if declared is not None and dim.isdigit():
        rank = declared.count("[") + variable.count(".")  # a member is an array itself
        if int(dim) > rank:
            yield Finding(file, p.line, "partition", f"{variable} has no dimension {dim}")


def _is_unrolled_by(factor: str, block: Block) -> bool:
    """Whether a loop of the function is unrolled so often, or a constant of it has the bound."""
    function = next((b for b in block.around() if b.head and not b.is_loop), block)
    made = [re.match(rf"constexpr int {factor} = (.*)", line) for line in function.code]
    words = {w for m in made if m is not None for w in re.findall(r"[\w:]+", m.group(1))}
    return bool(({factor} | words) & _unroll_bounds(function))


def _unroll_bounds(function: Block) -> set[str]:
    """Bounds of the unrolled loops of a function."""
    return {
        bound
        for loop in function.all()
        if loop.is_loop and any(p.name == "UNROLL" for p in pragmas(loop))
        for bound in re.findall(r"[<]=?\s*([\w:]+)\s*;", loop.head)
    }
