"""Least initiation interval of a pipelined loop by its recurrences and its memory ports.

A recurrence is a cycle of operations through later iterations: with delays d and distances w (in
iterations) an interval is possible only if ``sum(d) <= II * sum(w) * usable period`` on every
cycle (Rau 1994, RecMII, in time instead of whole cycles because operators are chained). Edges:
data; control, from the branches between a join and its immediate dominator; memory, from a store
to the loads of the same object in later iterations.
"""

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Self

import networkx as nx

from benchmarks.hls_check.affine import Nest, Sum
from benchmarks.hls_check.found import (
    Access,
    Array,
    base_name,
    last_name,
    leading,
    names_in,
    never_meet,
    place_of,
    plain_name,
)
from benchmarks.hls_check.ir import Function, Instruction, Loop
from benchmarks.hls_check.operators import GATE, MUX, RAM, STORE, Delays, is_power
from benchmarks.hls_check.schedule import ends_of, find_inner_sums, find_terms, longer_cycle
from pipec.errors import BackendError

_BITS = re.compile(r"(?<![%\w.])i(\d+)\b")
_CONSTANT = re.compile(r"getelementptr inbounds \((.*)\)")
_FLOATS = {"fadd": "fadd", "fsub": "fadd", "fmul": "fmul", "fdiv": "fdiv", "fcmp": "fcmp"}
_LIBRARY = {"sqrt": "sqrt", "exp": "exp", "tanh": "exp", "log": "exp", "erf": "exp", "pow": "exp",
            "sin": "exp", "cos": "exp"}  # fmt: skip
ADDITIONS = {"fadd", "fsub"}
LANES = 16
"""Iterations through which a lane of a vector is followed."""
MARK = "pipec_distance_"
"""What a function is called that stands for a ``DEPENDENCE`` pragma, the array's name behind it."""
SMALL_ARRAY = 4
"""Words up to which an array becomes registers by itself."""


@dataclass(eq=False)
class Body:
    """A pipelined loop.

    Attributes:
        function: Its function.
        loop: Blocks of the loop.
        arrays: Pragmas by function (empty for one that is a part of others) and variable.
        delays: Delays of operators.
        sizes: Words by global array, dimension by dimension.
        quick: Whether recurrences have adders of LUTs, which take fewer cycles than those of DSPs.
        _chosen: Choices of addresses that are being followed, so that a circle has an end.
    """

    function: Function
    loop: Loop
    arrays: Mapping[tuple[str, str], Array]
    delays: Delays
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    quick: bool = False
    _chosen: set[Instruction] = field(default_factory=set, init=False)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """All of the loop."""
        return [i for b in self.function.blocks if b in self.loop.blocks
                for i in self.function.blocks[b]]  # fmt: skip

    @cached_property
    def here(self) -> dict[str, Instruction]:
        """Instruction of the loop by what it defines."""
        return {i.name: i for i in self.instructions if i.name}

    def ends(self, ii: int = 1) -> dict[Instruction, int]:
        """Cycle in which each operation has ended, scheduled as soon as possible."""
        period = self.delays.usable
        return ends_of(self.instructions, self.graph, self.time_in_stages, period, ii, self.sums)

    @property
    def cycles(self) -> int:
        """Cycles from the first operation to the end of the last one."""
        return max(self.ends().values(), default=0)

    def depth(self, ii: int) -> int:
        """Cycles until the last token or word that leaves in an iteration has left; 0 if none."""
        leaving = {
            i
            for i in self.instructions
            for kind, pointer in self._pointers(i).items()
            if kind == "store"
            and (self._is_token(pointer) or self._is_outside(self._object(pointer)[0]))
        }
        return max((end for i, end in self.ends(ii).items() if i in leaving), default=0)

    def recurrence(self, at_least: int = 1) -> tuple[int, tuple[str, ...]]:
        """Least interval by recurrences, and the operations of the tightest."""
        ii, worst = at_least, tuple[str, ...]()
        for part in nx.strongly_connected_components(self.graph):
            if len(part) > 1:
                graph = self.graph.subgraph(part)
                while cycle := longer_cycle(graph, ii * self.delays.usable):
                    worst = tuple(i.op if i.op != "call" else f"call {i.callee}" for i in cycle)
                    edges = [graph.edges[e] for e in pairwise([*cycle, cycle[0]])]
                    distance = sum(e["distance"] for e in edges)
                    if not distance:
                        raise BackendError("a recurrence in no time", got=" ".join(worst))
                    least = sum(e["delay"] for e in edges) / distance / self.delays.usable
                    ii = max(ii + 1, math.ceil(least - 1e-9))
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
            elif user.op == "extractelement" and user.rest.split()[-1].isdigit():
                vector, _, lane = user.rest.partition(", ")
                value, distance = self._lane(vector.split()[-1], int(lane.split()[-1]))
                if value in self.here:
                    yield self.here[value], user, distance, self.delay(self.here[value])
            else:
                for value in user.values:
                    if value in self.here:
                        yield self.here[value], user, 0, self.delay(self.here[value])

    def _lane(self, value: str, lane: int, distance: int = 0) -> tuple[str, int]:
        """What a lane of a vector is, and of how many iterations before; or the whole vector.

        Pairs of floats are returned in one register, and stay there in the IR.
        """
        i, found = self.here.get(value), (value, distance)
        if i is None or distance > LANES:
            return found
        if i.op == "phi" and i.block == self.loop.header:
            back = next(v for v, block in i.incoming if block in self.loop.blocks)
            found = self._lane(back, lane, distance + 1)
        elif i.op == "insertelement":
            vector, element, at = (part.split()[-1] for part in i.rest.split(", "))
            found = (element, distance)
            if at != str(lane):
                found = self._lane(vector, lane, distance) if at.isdigit() else (value, distance)
        elif i.op == "shufflevector" and (mask := re.search(r"<(i32 \w+(?:, i32 \w+)*)>$", i.rest)):
            first, second, *_ = (part.split()[-1] for part in i.rest.split(", "))
            size = int(re.findall(r"<(\d+) x", i.rest)[0])
            at = mask[1].split(", ")[lane].split()[-1]
            if at.isdigit():
                found = self._lane((first, second)[int(at) // size], int(at) % size, distance)
        return found

    def _control(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        """From conditions to the joins, stores and FIFO accesses that wait for them."""
        for block in self.loop.blocks:
            if block == self.loop.header:
                continue
            waits = [i for i in self.function.blocks[block] if i.op == "store" or i.acts]
            joins = [i for i in self.function.blocks[block] if i.op == "phi"]
            users = [*waits, *(i for i in joins if len(i.incoming) > 1)]
            conditions = self._conditions(block) if users else []
            for condition in conditions:
                for user in users:
                    yield condition, user, 0, self.delay(condition)

    def _conditions(self, block: str) -> list[Instruction]:
        """Conditions of the branches between a block and its immediate dominator that decide.

        What parts and meets again in front of the block does not.
        """
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
            if len(last.targets) > 1 and self.meets.get(label) not in seen:
                found += [self.here[v] for v in last.values if v in self.here]
        return found

    @cached_property
    def meets(self) -> dict[str, str]:
        """Where all ways from a block on meet first in an iteration; empty for its end."""
        back: nx.DiGraph[str] = nx.DiGraph()
        for label in self.loop.blocks:
            for target in self.function.blocks[label][-1].targets:
                inside = target in self.loop.blocks and target != self.loop.header
                back.add_edge(target if inside else "", label)
        return nx.immediate_dominators(back, "")

    def _memory(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        loads = defaultdict[str, list[Access]](list)
        for load in (a for a in self.accesses if a.kind == "load"):
            loads[load.array].append(load)
        for store in (a for a in self.accesses if a.kind == "store"):
            words = self.is_memory(store.array)
            for load in loads[store.array]:
                if not never_meet(store, load, whole=words):
                    distance = self._distance(store, load)
                    if distance:
                        kept = distance == 1 and self._is_kept(store, load)
                        yield store.at, load.at, distance, self.delay(store.at) * (not kept)

    def _is_kept(self, store: Access, load: Access) -> bool:
        """Whether a word stays in a register between iterations; in engines none does."""
        return False

    def _distance(self, store: Access, load: Access) -> int:
        """Iterations from a store to a load that may read the same word."""
        declared = self.distances.get(plain_name(last_name(base_name(store.array))), 1)
        if declared > 1:
            return declared
        counted = [self._own_nest.sum_of(x) for x in store.index] == [Sum({self.loop.header: 1})]
        trips = self._own_nest.count_trips(self.loop) if counted else 0
        return trips if trips and store.index == load.index else 1

    @cached_property
    def _own_nest(self) -> Nest:
        """The loop alone: what is around begins again when it has ended."""
        return Nest(self.function, [self.loop])

    @cached_property
    def distances(self) -> dict[str, int]:
        """What ``DEPENDENCE`` pragmas of the function say, by array."""
        calls = [i for i in self.function if MARK in i.callee]
        names = {i: next(n for n in names_in(i.callee) if n.startswith(MARK)) for i in calls}
        return {name.removeprefix(MARK): i.numbers[0] for i, name in names.items()}

    @property
    def accesses(self) -> list[Access]:
        """Loads and stores of arrays."""
        return self._accesses[0]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Loads and stores of what is neither an array nor a token of a FIFO."""
        return tuple(self._accesses[1])

    @cached_property
    def _accesses(self) -> tuple[list[Access], list[str]]:
        found, unknown = [], []
        for i in self.instructions:
            for kind, pointer in self._pointers(i).items():
                array, index, lane = self._object(pointer)
                if constant := _CONSTANT.search(i.rest):
                    index, lane = place_of([constant[1]])
                if array:
                    bank = self._bank(array, index)
                    found.append(Access(i, kind, array + bank, index, lane))
                elif not self._is_token(pointer):
                    unknown.append(f"{kind} {pointer}")
        return found, unknown

    def _pointers(self, i: Instruction) -> dict[str, str]:
        """Addresses that an instruction writes to and reads from."""
        if "@llvm.mem" in i.callee:
            given = [v for v in i.values[1:] if v in self.function.defined or v[0] == "@"]
            kinds = ("store",) if "memset" in i.callee else ("store", "load")
            return dict(zip(kinds, given, strict=False))
        return {i.op: i.values[-1]} if i.op in {"load", "store"} and i.values else {}

    def _is_token(self, pointer: str) -> bool:
        """Whether an address is that of a token which is read from or written to a FIFO."""
        while (i := self.function.defined.get(pointer)) and i.op in {"getelementptr", "bitcast"}:
            pointer = next((v for v in i.values if v in self.function.defined), "")
        return i is not None and "@pipec_fifo" in i.callee

    def _bank(self, array: str, index: Sequence[str]) -> str:
        """Which bank of an array with one partitioned dimension an index is in."""
        dim = self.array(array).partitioned
        if not dim or len(self._dims(array)) < 2:
            return ""
        place = index[dim - 1] if len(index) >= dim else ""
        return f"[{place}]" if place.isdigit() else "[?]"

    def _object(self, pointer: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Array, index of the word and place in the word of an address; no array if unknown."""
        steps = []
        while pointer in self.function.defined:
            i = self.function.defined[pointer]
            if i.op == "alloca":
                break
            if i.op in {"phi", "select"}:
                return self._one_of(i)
            known = self.function.defined, self.function.arguments
            source = [v for v in i.values if any(v in names for names in known) or v[0] == "@"]
            if i.op not in {"getelementptr", "bitcast"} or not source:
                return "", (), ()
            if i.op == "getelementptr":
                steps.append(i.rest)
            pointer = source[0]
        if not pointer.startswith(("%", "@")):
            return "", (), ()
        index, lane = place_of(steps[::-1])
        return pointer, tuple(map(self._number, index)), lane

    def _number(self, value: str) -> str:
        """The value that an index is a copy of, of another width or by each of several ways."""
        i = self.here.get(value)
        if i is None or (i.block == self.loop.header and i.op == "phi"):
            return value
        if i.op in {"sext", "zext"}:
            return self._number(i.values[0])
        ways = {self._number(v) for v, _ in i.incoming} if i.op == "phi" else set[str]()
        return ways.pop() if len(ways) == 1 else value

    def _one_of(self, i: Instruction) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """The same of a choice between addresses: of one array, at a computed place."""
        chosen = [v for v, _ in i.incoming] if i.op == "phi" else i.values[-2:]
        if i.block == self.loop.header or i.name in chosen or i in self._chosen:
            return "", (), ()
        self._chosen.add(i)
        found = {self._object(v) for v in chosen}
        self._chosen.remove(i)
        if "getelementptr inbounds (" in i.rest:  # of constant places
            place = (f"one of {i.name}",)
            found = {(v, place, place) for v in i.values if v[0] == "@"}
        arrays, words = {f[0] for f in found}, {f[:2] for f in found}
        if len(arrays) > 1:
            return "", (), ()
        (_, index), *more = words
        return arrays.pop(), index if not more else (f"one of {i.name}",), (f"one of {i.name}",)

    def array(self, name: str) -> Array:
        """What pragmas say of an array."""
        exact = last_name(base_name(name))
        for key in (exact, plain_name(exact)):
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
        least, worst = 1, ""
        reads: Counter[str] = Counter()
        writes: Counter[str] = Counter()
        for kind, count in (("load", reads), ("store", writes)):
            words = {(a.array, a.index) for a in self.accesses if a.kind == kind}
            count.update(array for array, _ in words)
        for name in sorted(reads | writes):
            if not self.is_memory(name):
                continue
            every = f"{base_name(name)}[?]" if name.endswith("]") else ""  # may be in any bank
            read, written = (n[name] + (n[every] if every != name else 0) for n in (reads, writes))
            ports = (1, 1) if self._is_outside(name) else self.array(name).ports
            need = math.ceil((read + written) / 2)
            if ports is not None:
                need = max(math.ceil(read / ports[0]), math.ceil(written / ports[1]))
            if need > least:
                least, worst = need, last_name(base_name(name))
        return least, worst

    def is_memory(self, name: str) -> bool:
        """Whether an array is no registers: its words are read and written whole."""
        return self._is_outside(name) or self._words(name) > SMALL_ARRAY

    def _is_outside(self, name: str) -> bool:
        """Whether it is memory outside of the chip: what a pointer that is given leads to."""
        return name[:1] == "%" and name not in self.function.defined

    def _words(self, name: str) -> int:
        """Words of an array, of one bank of it if it has banks; 1 if all of it is registers."""
        dims, apart = self._dims(name), self.array(name).partitioned
        if apart is not None:
            dims = () if apart == 0 else (*dims[: apart - 1], *dims[apart:])
        return math.prod(dims)

    def _dims(self, name: str) -> tuple[int, ...]:
        base = name.partition("[")[0]
        made = self.function.defined.get(base)
        return self.sizes.get(base) or tuple(int(n) for n in leading(made.rest if made else ""))

    @cached_property
    def inner_sums(self) -> frozenset[str]:
        """Integer additions that only another one reads."""
        return find_inner_sums(self.instructions)

    @cached_property
    def sums(self) -> dict[Instruction, list[Instruction | None]]:
        """Sums of integers of more than two terms to these; None for what is no operation here."""
        outer = [i for i in self.instructions if i.op == "add" and i.name not in self.inner_sums]
        found = {i: [*find_terms(i, self.here, self.inner_sums)] for i in outer}
        return {i: terms for i, terms in found.items() if len(terms) > 2}

    def with_adders(self, target: int) -> Self:
        """The loop, with adders of LUTs in its recurrences if it misses an interval without."""
        slow = self.recurrence()[0] > max(target, self.ports()[0])
        return dataclasses.replace(self, quick=True) if slow else self

    @cached_property
    def recurrent(self) -> set[Instruction]:
        """Operations of recurrences."""
        slow = dataclasses.replace(self, quick=False) if self.quick else self
        parts = nx.strongly_connected_components(slow.graph)
        return {i for part in parts if len(part) > 1 for i in part}

    def is_quick(self, i: Instruction) -> bool:
        """Whether an adder is one of LUTs."""
        return self.quick and i in self.recurrent

    def time_in_stages(self, i: Instruction) -> float:
        """Nanoseconds of an operation in a schedule, where a core's result is a cycle later."""
        delay, cycle = self.delay(i), self.delays.cycles(1)
        core = i.op in _FLOATS or (i.op == "call" and "pipec" not in i.callee)
        return delay + cycle if core and delay >= cycle - 1e-9 else delay

    def delay(self, i: Instruction) -> float:
        """Nanoseconds of an operation."""
        if i not in self._delays:
            self._delays[i] = self._delay(i)
        return self._delays[i]

    @cached_property
    def _delays(self) -> dict[Instruction, float]:
        return {}

    def _delay(self, i: Instruction) -> float:
        d, bits = self.delays, max(map(int, _BITS.findall(i.rest.split(",")[0])), default=32)
        last = i.rest.rsplit(",", 1)[-1].strip()
        if i.name in self.inner_sums or self._is_wiring(i, last):
            return 0.0
        if i.op in _FLOATS:
            return d.core("quick_fadd" if i.op in ADDITIONS and self.is_quick(i) else _FLOATS[i.op])
        if i.op in {"load", "call"}:
            return self._load(i) if i.op == "load" else self._call(i, bits)
        if i.op == "store":
            array = self._object(i.values[-1])[0]
            return STORE if not array or self.is_memory(array) else MUX
        if i.op == "icmp":
            free = ("slt" in i.rest and last == "0") or last == "-1"
            return 0.0 if free else d.compare(bits, last)
        if i.op == "phi" and i.block == self.loop.header:
            return 0.0
        fixed = {"select": MUX, "phi": MUX, "fneg": GATE}
        fixed |= dict.fromkeys(("and", "or", "xor"), GATE)
        fixed |= dict.fromkeys(("add", "sub"), d.add(bits))
        fixed |= dict.fromkeys(("shl", "lshr", "ashr"), 0.0 if last.isdigit() else 5 * MUX)
        divided = d.add(bits) if is_power(last) else d.cycles(bits + 3)
        fixed |= dict.fromkeys(("sdiv", "udiv", "srem", "urem"), divided)
        fixed["mul"] = d.core("mul" if bits <= 32 else "wide_mul")
        return fixed.get(i.op, 0.0)

    def _is_wiring(self, i: Instruction, last: str) -> bool:
        """Whether an operation only says where bits go: of a mask, or of parts of a word."""
        parts = [self.here[v] for v in i.values if v in self.here]
        shifted = any(p.op == "shl" and p.rest.rsplit(",", 1)[-1].strip().isdigit() for p in parts)
        return (i.op == "and" and last.lstrip("-").isdigit()) or (i.op == "or" and shifted)

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
