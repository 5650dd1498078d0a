"""Indices as sums of loop counters, and how many iterations lie between two accesses of a word.

The loops of a nest that a tool flattens are one pipeline: an iteration of the innermost follows the
last one of the loop around it. Two accesses whose indices are the same sums of counters but for a
constant meet a fixed number of iterations apart, which is found as in Banerjee, "Dependence
Analysis for Supercomputing" (1988): the least vector of counter differences that solves the
equations of all dimensions.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from benchmarks.hls_check.ir import Function, Instruction, Loop

_CONSTANT = re.compile(r"-?\d+")
_FAR, _NEAR = 1 << 20, 64
"""Iterations of a loop without a known end, and how far counters of one index are looked at."""


@dataclass(frozen=True)
class Sum:
    """A constant and multiples of counters.

    Attributes:
        terms: Factor by counter (the header of its loop), or by value that is no counter.
        constant: What is added.
    """

    terms: Mapping[str, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: "Sum", times: int = 1) -> "Sum":
        """This and a multiple of another."""
        terms = {k: self.terms.get(k, 0) + times * other.terms.get(k, 0)
                 for k in {*self.terms, *other.terms}}  # fmt: skip
        rest = {k: v for k, v in terms.items() if v}
        return Sum(rest, self.constant + times * other.constant)

    def modulo(self, divisor: int) -> int | None:
        """The remainder if it is the same in all iterations."""
        if any(v % divisor for v in self.terms.values()):
            return None
        return self.constant % divisor


@dataclass(frozen=True)
class Nest:
    """Loops that are one pipeline, the innermost first.

    Attributes:
        function: Their function.
        loops: The loops.
        known: Sums by value, as far as they have been looked up.
    """

    function: Function
    loops: Sequence[Loop]
    known: dict[str, Sum] = field(default_factory=dict)

    def sum_of(self, value: str) -> Sum:
        """What a value of the IR is, as far as sums, products and shifts by constants go."""
        if value not in self.known:
            self.known[value] = Sum({value: 1})  # while it is looked at: a cycle ends there
            self.known[value] = self._sum_of(value)
        return self.known[value]

    def _sum_of(self, value: str) -> Sum:
        i = self.function.defined.get(value)
        if _CONSTANT.fullmatch(value):
            return Sum(constant=int(value))
        if i is not None and i.op in {"sext", "zext", "trunc"}:
            return self.sum_of(i.values[0])
        if i is not None and i.op == "phi":
            return self._counter(i)
        if i is not None and i.op in {"add", "sub", "mul", "shl", "or"}:
            return self._combined(i)
        return Sum({value: 1})

    def _combined(self, i: Instruction) -> Sum:
        """Sums, and products with constants."""
        a, b = map(self.sum_of, _operands(i))
        if i.op in {"add", "sub"}:
            return a.plus(b, 1 if i.op == "add" else -1)
        if not b.terms and i.op in {"mul", "shl"}:
            return Sum().plus(a, b.constant if i.op == "mul" else 1 << b.constant)
        if not b.terms and i.op == "or" and a.modulo(1 << b.constant.bit_length()) == 0:
            return a.plus(b)  # of bits that are not set: an addition
        return Sum({i.name or "": 1})

    def _counter(self, phi: Instruction) -> Sum:
        """The start and the steps of a counter; what all ways to a join agree on."""
        own = Sum({phi.name or "": 1})
        loop = next((x for x in self.function.loops if x.header == phi.block), None)
        if loop is None:
            first, *more = [self.sum_of(v) for v, _ in phi.incoming]
            return first if all(x == first for x in more) else own
        steps = [v for v, block in phi.incoming if block in loop.blocks]
        starts = {v for v, block in phi.incoming if block not in loop.blocks}
        ends = [*steps, *starts]
        if len(ends) == 2 and all(map(_CONSTANT.fullmatch, ends)):  # of two iterations
            return Sum({phi.block: int(ends[0]) - int(ends[1])}, int(ends[1]))
        added = self.function.defined.get(steps[0]) if len(steps) == len(starts) == 1 else None
        operands = _operands(added) if added is not None and added.op == "add" else []
        if operands[:1] != [phi.name] or not _CONSTANT.fullmatch(operands[1]):
            return own
        return self.sum_of(starts.pop()).plus(Sum({phi.block: int(operands[1])}))

    @cached_property
    def trips(self) -> tuple[int, ...]:
        """Iterations of every loop."""
        return tuple(map(self.count_trips, self.loops))

    def count_trips(self, loop: Loop) -> int:
        """Iterations of a loop that ends by comparing a counter with a constant; 0 of others."""
        for last in (self.function.blocks[block][-1] for block in loop.blocks):
            test = self.function.defined.get(next(iter(last.values), ""))
            leaves = len(last.targets) > 1 and any(t not in loop.blocks for t in last.targets)
            if not leaves or test is None or test.op != "icmp":
                continue
            left, right = _operands(test)
            difference = self.sum_of(right).plus(self.sum_of(left), -1)
            if set(difference.terms) == {loop.header}:
                return math.ceil(abs(difference.constant / difference.terms[loop.header])) + 1
        return 0

    def distance(self, store: Sequence[str], load: Sequence[str]) -> int | None:
        """Iterations from a store to the next load of its word; None if there is none.

        1 where it cannot be known. 0 is not among them: what meets in one iteration is no
        recurrence.
        """
        if len(store) != len(load):
            return 1
        counters = [x.header for x in self.loops]
        equations = list[tuple[list[int], int]]()
        for a, b in zip(store, load, strict=True):
            a_sum, b_sum = self.sum_of(a), self.sum_of(b)
            if a_sum.terms != b_sum.terms or self._varies(a_sum):
                return 1
            factors = [a_sum.terms.get(c, 0) for c in counters]
            equations.append((factors, a_sum.constant - b_sum.constant))
        found = [*_solutions(equations, self.trips)]
        return min(found, default=None)

    def _varies(self, total: Sum) -> bool:
        """Whether a sum has a value that each iteration computes anew, but no counter."""
        inside = self.loops[-1].blocks
        return any(t in self.function.defined and self.function.defined[t].block in inside
                   for t in total.terms)  # fmt: skip


def _solutions(equations: Sequence[tuple[list[int], int]], trips: Sequence[int]) -> Iterator[int]:
    """Positive distances, in iterations of the innermost loop, that solve all equations."""
    weights = [math.prod(trips[:k]) for k in range(len(trips))]
    most = [trip - 1 if trip else _FAR for trip in trips]
    for vector in product(*(_steps(k, equations, most[k]) for k in range(len(trips)))):
        if all(_sum_products(f, vector) == c for f, c in equations):
            distance = _sum_products(weights, vector)
            if distance > 0:
                yield distance


def _steps(k: int, equations: Sequence[tuple[list[int], int]], most: int) -> Sequence[int]:
    """How far a counter may go on between two accesses.

    As an equation of it alone says; of several counters, a little to either side; a counter in no
    equation is free, so that the ends of its loop and the next iteration stand for all.
    """
    of_it = [(factors, c) for factors, c in equations if factors[k]]
    for factors, constant in of_it:
        if sum(map(bool, factors)) == 1:
            step, rest = divmod(constant, factors[k])
            return (step,) if not rest and abs(step) <= most else ()
    near = min(most, _NEAR)
    return range(-near, near + 1) if of_it else (-most, 0, min(1, most))


def _sum_products(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _operands(i: Instruction) -> list[str]:
    """The two operands of an operation, without types and flags."""
    words = [part.split()[-1] for part in i.rest.split(",")]
    return words[:2]
