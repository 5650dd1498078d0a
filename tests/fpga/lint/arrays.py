"""Rules on arrays: what unrolled loops go over is spread over registers or wide words."""

import re
from collections.abc import Iterator, Mapping

from tests.fpga.lint.loops import is_unrolled
from tests.fpga.lint.source import Block, Finding, pragmas

Members = Mapping[str, tuple[str, ...]]
"""Struct to its members that are arrays."""

_LOCAL = re.compile(r"(?:static |const )?(\w+)<[^=]*> (\w+)(?:\[.*\])?(?: = .*)?")
"""A variable of a struct, and its name."""
_ALL = 0
"""The dimension of a partition that means all of them."""


def members(root: Block) -> dict[str, tuple[str, ...]]:
    """The structs of a file with arrays in them; what streams carry are words, not arrays."""
    found: dict[str, tuple[str, ...]] = {}
    for block in root.all():
        name = re.search(r"\bstruct (\w+)$", block.head)
        if name is not None and name.group(1) not in ("vec", "raw"):
            lines = [re.fullmatch(r"[\w:<>, ]+ (\w+)\[.*\]", line) for _, line in block.lines]
            arrays = tuple(match.group(1) for match in lines if match is not None)
            found |= {name.group(1): arrays} if arrays else {}
    return found


def check_arrays(file: str, root: Block, known: Members) -> Iterator[Finding]:
    """All rules on the arrays of a file.

    Args:
        file: Its name.
        root: Its text.
        known: Structs with arrays in them, of all files.
    """
    for block in root.all():
        if "(" not in block.head or block.is_loop:
            continue
        if block.parent is not None and block.parent.is_loop:
            continue
        spread = _spread(block)
        yield from _accessible(file, block, spread)
        yield from _words(file, block, spread)
        yield from _parts(file, block, spread, known)


def _spread(function: Block) -> dict[str, set[int]]:
    """Array or member to its dimensions all of whose elements are accessible at once."""
    found: dict[str, set[int]] = {}
    for block in function.all():
        for p in pragmas(block):
            dims = found.setdefault(p.options.get("variable", ""), set())
            if p.name == "AGGREGATE":
                dims.add(_ALL)
            if p.name == "ARRAY_PARTITION" and p.options.get("dim", "1").isdigit():
                dims.add(int(p.options.get("dim", "1")))
    return {name: dims for name, dims in found.items() if dims}


def _arrays(function: Block) -> dict[str, tuple[int, str]]:
    """Array of a function to its line and the type of its elements."""
    found: dict[str, tuple[int, str]] = {}
    for block in function.all():
        for number, line in block.lines:
            match = re.match(r"(?:static )?((?:typename )?[\w:]+(?:<.*>)?) (\w+)\[", line)
            if match is not None and match.group(1) not in ("return", "constexpr"):
                names = [match.group(2), *re.findall(r"\], (\w+)\[", line)]
                found |= {name: (number, match.group(1)) for name in names}
    return found


def _accessible(file: str, function: Block, spread: Mapping[str, set[int]]) -> Iterator[Finding]:
    """An array that an unrolled loop goes over is no memory with two ports."""
    arrays = _arrays(function)
    for loop in function.all():
        index = re.match(r"for \(\w+ (\w+) =", loop.head)
        if index is None or not is_unrolled(loop):
            continue
        text = " ".join(line for b in loop.all() for _, line in b.lines)
        for name, (number, _) in arrays.items():
            for places in re.findall(rf"\b{name}((?:\[[^\[\]]*\])+)", text):
                used = _dimensions(places, index.group(1))
                if used and not (used | {_ALL}) & spread.get(name, set()):
                    what = f"{name}{places} is not partitioned: {loop.head}"
                    yield Finding(file, number, "partition", what)
                    break
    everything = " ".join(line for b in function.all() for _, line in b.lines)
    for name, (number, _) in arrays.items():  # a pack is unrolled too
        if name not in spread and re.search(rf"\b{name}\[\w+\][^;]*\.\.\.", everything):
            yield Finding(file, number, "partition", f"{name} is not partitioned: ...")


def _dimensions(places: str, index: str) -> set[int]:
    """Dimensions of an access, from 1 on, in which a loop's index stands."""
    each = re.findall(r"\[([^\]]*)\]", places)
    return {k for k, place in enumerate(each, 1) if re.search(rf"\b{index}\b", place)}


def _words(file: str, function: Block, spread: Mapping[str, set[int]]) -> Iterator[Finding]:
    """Arrays of tokens are arrays of words: the lanes of a token lie side by side."""
    for name, (number, kind) in _arrays(function).items():
        if (kind == "V" or kind.startswith("vec<")) and _ALL not in spread.get(name, set()):
            yield Finding(file, number, "partition", f"the tokens of {name} are not aggregated")


def _parts(
    file: str, function: Block, spread: Mapping[str, set[int]], known: Members
) -> Iterator[Finding]:
    """The array in a local variable is partitioned, or the variable is one word."""
    for block in function.all():
        for number, line in block.lines:
            match = _LOCAL.fullmatch(line)
            if match is None or match.group(1) not in known:
                continue
            kind, name = match.groups()
            missing = [m for m in known[kind] if f"{name}.{m}" not in spread]
            if missing and name not in spread:
                what = f"{name}.{missing[0]} is neither partitioned nor part of a word"
                yield Finding(file, number, "partition", what)
