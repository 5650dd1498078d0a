"""Names and places as LLVM IR has them, and what is found of a loop."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.hls_check.ir import Instruction

_COUNT = re.compile(r"S[0-9A-Z]*_|T\d*_|L[a-z]n?\d+E|(?:A|Dv)\d+_|(\d+)")
"""The length of an identifier; before it, numbers that are none: what was named before, parameters
and numbers given to templates, sizes (Itanium C++ ABI, 5.1)."""
_INDEX = re.compile(r"i(?:32|64) ([^,\s]+)")


@dataclass(frozen=True)
class Array:
    """What pragmas say of an array.

    Attributes:
        partitioned: The dimension that is completely partitioned, 0 for all of them; None for none.
        ports: Reads and writes that a RAM allows in a cycle; None for two of either kind.
    """

    partitioned: int | None = None
    ports: tuple[int, int] | None = None


@dataclass(frozen=True)
class Interval:
    """What a pipelined loop allows.

    Attributes:
        function: Mangled name of its function.
        declared: The interval that it declares.
        recurrence: Least interval by recurrences; ``cycle`` the operations of the tightest one.
        ports: Least interval by memory ports; ``memory`` the array that needs it.
        unknown: Addresses in no array that is known: what is behind them is not analysed.
        pause: Whether it is no loop but what lies between two: ``declared`` cycles from the last
            start in one to the first in the other, of which ``recurrence`` are needed.
        depth: Cycles until the last token, or word for a memory outside of the chip, that an
            iteration writes has left it, at least; ``declared_depth`` what the code declares.
    """

    function: str
    declared: int
    recurrence: int
    cycle: tuple[str, ...]
    ports: int
    memory: str
    unknown: tuple[str, ...] = ()
    depth: int = 0
    declared_depth: int | None = None
    pause: bool = False

    @property
    def kind(self) -> str:
        """Name of the engine's template."""
        return kind_in(self.function)

    @property
    def engine(self) -> str:
        """Name of the engine's configuration, or of the engine if it has none."""
        return engine_in(self.function)

    @property
    def path(self) -> str:
        """The operations of the tightest cycle, without what costs nothing; the first ten."""
        shown = [op for op in self.cycle if op not in {"zext", "sext", "trunc", "bitcast"}]
        return " ".join(shown[:10]) + (" ..." if len(shown) > 10 else "")

    @property
    def least(self) -> int:
        """Least interval."""
        return max(self.recurrence, self.ports)

    @property
    def ok(self) -> bool:
        """Whether the declared interval can be reached, as far as can be known of all of it."""
        return self.least <= self.declared and not self.short and not self.unknown

    @property
    def short(self) -> int:
        """Cycles that the pipeline is deeper than declared; 0 where no engine counts cycles."""
        return 0 if self.declared_depth is None else max(self.depth - self.declared_depth, 0)


@dataclass(eq=False)
class Access:
    """A load or store of an array in a loop; a copied block is one of each."""

    at: Instruction
    kind: str
    array: str
    index: tuple[str, ...]
    lane: tuple[str, ...]


def never_meet(a: Access, b: Access, *, whole: bool) -> bool:
    """Whether two accesses never meet: constant places that differ, of a memory those of words."""
    places = [*zip(a.index, b.index, strict=False)]
    places += [] if whole else [*zip(a.lane, b.lane, strict=False)]
    return any(x != y and x.isdigit() and y.isdigit() for x, y in places)


def base_name(name: str) -> str:
    """Name of an array without that of a bank."""
    return name.partition("[")[0].lstrip("%@").strip('"')


def plain_name(name: str) -> str:
    """A name in the source: an inlined one has a number behind."""
    return re.sub(r"(\.\w+)*\d*$", "", name)


@lru_cache(maxsize=1 << 12)
def names_in(mangled: str) -> tuple[str, ...]:
    """Identifiers of a mangled name, in order."""
    found, at = list[str](), 0
    while match := _COUNT.search(mangled, at):
        at = match.end()
        if name := mangled[at : at + int(match[1] or 0)]:
            found.append(name)
            at += len(name)
    return tuple(found)


def kind_in(mangled: str) -> str:
    """Name of the engine's template in the mangled name of its function."""
    return ([n for n in names_in(mangled) if n != "detail"] + ["", ""])[1]


def engine_in(mangled: str) -> str:
    """Name of the engine's configuration there, or of the engine if it has none."""
    names = names_in(mangled)
    return names[names.index("cfg") + 1] if "cfg" in names else kind_in(mangled)


def last_name(mangled: str) -> str:
    """The last identifier of a mangled name; the name itself if it is none."""
    return names_in(mangled)[-1] if mangled.startswith("_Z") else mangled


def place_of(steps: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Index of the word and place in it of an address that is found in steps from an array on."""
    index: list[str] = []
    lane: list[str] = []
    for k, step in enumerate(steps):
        first, *numbers = _INDEX.findall(step.split("*", 1)[-1])
        dims = 0 if k else len(leading(step))
        if first != "0" and k and first.isdigit() and "struct" in steps[0]:
            lane.append(first)
        elif first != "0":  # words on from there
            index = [*index[:-1], "+".join((*index[-1:], first))]
        index += numbers[:dims]
        lane += numbers[dims:]
    return tuple(index), tuple(lane)


def leading(rest: str) -> list[str]:
    """Sizes of the array type that a text begins with, the outermost first."""
    match = re.match(r"\s*(?:inbounds )?((?:\[\d+ x )*)", rest)
    return re.findall(r"\d+", match[1]) if match else []
