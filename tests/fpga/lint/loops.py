"""Rules on loops: where they fire, at which interval, and what is unrolled."""

import re
from collections.abc import Iterator

from tests.fpga.lint.source import Block, Finding, Pragma, pragmas


def check_loops(file: str, root: Block) -> Iterator[Finding]:
    """All rules on the loops and functions of a file."""
    fires = any(line.startswith("FIRE(") for b in root.all() for _, line in b.lines)
    pipelined = {name for b in root.all() if _has(b, "PIPELINE") if (name := _function(b))}
    for block in root.all():
        for pragma in pragmas(block):
            yield from _placed(file, pragma, block, fires=fires)
        yield from _unrolled(file, block)
        yield from _pipelined(file, block)
        yield from _drained(file, block)
        yield from _paused(file, block)
        yield from _rolled(file, block, pipelined)
        yield from _inlined(file, block, root, pipelined)


def is_unrolled(block: Block) -> bool:
    """Whether a block is the body of an unrolled loop."""
    return block.is_loop and _has(block, "UNROLL")


def _has(block: Block, name: str) -> bool:
    return any(p.name == name for p in pragmas(block))


def _is_function(block: Block) -> bool:
    return bool(re.search(r"\w+\s*\(.*\)( const)?$", block.head)) and not re.match(
        r"(for|while|if|else|switch|do)\b", block.head
    )


def _function(block: Block) -> str | None:
    """Name of the function around a block."""
    found = next((b for b in block.around() if _is_function(b)), None)
    match = re.search(r"(\w+)\s*\(", found.head) if found is not None else None
    return match.group(1) if match is not None else None


def _placed(file: str, p: Pragma, block: Block, *, fires: bool) -> Iterator[Finding]:
    """PIPELINE and UNROLL stand at the head of a loop; a pipelined loop fires at its interval."""
    if p.name in ("PIPELINE", "UNROLL", "LOOP_TRIPCOUNT"):
        before = [line for number, line in block.lines if number < p.line]
        if not block.is_loop or any(not line.lstrip().startswith("#") for line in before):
            yield Finding(file, p.line, "placement", f"{p.name} is not at the head of a loop")
    if p.name == "PIPELINE" and fires:
        found = [re.match(r"FIRE\(\s*(.*?)\s*,", line) for _, line in block.lines]
        times = [f.group(1) for f in found if f is not None]
        want = p.options.get("ii")
        if times != [want] and (times or want is not None):
            yield Finding(
                file, p.line, "placement", f"PIPELINE II = {want}, but the loop fires {times}"
            )


def _unrolled(file: str, block: Block) -> Iterator[Finding]:
    """Every loop inside a pipelined one is unrolled."""
    inside = any(b.is_loop and _has(b, "PIPELINE") for b in block.around() if b is not block)
    if block.is_loop and inside and not _has(block, "UNROLL"):
        yield Finding(file, block.line, "unroll", f"inside a pipelined loop: {block.head}")


def _pipelined(file: str, block: Block) -> Iterator[Finding]:
    """A loop that fires is pipelined."""
    for number, line in block.lines:
        if line.startswith("FIRE(") and not _has(block, "PIPELINE"):
            yield Finding(file, number, "placement", "fires in a loop that is not pipelined")


def _drained(file: str, block: Block) -> Iterator[Finding]:
    """Loops of one function that fire one after the other say what the first one drains for."""
    loops = [b for b in block.all() if any(line.startswith("FIRE(") for _, line in b.lines)]
    gaps = {number for b in block.all() for number, line in b.lines if line.startswith("GAP(")}
    if _is_function(block) and len(loops) > 1:
        for loop in loops:
            if loop.line - 1 not in gaps:
                yield Finding(file, loop.line, "placement", "drains, but there is no GAP before it")


_FIXED = re.compile(r"(?:[A-Z_]+|G::|\d+|ceil_div|larger|smaller|[\s()*/+,-])+")


def _paused(file: str, block: Block) -> Iterator[Finding]:
    """Loops around one that fires hold nothing else and have constant ends, so that all are one;
    else its pipeline drains in each repetition, and there is a GAP."""
    function = next((b for b in block.around() if _is_function(b)), None)
    if function is None or not any(line.startswith("FIRE(") for _, line in block.lines):
        return
    if any(line.startswith("GAP(") for b in function.all() for _, line in b.lines):
        return
    while block.is_loop and (around := block.parent) is not None and around.is_loop:
        end = re.search(r"\w+ < (.*);", block.head)
        one = len(around.lines) == 1 and end is not None and _FIXED.fullmatch(end[1])
        if not one:
            yield Finding(file, block.line, "placement", f"drains in each turn of {around.head}")
        block = around


def _rolled(file: str, block: Block, pipelined: set[str]) -> Iterator[Finding]:
    """A loop that is neither pipelined nor unrolled has something pipelined in it, or polls."""
    if not block.is_loop or _has(block, "PIPELINE") or _has(block, "UNROLL"):
        return
    text = " ".join(line for b in block.all() for _, line in b.lines)
    calls = set(re.findall(r"(\w+)(?:<[^;(]*>)?\(", text))
    if not calls & {*pipelined, "read_nb"} and not any(_has(b, "PIPELINE") for b in block.all()):
        yield Finding(file, block.line, "unroll", f"neither pipelined nor unrolled: {block.head}")


def _inlined(file: str, block: Block, root: Block, pipelined: set[str]) -> Iterator[Finding]:
    """A pipelined function is a task, or part of one: it is inlined, or what calls it is."""
    name = _function(block) if _is_function(block) else None
    if name not in pipelined or _has(block, "INLINE"):
        return
    for other in root.all():
        if not _is_function(other) or other is block or _has(other, "INLINE"):
            continue
        text = " ".join(line for b in other.all() for _, line in b.lines)
        if re.search(rf"\b{name}(<[^;(]*>)?\(", text):
            where = f"{name} is called by {_function(other)}, and neither is inlined"
            yield Finding(file, block.line, "placement", where)
