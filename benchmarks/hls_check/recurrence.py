"""Least initiation interval of a pipelined loop by its recurrences and its memory ports.

A recurrence is a cycle of operations through later iterations: with delays d and distances w (in
iterations) an interval is possible only if ``sum(d) <= II * sum(w) * usable period`` on every
cycle (Rau 1994, RecMII, in time instead of whole cycles because operators are chained). Edges:
data; control, from the branches between a join and its immediate dominator; memory, from a store
to the loads of the same object in later iterations.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

from benchmarks.hls_check.ir import Function, Instruction, Loop
from benchmarks.hls_check.operators import GATE, MUX, RAM, STORE, Delays
from pipec.errors import BackendError

_BITS = re.compile(r"(?<![%\w.])i(\d+)\b")
_INDEX = re.compile(r"i(?:32|64) ([^,\s]+)")
_FLOATS = {"fadd": "fadd", "fsub": "fadd", "fmul": "fmul", "fdiv": "fdiv", "fcmp": "fcmp"}
_LIBRARY = {"sqrt": "sqrt", "exp": "exp", "tanh": "exp", "log": "exp", "erf": "exp", "pow": "exp",
            "sin": "exp", "cos": "exp"}  # fmt: skip
MOST = 1000
"""An interval beyond which something is misread."""
SMALL_ARRAY = 4
"""Words up to which an array becomes registers by itself."""


@dataclass(frozen=True)
class Array:
    """What pragmas say of an array.

    Attributes:
        partitioned: Completely: it is registers.
        ports: Reads and writes that a RAM allows in a cycle; None for two of either kind.
        distance: Iterations from a store to a load of the same word, at least.
    """

    partitioned: bool = False
    ports: tuple[int, int] | None = None
    distance: int = 1


@dataclass(frozen=True)
class Interval:
    """What a pipelined loop allows.

    Attributes:
        function: Mangled name of its function.
        declared: The interval that it declares.
        recurrence: Least interval by recurrences; ``cycle`` the operations of the tightest one.
        ports: Least interval by memory ports; ``memory`` the array that needs it.
    """

    function: str
    declared: int
    recurrence: int
    cycle: tuple[str, ...]
    ports: int
    memory: str

    @property
    def kind(self) -> str:
        """Name of the engine's template."""
        return (*names_in(self.function), "", "")[1]

    @property
    def engine(self) -> str:
        """Name of the engine's configuration, or of the engine if it has none."""
        names = names_in(self.function)
        return names[names.index("cfg") + 1] if "cfg" in names else self.kind

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
        """Whether the declared interval can be reached."""
        return self.least <= self.declared


@dataclass(eq=False)
class Access:
    """A load or store of an array in a loop; a copied block is one of each."""

    at: Instruction
    kind: str
    array: str
    index: tuple[str, ...]
    lane: tuple[str, ...]


@dataclass(eq=False)
class Body:
    """A pipelined loop.

    Attributes:
        function: Its function.
        loop: Its blocks.
        arrays: Pragmas by function (empty for one that is a part of others) and variable.
        delays: Of operators.
        sizes: Words by global array.
    """

    function: Function
    loop: Loop
    arrays: Mapping[tuple[str, str], Array]
    delays: Delays
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """All of the loop."""
        return [i for b in self.function.blocks if b in self.loop.blocks
                for i in self.function.blocks[b]]  # fmt: skip

    @cached_property
    def here(self) -> dict[str, Instruction]:
        """Instruction of the loop by what it defines."""
        return {i.name: i for i in self.instructions if i.name}

    def recurrence(self, at_least: int = 1) -> tuple[int, tuple[str, ...]]:
        """Least interval by recurrences, and the operations of the tightest."""
        ii, worst = at_least, tuple[str, ...]()
        for part in nx.strongly_connected_components(self.graph):
            if len(part) > 1:
                graph = self.graph.subgraph(part)
                while cycle := _longer(graph, ii * self.delays.usable):
                    if ii > MOST:
                        raise BackendError("a recurrence in no time", got=" ".join(cycle))
                    ii, worst = ii + 1, tuple(cycle)
        return ii, worst

    @cached_property
    def graph(self) -> "nx.DiGraph[Instruction]":
        """Operations; edges carry delays and distances, the longest of several."""
        graph: nx.DiGraph[Instruction] = nx.DiGraph()
        for a, b, distance, delay in (*self._data(), *self._control(), *self._memory()):
            old = graph.get_edge_data(a, b, {})
            if not old or (distance, -delay) < (old["distance"], -old["delay"]):
                graph.add_edge(a, b, distance=distance, delay=delay)
        return graph

    def _data(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        for user in self.instructions:
            if user.op == "phi" and user.block == self.loop.header:
                for value, block in user.incoming:
                    if block in self.loop.blocks and value in self.here:
                        yield self.here[value], user, 1, self.delay(self.here[value])
            else:
                for value in user.values:
                    if value in self.here:
                        yield self.here[value], user, 0, self.delay(self.here[value])

    def _control(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        """From conditions to the joins, stores and FIFO accesses that wait for them."""
        for block in self.loop.blocks:
            if block == self.loop.header:
                continue
            waits = [i for i in self.function.blocks[block] if i.op in {"store", "call"}]
            joins = [i for i in self.function.blocks[block] if i.op == "phi"]
            users = [*waits, *(i for i in joins if len(i.incoming) > 1)]
            conditions = self._conditions(block) if users else []
            for condition in conditions:
                for user in users:
                    yield condition, user, 0, self.delay(condition)

    def _conditions(self, block: str) -> list[Instruction]:
        """Conditions of the branches between a block and its immediate dominator."""
        top = self.function.dominators[block]
        seen, todo = {top}, list(self.function.flow.predecessors(block))
        while todo:
            label = todo.pop()
            if label not in seen and label in self.loop.blocks:
                seen.add(label)
                todo.extend(self.function.flow.predecessors(label))
        found = []
        for label in seen & self.loop.blocks:
            last = self.function.blocks[label][-1]
            if len(last.targets) > 1:
                found += [self.here[v] for v in last.values if v in self.here]
        return found

    def _memory(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        loads = [a for a in self.accesses if a.kind == "load"]
        for store in (a for a in self.accesses if a.kind == "store"):
            for load in loads:
                words = self.is_memory(store.array)
                if store.array == load.array and not _apart(store, load, whole=words):
                    distance = self._distance(store, load)
                    if distance:
                        yield store.at, load.at, distance, self.delay(store.at)

    def _distance(self, store: Access, load: Access) -> int:
        """Iterations from a store to a load that may read the same word."""
        declared = self.array(store.array).distance
        if declared > 1:
            return declared
        if store.index and store.index == load.index and len(store.index) == 1:
            trips = self._trips(store.index[0])
            if trips:
                return trips
        return 1

    def _trips(self, index: str) -> int:
        """Iterations of the loop if it alone counts an index, by one from zero; else 0."""
        phi = self.here.get(index)
        while phi is not None and phi.op in {"zext", "sext", "trunc"}:
            phi = next((self.here[v] for v in phi.values if v in self.here), None)
        if phi is None or phi.op != "phi" or phi.block != self.loop.header:
            return 0
        step = next((self.here.get(v) for v, b in phi.incoming if b in self.loop.blocks), None)
        if step is None or step.op != "add" or phi.name not in step.values:
            return 0
        for test in self.instructions:
            if test.op == "icmp" and step.name in test.values:
                ends = re.search(r"(\d+)$", test.rest.strip())
                if ends and test.rest.split()[0] in {"eq", "ne", "ult", "slt"}:
                    return int(ends[1])
        return 0

    @cached_property
    def accesses(self) -> list[Access]:
        """Loads and stores of arrays."""
        found = []
        for i in self.instructions:
            pointers = {i.op: i.values[-1]} if i.op in {"load", "store"} and i.values else {}
            if "@llvm.mem" in i.callee:
                given = [v for v in i.values[1:] if v in self.function.defined or v[0] == "@"]
                kinds = ("store",) if "memset" in i.callee else ("store", "load")
                pointers = dict(zip(kinds, given, strict=False))
            for kind, pointer in pointers.items():
                array, index, lane = self._object(pointer)
                if array:
                    found.append(Access(i, kind, array, index, lane))
        return found

    def _object(self, pointer: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Array, index of the word and place in the word of an address; no array if unknown."""
        steps = []
        while pointer in self.function.defined:
            i = self.function.defined[pointer]
            if i.op == "alloca":
                break
            if i.op not in {"getelementptr", "bitcast"}:
                return "", (), ()
            source = [v for v in i.values if v in self.function.defined or v[0] == "@"]
            if not source:
                return "", (), ()
            if i.op == "getelementptr":
                steps.append(i)
            pointer = source[0]
        if not pointer.startswith(("%", "@")):
            return "", (), ()
        index: list[str] = []
        lane: list[str] = []
        for step in reversed(steps):
            numbers = _INDEX.findall(step.rest.split("*", 1)[-1])
            dims = 0 if index or step is not steps[-1] else _dimensions(step.rest)
            index += numbers[1 : 1 + dims]
            lane += numbers[1 + dims :]
        return pointer, tuple(index), tuple(lane)

    def array(self, name: str) -> Array:
        """What pragmas say of an array."""
        exact = last_name(name.lstrip("%@").strip('"'))
        for key in (exact, re.sub(r"(\.\w+)*\d*$", "", exact)):  # an inlined one has a number
            for function in (self.engine, ""):
                if (function, key) in self.arrays:
                    return self.arrays[function, key]
        return Array()

    @cached_property
    def engine(self) -> str:
        """Name of the engine's function in the source."""
        known = {f for f, _ in self.arrays}
        return next((n for n in names_in(self.function.name) if n in known), "")

    def ports(self) -> tuple[int, str]:
        """Least interval by memory ports, and the array that needs it."""
        reads: Counter[str] = Counter()
        writes: Counter[str] = Counter()
        for kind, count in (("load", reads), ("store", writes)):
            words = {(a.array, a.index) for a in self.accesses if a.kind == kind}
            count.update(array for array, _ in words)
        least, worst = 1, ""
        for name in sorted(reads | writes):
            about = self.array(name)
            if not self.is_memory(name):
                continue
            need = math.ceil((reads[name] + writes[name]) / 2)
            if about.ports is not None:
                need = max(math.ceil(reads[name] / about.ports[0]),
                           math.ceil(writes[name] / about.ports[1]))  # fmt: skip
            if need > least:
                least, worst = need, last_name(name.lstrip("%@"))
        return least, worst

    def is_memory(self, name: str) -> bool:
        """Whether an array is no registers: its words are read and written whole."""
        return not self.array(name).partitioned and self._words(name) > SMALL_ARRAY

    def _words(self, name: str) -> int:
        if name in self.sizes:
            return self.sizes[name]
        made = self.function.defined.get(name)
        return math.prod(int(n) for n in _leading(made.rest)) if made else 1

    @cached_property
    def inner_sums(self) -> frozenset[str]:
        """Integer additions that only another one reads.

        A tool balances sums of integers (EXPRESSION_BALANCE, on by default), so what comes last is
        added last; clang's order, which adds it first, says nothing.
        """
        readers = Counter(v for i in self.instructions for v in set(i.values))
        sums = [i for i in self.instructions if i.op == "add"]
        inner = {v for i in sums for v in i.values if v in self.here and readers[v] == 1}
        return frozenset(v for v in inner if self.here[v].op == "add")

    def delay(self, i: Instruction) -> float:
        """Nanoseconds of an operation."""
        d, bits = self.delays, max(map(int, _BITS.findall(i.rest.split(",")[0])), default=32)
        last = i.rest.rsplit(",", 1)[-1].strip()
        if i.name in self.inner_sums:
            return 0.0
        if i.op in _FLOATS:
            return d.core(_FLOATS[i.op])
        if i.op in {"load", "call"}:
            return self._load(i) if i.op == "load" else self._call(i, bits)
        if i.op == "icmp":
            return 0.0 if ("slt" in i.rest and last == "0") or last == "-1" else d.compare(bits)
        if i.op == "phi" and i.block == self.loop.header:
            return 0.0
        fixed = {"select": MUX, "phi": MUX, "store": STORE, "fneg": GATE}
        fixed |= dict.fromkeys(("and", "or", "xor"), GATE)
        fixed |= dict.fromkeys(("add", "sub"), d.add(bits))
        fixed |= dict.fromkeys(("shl", "lshr", "ashr"), 0.0 if last.isdigit() else 5 * MUX)
        fixed |= dict.fromkeys(("sdiv", "udiv", "srem", "urem"), d.cycles(bits + 3))
        fixed["mul"] = d.core("mul" if bits <= 32 else "wide_mul")
        return fixed.get(i.op, 0.0)

    def _load(self, i: Instruction) -> float:
        array, index, _ = self._object(i.values[-1])
        if not array:
            return 0.0
        if self.is_memory(array):
            return self.delays.cycles(1) + RAM
        fixed = all(re.fullmatch(r"\d+", k) for k in index)
        return 0.0 if fixed else MUX * math.ceil(math.log2(max(self._words(array), 2)))

    def _call(self, i: Instruction, bits: int) -> float:
        name = i.callee
        if "llvm." in name and re.search(r"[su]m(ax|in)|\.abs", name):
            return self.delays.compare(bits) + MUX
        for part, core in _LIBRARY.items():
            if part in name:
                return self.delays.core(core)
        if re.search(r"fm(ax|in)|(max|min)(num|imum)", name):
            return self.delays.core("fcmp") + MUX
        if "@llvm.mem" in name:
            return STORE
        return GATE if "llvm.f" in name else 0.0


def names_in(mangled: str) -> list[str]:
    """Identifiers of a mangled name, in order."""
    found, at = [], 0
    while match := re.compile(r"\d+").search(mangled, at):
        name = mangled[match.end() : match.end() + int(match[0])]
        whole = len(name) == int(match[0]) and name.isidentifier()
        found += [name] if whole else []
        at = match.end() + (int(match[0]) if whole else 0)
    return found


def last_name(mangled: str) -> str:
    """The identifier that a mangled name ends with; the name itself if it is none."""
    if not mangled.startswith("_Z"):
        return mangled
    ends = (m for m in re.finditer(r"\d+", mangled) if len(mangled) - m.end() == int(m[0]))
    return next((mangled[m.end() :] for m in ends), mangled)


def _dimensions(rest: str) -> int:
    return len(_leading(rest))


def _leading(rest: str) -> list[str]:
    """Sizes of the array type that a text begins with, the outermost first."""
    match = re.match(r"\s*(?:inbounds )?((?:\[\d+ x )*)", rest)
    return re.findall(r"\d+", match[1]) if match else []


def _apart(a: Access, b: Access, *, whole: bool) -> bool:
    """Whether two accesses never meet: constant places that differ, of a memory those of words."""
    places = [*zip(a.index, b.index, strict=False)]
    places += [] if whole else [*zip(a.lane, b.lane, strict=False)]
    return any(x != y and x.isdigit() and y.isdigit() for x, y in places)


def _longer(graph: "nx.DiGraph[Instruction]", period: float) -> list[str]:
    """A cycle whose delays exceed its distances times a period; empty if there is none."""
    time = dict.fromkeys(graph, 0.0)
    before: dict[Instruction, Instruction] = {}
    edges = [(a, b, e["delay"] - e["distance"] * period) for a, b, e in graph.edges(data=True)]
    for _ in range(len(time) + 1):
        moved = False
        for a, b, weight in edges:
            if time[a] + weight > time[b] + 1e-9:
                time[b], before[b], moved = time[a] + weight, a, True
        if not moved:
            return []
        if cycle := _closed(before):
            return [i.op if i.op != "call" else f"call {i.callee}" for i in cycle]
    raise AssertionError("longest paths without an end have a cycle")


def _closed(before: Mapping[Instruction, Instruction]) -> list[Instruction]:
    """A cycle of predecessors, in order; empty if there is none."""
    done: set[Instruction] = set()
    for start in before:
        way: dict[Instruction, None] = {}
        at: Instruction | None = start
        while at is not None and at not in done and at not in way:
            way[at] = None
            at = before.get(at)
        if at is not None and at in way:
            nodes = list(way)
            return nodes[nodes.index(at) :][::-1]
        done.update(way)
    return []
