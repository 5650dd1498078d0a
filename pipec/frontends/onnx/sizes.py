"""The shape of a tensor that a part of a model does not have, from the shapes that it is given."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise

import numpy as np
from onnx import NodeProto, helper

from pipec.errors import FrontendError
from pipec.frontends.onnx.axes import Growth
from pipec.graph.arrays import Array

Sizes = tuple[int, ...]
"""What one dimension is at the planned sizes of the open axes and at others."""


class ShapeNodes:
    """Makes nodes that compute shapes.

    A dimension is looked for among numbers, among ``a * d + b`` of a dimension ``d`` of what the
    part is given, and among ``a * d * e`` of two. What agrees at all sizes is taken.

    Args:
        growth: The model at several sizes of its open axes.
        given: Names of the inputs of the part.
    """

    def __init__(self, growth: Growth, given: Sequence[str]) -> None:
        self._growth = growth
        self._given: dict[Sizes, tuple[str, int]] = {}
        for name in given:
            for k, sizes in enumerate(growth.dims(name)):
                if len(set(sizes)) > 1:
                    self._given.setdefault(sizes, (name, k))

    def __call__(self, name: str, to: str) -> tuple[list[NodeProto], Mapping[str, Array]]:
        """Nodes that yield the shape of ``name``, as ``to``, and the numbers that they read.

        Raises:
            FrontendError: A dimension follows from nothing that the part is given.
        """
        nodes, numbers, parts = list[NodeProto](), dict[str, Array](), list[str]()
        dims = self._growth.dims(name)
        if all(len(set(sizes)) == 1 for sizes in dims):
            return [], {to: np.array([sizes[0] for sizes in dims], np.int64)}

        def number(value: int) -> str:
            """The name of an initialiser of one integer."""
            numbers[f"{to}/{value}"] = np.array([value], np.int64)
            return f"{to}/{value}"

        def node(op: str, *inputs: str) -> str:
            """The name of what a new node yields."""
            yielded = f"{to}/n{len(nodes)}"
            nodes.append(helper.make_node(op, list(inputs), [yielded], yielded))
            return yielded

        for k, sizes in enumerate(dims):
            if len(set(sizes)) == 1:
                parts.append(number(sizes[0]))
                continue
            factors, times, plus = self._formula(f"{name}, dimension {k}", sizes)
            found = ""
            for source, axis in factors:
                size = node("Gather", node("Shape", source), number(axis))
                found = node("Mul", found, size) if found else size
            found = node("Mul", found, number(times)) if times != 1 else found
            parts.append(node("Add", found, number(plus)) if plus else found)
        nodes.append(helper.make_node("Concat", parts, [to], to, axis=0))
        return nodes, numbers

    def _formula(self, what: str, sizes: Sizes) -> tuple[list[tuple[str, int]], int, int]:
        """Dimensions to multiply, a factor, and what to add."""
        for factors, have in self._products():
            slope = _slope(have, sizes)
            if slope is not None:
                return factors, slope, sizes[0] - slope * have[0]
        raise FrontendError(
            "a stage needs the size of a tensor that follows from nothing it receives", where=what
        )

    def _products(self) -> Iterator[tuple[list[tuple[str, int]], Sizes]]:
        for have, place in self._given.items():
            yield [place], have
        for (one, first), (two, second) in combinations_with_replacement(self._given.items(), 2):
            yield [first, second], tuple(a * b for a, b in zip(one, two, strict=True))


def _slope(have: Sizes, want: Sizes) -> int | None:
    """The integer ``a`` of ``want = a * have + b``, if there is one.

    Example:
        >>> _slope((2, 3, 6), (5, 7, 13))
        2
    """
    steps = [
        (h1 - h0, w1 - w0)
        for (h0, h1), (w0, w1) in zip(pairwise(have), pairwise(want), strict=True)
    ]
    found = {w // h if h and w % h == 0 else None for h, w in steps if h or w}
    return found.pop() if len(found) == 1 else None
