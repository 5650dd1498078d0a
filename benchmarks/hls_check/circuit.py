"""A pipelined loop of any C++, with the memories, sums and flattened loops of Vitis HLS 2023.2.

What the engines of pipec do not have, and code of others does: arrays that are given as arguments,
words that are written and read again, sums of unrolled loops, counters of loops around. The
constants below were read from one half of Stream-HLS's reports at 300 MHz.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.hls_check.affine import Nest, Sum
from benchmarks.hls_check.found import Access, base_name, plain_name
from benchmarks.hls_check.ir import Instruction
from benchmarks.hls_check.operators import MUX, RAM, STORE, is_power
from benchmarks.hls_check.recurrence import ADDITIONS, Body
from benchmarks.hls_check.schedule import ends_of
from benchmarks.hls_check.source import Place

FLATTENED, MORE_FLATTENED = 1.9, 1.0
"""Nanoseconds in which the counter of the loop around is counted on, and that of each loop more."""
PRODUCT = 2.7
"""Nanoseconds of a product and a sum of an address."""
REMAINDER = 3
"""Cycles of a remainder beyond one for each of its bits, the last one not counted."""
_LARGE = 1 << 20
_FLOATS = {"fadd", "fsub", "fmul", "fdiv"}


def count_added(terms: int) -> int:
    """Additions between the last value of an accumulator and its next, by terms added to it.

    With ``-unsafe_math_optimizations`` a sum becomes a tree, in which the accumulator has a place
    near the root.

    Example:
        >>> [count_added(terms) for terms in (1, 2, 4, 8, 10, 16)]  # as in the reports
        [1, 1, 3, 3, 4, 4]
    """
    return 1 if terms <= 2 else max(3, math.ceil(math.log2(terms)))


@dataclass(eq=False)
class Circuit(Body):
    """A pipelined loop and those that are flattened into it.

    Attributes:
        levels: How many loops it is made of.
        places: Where arrays lie, by name.
        tree: Whether sums may be reordered.
        outside: Cycles of an access to memory outside of the chip.
        target: The interval that a pragma asks for; 0 if the tool made it a pipeline by itself, so
            that none is worth a quick adder or a register for it.
    """

    levels: int = 1
    places: Mapping[str, Place] = field(default_factory=dict)
    tree: bool = False
    outside: int = 1
    target: int = 1

    @cached_property
    def nest(self) -> Nest:
        """The loops, the innermost first."""
        around = [x for x in self.function.loops if self.loop.blocks <= x.blocks]
        return Nest(self.function, sorted(around, key=lambda x: len(x.blocks))[: self.levels])

    # Arrays

    def _is_outside(self, name: str) -> bool:
        return self._place(name).outside

    def _place(self, array: str) -> Place:
        names = base_name(array), plain_name(base_name(array))
        return next((self.places[n] for n in names if n in self.places), Place())

    def _object(self, pointer: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        array, index, lane = super()._object(pointer)
        if array in self.function.arguments:  # leading zeros are in no address
            index = ("0",) * (len(self._place(array).shape) - len(index)) + index
        return array, index, lane

    def _words(self, name: str) -> int:
        place, sizes = self._place(name), self._dims(name)
        banks = place.banks
        if banks.get(0, ("", 1))[0] == "complete":
            return 1
        if name.partition("[")[0] in self.function.arguments:
            sizes = place.shape if place.shape and all(place.shape) else (_LARGE,)
        words = 1
        for k, size in enumerate(sizes, 1):
            kind, factor = banks.get(k, ("", 1))
            words *= 1 if kind == "complete" else math.ceil(size / factor)
        return words

    def _bank(self, array: str, index: Sequence[str]) -> str:
        """Banks by dimension: what of the index varies within the banks, then the constant."""
        found = []
        for dim, (kind, factor) in sorted(self._place(array).banks.items()):
            if not 0 < dim <= len(index):
                found.append("?")
                continue
            total = self.nest.sum_of(index[dim - 1])
            varies = {k: v for k, v in total.terms.items() if kind != "cyclic" or v % factor}
            place = total.constant % factor if kind == "cyclic" else total.constant
            words = [f"{v}*{k}" for k, v in sorted(varies.items())]
            found.append(" ".join([*words, str(place)]) if kind != "block" or not words else "?")
        return f"[{','.join(found)}]" if found else ""

    def _is_limited(self, array: str) -> bool:
        """Whether the tool does not choose the banks of an array."""
        place = self._place(array)
        given = array.partition("[")[0] in self.function.arguments
        return self.is_memory(array) and (bool(place.banks) or (given and not place.free))

    def ports(self) -> tuple[int, str]:
        """Least interval by memory ports, and the array that needs it."""
        words = {(a.array, a.kind, a.index) for a in self.accesses if self._is_limited(a.array)}
        most: dict[str, Counter[str]] = defaultdict(Counter)  # of banks at one computed place
        for name, count in Counter(array for array, _, _ in words).items():
            varies = re.sub(r"(^|(?<=[\[, ]))\d+(?=[,\]])", "", name.partition("[")[2])
            per = most[base_name(name)]
            per[varies] = max(count, per[varies])
        needs = [(math.ceil(per.total() / 2), name) for name, per in most.items()]
        outside = Counter((name, kind) for name, kind, _ in words if self._is_outside(name))
        needs += [(count, name) for (name, _), count in outside.items()]  # a port for each kind
        return max([(1, ""), *needs])

    # Words that are written and read again

    def _distance(self, store: Access, load: Access) -> int:
        return self.nest.distance(store.index, load.index) or 0

    def _is_kept(self, store: Access, load: Access) -> bool:
        inner = self.nest.loops[0].header
        if self._is_word:
            return False
        sums = [self.nest.sum_of(x) for x in store.index]
        same = sums == [self.nest.sum_of(x) for x in load.index]
        return same and not any(inner in x.terms for x in sums)

    @property
    def _is_word(self) -> bool:
        """Whether a sum stays in memory, as the tool flattens by itself before it looks at sums."""
        return not self.target and self.levels > 1

    @cached_property
    def kept(self) -> set[Instruction]:
        """Loads of words that stay in a register: the same word in all iterations, written here."""
        stores = defaultdict[str, list[Access]](list)
        for a in self.accesses:
            if a.kind == "store":
                stores[base_name(a.array)].append(a)
        loads = (a for a in self.accesses if a.kind == "load")
        return {a.at for a in loads if any(self._is_kept(s, a) for s in stores[base_name(a.array)])}

    @cached_property
    def forwarded(self) -> dict[Instruction, str]:
        """Loads of what a store in front of them wrote in the same iteration, and its value."""
        last: dict[tuple[object, ...], Access] = {}
        found: dict[Instruction, str] = {}
        for a in self.accesses:
            sums = [self.nest.sum_of(x) for x in a.index]
            key = (base_name(a.array), *((frozenset(x.terms.items()), x.constant) for x in sums))
            if a.kind == "store":
                last[key] = a
            elif key in last and self.function.dominates(last[key].at.block, a.at.block):
                found[a.at] = next(v for v in last[key].at.values if v[0] in "%@")
        return found

    def _memory(self) -> Iterator[tuple[Instruction, Instruction, int, float]]:
        for load, value in self.forwarded.items():
            if value in self.here:
                yield self.here[value], load, 0, self.delay(self.here[value])
        yield from (edge for edge in super()._memory() if edge[1] not in self.forwarded)

    # Sums

    @cached_property
    def terms(self) -> dict[Instruction, int]:
        """Additions of every chain for its last one; 0 for the others."""
        before: dict[Instruction, Instruction] = {}
        for i in (i for i in self.instructions if i.op == "fadd"):
            for previous in filter(None, map(self._find_addition, i.values)):
                before[i] = previous
        found = dict[Instruction, int]()
        for last in (i for i in self.instructions if i.op == "fadd"):
            if last not in before.values():
                count, at = 1, last
                while at in before:
                    at, count = before[at], count + 1
                    found[at] = 0
                found[last] = count
        return found

    @cached_property
    def registered(self) -> set[str]:
        """Values that registers are given: the tool sees that these are accumulators."""
        stores = [a for a in self.accesses if a.kind == "store" and not self.is_memory(a.array)]
        return {v for a in stores for v in a.at.values[:1]}

    def _count_terms(self, i: Instruction) -> int:
        """Terms that an addition adds, of a tree all for its last one."""
        return self.terms.get(i, 1) if self.tree else 1

    def _count_added(self, i: Instruction) -> int:
        """Additions of an accumulator on the way through an addition; 0 for a part of another."""
        count = self._count_terms(i)
        return count_added(count) if count and i.name not in self.registered else min(count, 1)

    def _find_addition(self, value: str, steps: int = 0) -> Instruction | None:
        """The addition that a value is of, through choices and words that were written."""
        i = self.here.get(value)
        if i is None or i.op == "fadd" or steps > len(_FLOATS):
            return i if i is not None and i.op == "fadd" else None
        sources = []
        if i in self.forwarded:
            sources = [self.forwarded[i]]
        elif i.op == "phi" and i.block != self.loop.header:
            sources = [v for v, _ in i.incoming]
        elif i.op == "select":
            sources = i.values[-2:]
        found = (self._find_addition(v, steps + 1) for v in sources)
        return next((addition for addition in found if addition is not None), None)

    # Time

    @cached_property
    def _core_inputs(self) -> set[str]:
        return {v for i in self.instructions if i.op in _FLOATS for v in i.values}

    def _delay(self, i: Instruction) -> float:
        if i in self.forwarded:
            return 0.0
        if i in self.kept:
            return 0.0 if self.target else MUX
        if any(self._is_outside(self._object(p)[0]) for p in self._pointers(i).values()):
            return self.delays.cycles(self.outside)
        if i.op in ADDITIONS:
            return super()._delay(i) * self._count_added(i)
        if i.op == "phi" and i.block == self.loop.header and "float" in i.rest and self._is_word:
            return self.delays.cycles(1) + RAM + STORE
        if i.op == "fmul" and "double" in i.rest:
            return self.delays.core("dmul")
        if i.op in {"phi", "select"} and i.name in self._core_inputs:
            # a choice in front of a core: the tool keeps an interval that is asked for and says so
            return 0.0 if self.target else MUX
        if re.search(r"(max|min)num", i.callee):
            return self.delays.compare(32) + MUX  # compared as integers
        return super()._delay(i)

    def time_in_stages(self, i: Instruction) -> float:
        """The same; the levels of a tree after each other."""
        if i.op not in ADDITIONS:
            return super().time_in_stages(i)
        count, cycle = self._count_terms(i), self.delays.cycles(1)
        quick = self._count_added(i) * self.is_quick(i)
        full = count > 1 and not quick and is_power(str(count + 1))  # no place for the accumulator
        last = full or (i.name in self.registered and count > 0)
        levels = math.ceil(math.log2(count)) + 1 if last else math.ceil(math.log2(count + 1))
        slow = max(levels - quick, 0)
        cores = quick * self.delays.core("quick_fadd") + slow * self.delays.core("fadd")
        return cores + (quick + slow) * cycle

    def depth_at(self, ii: int) -> int:
        """Stages of the pipeline at an interval; accesses to one memory wait for its ports."""
        cycle = self.delays.cycles(1)
        ready = {i: self._flattened(self._level(i)) for i in self.instructions}
        served = Counter[str]()
        turns: dict[tuple[str, str, tuple[str, ...]], int] = {}
        for a in self.accesses:
            if a.at not in self.kept and a.at not in self.forwarded:
                ready[a.at] = max(ready[a.at], self._addressed(a))
            if self._is_limited(a.array):
                word = (a.array, a.kind, a.index)
                if word not in turns:
                    turns[word], served[a.array] = served[a.array] // 2, served[a.array] + 1
                ready[a.at] = max(ready[a.at], turns[word] * cycle)
        products = [i for i in self.instructions if i.op == "fmul"]
        units = math.ceil(len(products) / ii)
        if all(count <= 2 for count in self.terms.values()):
            ready |= {i: max(ready[i], k // units * cycle) for k, i in enumerate(products)}
        time, sums = self.time_in_stages, self.sums
        ends = ends_of(self.instructions, self.graph, time, cycle, ii, sums, ready)
        return max(ends.values(), default=0)

    def _level(self, i: Instruction) -> int:
        """Level of the outermost counter that an operand from outside of the loop depends on."""
        made = (self.function.defined[v] for v in i.values
                if v in self.function.defined and v not in self.here)  # fmt: skip
        values = (v for m in made for v in (m.name or "", *m.values))
        return max((self._level_of(self.nest.sum_of(v)) for v in values), default=0)

    def _level_of(self, total: Sum) -> int:
        return max((k for k, x in enumerate(self.nest.loops) if x.header in total.terms), default=0)

    @staticmethod
    def _flattened(level: int) -> float:
        return FLATTENED + MORE_FLATTENED * (level - 1) if level else 0.0

    def _addressed(self, a: Access) -> float:
        """Nanoseconds until an address is there."""
        sums = [self.nest.sum_of(x) for x in a.index]
        level = max(map(self._level_of, sums), default=0)
        address = self._flattened(level) + PRODUCT * self._count_products(a.array, sums)
        return max(address, self.delays.cycles(self._find_bank(a.array, sums)))

    def _count_products(self, array: str, sums: Sequence[Sum]) -> int:
        """Products of an address: one for each dimension but the last, none for rows of 2^n words.

        In an array of one bank a sum is left for all of these together.
        """
        place, sizes = self._place(array), self._dims(array)
        if array.partition("[")[0] in self.function.arguments:
            sizes = place.shape
        row, count, shifted = 1, 0, False
        for dim in range(min(len(sums), len(sizes)), 1, -1):
            kind, factor = place.banks.get(dim, ("", 1))
            row *= 1 if kind == "complete" else math.ceil(sizes[dim - 1] / factor)
            if sums[dim - 2].terms and row > 1:
                count, shifted = count + (not is_power(str(row))), shifted or is_power(str(row))
        return max(count, shifted and not place.banks)

    def _find_bank(self, array: str, sums: Sequence[Sum]) -> int:
        """Cycles of the remainder that is the bank of a word, where the divisor needs one.

        A counter of the innermost loop that goes on by 1 has its remainder counted beside it.
        """
        place, bits, counter = self._place(array), [0], {self.nest.loops[0].header: 1}
        for dim, (kind, factor) in place.banks.items():
            if kind == "cyclic" and factor & (factor - 1) and 0 < dim <= len(sums):
                size = place.shape[dim - 1] if dim <= len(place.shape) else 0
                total = sums[dim - 1]
                counted = total.modulo(factor) is not None or total.terms == counter
                if size > factor and not counted:
                    bits.append((size - 1).bit_length())
        return max(bits) + REMAINDER if max(bits) else 0
