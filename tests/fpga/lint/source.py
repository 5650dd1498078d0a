"""C++ text as the rules see it: logical lines, blocks, pragmas, findings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class Finding:
    """Something wrong.

    Attributes:
        file: Name of the file; ``line`` counted from 1.
        rule: Which rule: ``name``, ``option``, ``target``, ``partition``, ``placement``,
            ``unroll``, ``dataflow``, ``stream``, ``depth``, ``bound``, ``interface``, ``storage``,
            ``call``, ``condition``, ``repeated``, ``library``.
        text: What is wrong.
    """

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: [{self.rule}] {self.text}"


_DECLARED = re.compile(
    r"(?=[\w>&*][ \t]+[&*]?(\w+)[ \t]*(?:[\[=;,)({]|$)|,[ \t]*(\w+)[ \t]*\[|[&*](\w+))",
    re.MULTILINE,
)
"""Names behind a type, behind a comma, or behind ``&`` and ``*``; matches may overlap."""


@dataclass(frozen=True)
class Pragma:
    """``#pragma HLS NAME flag key = value ...``.

    Attributes:
        line: Where, counted from 1.
        name: Its name, as written.
        flags: Words without a value, lower case.
        options: Values by key, lower case; values as written.
    """

    line: int
    name: str
    flags: frozenset[str]
    options: dict[str, str]


@dataclass
class Block:
    """Text between braces.

    Attributes:
        head: What stands before the opening brace: ``for (...)``, a signature, ``namespace x``.
        line: Line of the head.
        parent: The block around it.
        lines: Its own lines (number, text), those of inner blocks left out but for their heads.
        inner: Blocks in it.
        end: Line of the closing brace.
    """

    head: str
    line: int
    parent: "Block | None" = None
    lines: list[tuple[int, str]] = field(default_factory=list)
    inner: list["Block"] = field(default_factory=list)
    end: int = 0

    @property
    def is_loop(self) -> bool:
        """Whether it is the body of a loop."""
        return re.match(r"(for|while)\b", self.head) is not None

    @cached_property
    def declared(self) -> frozenset[str]:
        """Names that its own code may declare; asked for only once the file is parsed."""
        code = (line for _, line in self.lines if not line.lstrip().startswith("#"))
        text = "\n".join((self.head, *code))
        return frozenset(m[m.lastindex or 0] for m in _DECLARED.finditer(text))

    @property
    def code(self) -> list[str]:
        """Its own lines, pragmas left out."""
        return [line for _, line in self.lines if not line.lstrip().startswith("#pragma")]

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of its code and of the blocks in it; asked for only once it is parsed."""
        own = frozenset(w for line in (self.head, *self.code) for w in re.findall(r"\w+", line))
        return own.union(*(block.words for block in self.inner))

    def around(self) -> Iterator["Block"]:
        """Itself and the blocks around it, outwards."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def all(self) -> Iterator["Block"]:
        """Itself and all blocks in it."""
        yield self
        for block in self.inner:
            yield from block.all()


WORDS = frozenset(
    {"complete", "cyclic", "block", "off", "rewind", "axis", "m_axi", "s_axilite", "true", "false"}
)
"""Words without a value that may follow a value."""


@lru_cache(maxsize=1 << 14)
def parse_pragma(number: int, line: str) -> Pragma | None:
    """The HLS pragma of a line, if it is one.

    Example:
        >>> parse_pragma(1, "#pragma HLS STREAM variable = s depth = 8").options
        {'variable': 's', 'depth': '8'}
    """
    found = re.match(r"\s*#pragma\s+HLS\s+(\w+)(.*)", line)
    if found is None:
        return None
    name, rest = found.groups()
    pieces = re.split(r"(\w+)\s*=(?!=)", rest)
    flags, options = set(pieces[0].lower().split()), {}
    for key, value in zip(pieces[1::2], pieces[2::2], strict=True):
        words = value.split()
        while len(words) > 1 and words[-1].lower() in WORDS:
            flags.add(words.pop().lower())
        options[key.lower()] = " ".join(words)
    return Pragma(number, name, frozenset(flags), options)


def parse(text: str) -> Block:
    """The tree of blocks of a file.

    Comments are dropped. A statement that runs over several lines ends up in its last one; a head
    in one piece.
    """
    root = Block("", 0)
    block, pending, started = root, "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"//.*", "", raw)
        if line.lstrip().startswith("#"):
            block.lines.append((number, line))
            continue
        for piece in re.split(r"([{};])", line):
            if not piece.strip():
                continue
            started = started if pending else number
            if piece == "{" and not _is_value(pending):
                block = _opened(block, pending, started)
                pending = ""
            elif piece == "}" and not _is_value(pending):
                block.end, block = number, block.parent or root
                pending = ""
            elif piece == ";" and pending.count("(") <= pending.count(")"):
                block.lines.append((number, pending.strip()))
                pending = ""
            else:
                pending += f" {piece}"
    return root


def _is_value(pending: str) -> bool:
    """Whether a brace belongs to an expression: ``= {0, 0}``, ``return {g, n, k}``."""
    if re.search(r"\]\s*\([^()]*\)\s*$", pending):  # the body of a lambda
        return False
    return bool(re.search(r"(=\s*|return\s*)$|(=|return)\s*\{[^}]*$", pending)) or pending.count(
        "("
    ) > pending.count(")")


def _opened(block: Block, head: str, line: int) -> Block:
    inner = Block(" ".join(head.split()), line, block)
    block.inner.append(inner)
    block.lines.append((line, inner.head))
    return inner


def pragmas(block: Block) -> Iterator[Pragma]:
    """The HLS pragmas of a block, those of inner blocks left out."""
    for number, line in block.lines:
        if (pragma := parse_pragma(number, line)) is not None:
            yield pragma
