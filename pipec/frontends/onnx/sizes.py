"""The shape of a tensor that a part of a model does not have, from the shapes that it is given."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from pipec.errors import FrontendError
from pipec.frontends.onnx.axes import Growth
from pipec.graph.arrays import Array
from pipec.graph.size_formula import Fit


class ShapeNodes:
    """Makes nodes that compute shapes.

    Args:
        growth: The model at several sizes of its open axes.
        given: Names of the inputs of the part.
    """

    def __init__(self, growth: Growth, given: Sequence[str]) -> None:
        self._growth = growth
        self._fit = Fit({name: growth.dims(name) for name in given})

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
            formula, found = self._fit(sizes), ""
            if formula is None:
                raise FrontendError(
                    "a stage needs the size of a tensor that follows from nothing it receives",
                    where=f"{name}, dimension {k}",
                )
            for source, axis in formula.factors:
                size = node("Gather", node("Shape", source), number(axis))
                found = node("Mul", found, size) if found else size
            found = node("Mul", found, number(formula.times)) if formula.times != 1 else found
            parts.append(node("Add", found, number(formula.plus)) if formula.plus else found)
        nodes.append(helper.make_node("Concat", parts, [to], to, axis=0))
        return nodes, numbers
