"""LLVM IR as text, read as far as recurrences need it: blocks, instructions, loops."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

_VALUE = re.compile(r'[%@](?:"[^"]+"|[-\w.$]+)')
_DEFINE = re.compile(r"^define .*?(@(?:\"[^\"]+\"|[-\w.$]+))\((.*)\)")
_ARGUMENT = re.compile(r'(%(?:"[^"]+"|[-\w.$]+))(?:,|$)')
_LABEL = re.compile(r"^(\"[^\"]+\"|[-\w.$]+):")
_INSTRUCTION = re.compile(
    r'^\s+(?:(%(?:"[^"]+"|[-\w.$]+)) = )?(?:tail |notail |musttail )?(\w+)(.*)$'
)
_TARGET = re.compile(r'label (%(?:"[^"]+"|[-\w.$]+))')
_INCOMING = re.compile(r'\[ ([^\[\]]+?), (%(?:"[^"]+"|[-\w.$]+)) \]')
_METADATA = re.compile(r",? ![\w.]+ !?[\w{}()]+|, align \d+|#\d+$")


@dataclass(eq=False)
class Instruction:
    """One instruction.

    Attributes:
        name: What it defines, if anything.
        op: Its opcode; ``rest`` the text behind it.
        block: Label of its block.
    """

    name: str | None
    op: str
    rest: str
    block: str

    @cached_property
    def values(self) -> list[str]:
        """Everything that looks like a value, types and labels too."""
        return _VALUE.findall(self.rest)

    @cached_property
    def incoming(self) -> list[tuple[str, str]]:
        """Value and block of each edge into a phi."""
        return [(v.strip(), b) for v, b in _INCOMING.findall(self.rest)]

    @cached_property
    def targets(self) -> list[str]:
        """Blocks that a branch leads to."""
        return _TARGET.findall(self.rest)

    @cached_property
    def numbers(self) -> list[int]:
        """Constant arguments of a call, 32 bits each."""
        return [int(n) for n in re.findall(r"i32 (?:noundef )?(-?\d+)", self.rest)]

    @cached_property
    def callee(self) -> str:
        """Whom a call calls; empty for other instructions."""
        return next((v for v in self.values if v[0] == "@"), "") if self.op == "call" else ""

    @property
    def acts(self) -> bool:
        """Whether it is a call that does more than compute: it accesses a FIFO, or memory."""
        return "@pipec" in self.callee or "@llvm.mem" in self.callee


@dataclass(eq=False)
class Loop:
    """A natural loop: its header, and all blocks."""

    header: str
    blocks: frozenset[str]


@dataclass(eq=False)
class Function:
    """A function: blocks in order, instructions in order.

    Attributes:
        name: Mangled.
        blocks: By label (with its ``%``).
        arguments: Names of what it is given.
    """

    name: str
    blocks: dict[str, list[Instruction]] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()

    @property
    def name_in_source(self) -> str:
        """Name without its types: the first identifier of a mangled name."""
        match = re.match(r"@_ZL?(\d+)", self.name)
        return self.name[match.end() :][: int(match[1])] if match else self.name[1:]

    def __iter__(self) -> Iterator[Instruction]:
        """All instructions."""
        for block in self.blocks.values():
            yield from block

    @cached_property
    def defined(self) -> dict[str, Instruction]:
        """Instruction by what it defines."""
        return {i.name: i for i in self if i.name}

    @cached_property
    def flow(self) -> "nx.DiGraph[str]":
        """Who branches where."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.blocks)
        for label, block in self.blocks.items():
            graph.add_edges_from((label, t) for t in block[-1].targets)
        return graph

    @cached_property
    def dominators(self) -> dict[str, str]:
        """Immediate dominator by block; the entry's is itself."""
        entry = next(iter(self.blocks))
        return {**nx.immediate_dominators(self.flow, entry), entry: entry}

    def dominates(self, a: str, b: str) -> bool:
        """Whether every way to b leads through a."""
        while b != a and self.dominators[b] != b:
            b = self.dominators[b]
        return a == b

    @cached_property
    def loops(self) -> list[Loop]:
        """Natural loops, loops of one header joined."""
        found: dict[str, set[str]] = {}
        for tail, head in self.flow.edges:
            if tail in self.dominators and self.dominates(head, tail):
                body, todo = found.setdefault(head, {head}), [tail]
                while todo:
                    label = todo.pop()
                    if label not in body:
                        body.add(label)
                        todo.extend(self.flow.predecessors(label))
        return [Loop(head, frozenset(body)) for head, body in found.items()]

    def innermost(self, label: str) -> Loop | None:
        """The smallest loop around a block."""
        around = [loop for loop in self.loops if label in loop.blocks]
        return min(around, key=lambda loop: len(loop.blocks), default=None)


def functions(text: str) -> list[Function]:
    r"""The functions of a module.

    Example:
        >>> [f] = functions("define i32 @f(i32 %x) {\nentry:\n  ret i32 %x\n}\n")
        >>> f.name, list(f.blocks), f.blocks["%entry"][0].op
        ('@f', ['%entry'], 'ret')
    """
    found: list[Function] = []
    label = ""
    for line in _whole(text):
        if match := _DEFINE.match(line):
            found.append(Function(match[1], arguments=frozenset(_ARGUMENT.findall(match[2]))))
        elif match := _LABEL.match(line):
            label = "%" + match[1]
            found[-1].blocks[label] = []
        elif found and (match := _INSTRUCTION.match(line)):
            rest = _METADATA.sub("", match[3].split(" ; ")[0])
            block = found[-1].blocks.setdefault(label, [])
            block.append(Instruction(match[1], match[2], rest, label))
    return found


def _whole(text: str) -> Iterator[str]:
    """Lines of function bodies and their heads, those of a switch joined."""
    joined, inside = "", False
    for line in text.splitlines():
        inside = inside or line.startswith("define ")
        if not inside:
            continue
        if line == "}":
            inside = False
        elif joined:
            joined += line
            if line.strip() == "]":
                yield joined
                joined = ""
        elif line.lstrip().startswith("switch") and line.rstrip().endswith("["):
            joined = line
        elif line.strip():
            yield line
