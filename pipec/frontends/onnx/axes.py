"""Which dimensions of a model file stay open, and what follows from them.

The compiler sees a file at one size. Here the same file is evaluated at other sizes as well, on
fake tensors: a dimension that differs is not written into a stage as a number, and a value that is
known at compile time, but only as long as the sizes are, is computed by the file's own nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from onnx import NodeProto
from torch import Tensor

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.evaluation import Evaluation, describe, evaluate_model
from pipec.frontends.onnx.frame import reads, shorten_domain
from pipec.frontends.onnx.inputs import bind_sizes, dimensions
from pipec.graph.axes import Axes, Axis, Sizes, most_open, other_sizes, with_sizes

_MOVES = frozenset({"Shape", "Gather", "Slice", "Split", "Squeeze", "Unsqueeze", "Concat"})
_MOVES |= {"Cast", "Identity", "Reshape"}
"""Ops that pass numbers on; what they pass on depends on a size only if it differs with it."""


@dataclass(frozen=True)
class Growth:
    """A model at the planned sizes of its open axes and at others.

    Attributes:
        axes: The open ones.
        evaluations: The planned sizes first.
        sizes: The others.
    """

    axes: tuple[Axis, ...]
    evaluations: tuple[Evaluation, ...]
    sizes: tuple[Sizes, ...] = ()

    def dims(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Sizes of every dimension of a tensor, one per evaluation.

        Raises:
            FrontendError: How many dimensions it has depends on a size, as behind a Squeeze of
                all dimensions of size 1.
        """
        shapes = [_shape(e, name) or () for e in self.evaluations]
        ranks = sorted({len(shape) for shape in shapes})
        if len(ranks) > 1:
            raise FrontendError(
                f"how many dimensions {name!r} has depends on a size", got=ranks, want="one number"
            )
        return tuple(zip(*shapes, strict=True))

    @cached_property
    def labels(self) -> dict[tuple[int, ...], str]:
        """Names of the open axes by the sizes that they have."""
        found = dict[tuple[int, ...], str]()
        for axis in self.axes:
            name, k = axis.places[0]
            found.setdefault(self.dims(name)[k], axis.name)
        return found

    def write_shape(self, name: str) -> list[int | str]:
        """The shape of a tensor as a model says it: numbers, and names of what is open."""
        return [
            sizes[0] if len(set(sizes)) == 1 else self.labels.get(sizes, f"{name}.{k}")
            for k, sizes in enumerate(self.dims(name))
        ]

    @cached_property
    def computed(self) -> frozenset[str]:
        """Values that are known at compile time only as long as the open axes have one size."""
        found = set[str]()
        for node in self.evaluations[0].model.proto.graph.node:
            if not self._follows(node, found):
                continue
            for name in node.output:
                first, *known = [e.known.get(name) for e in self.evaluations]
                if first is not None and not (
                    node.op_type in _MOVES
                    and not shorten_domain(node.domain)
                    and all(k is not None and np.array_equal(first, k) for k in known)
                ):
                    found.add(name)
        return frozenset(found)

    def _follows(self, node: NodeProto, computed: set[str]) -> bool:
        if not computed.isdisjoint(reads(node)):
            return True
        shaped = node.op_type in ("Shape", "Size") and not shorten_domain(node.domain)
        return shaped and len({_shape(e, node.input[0]) for e in self.evaluations}) > 1


def _shape(evaluation: Evaluation, name: str) -> tuple[int, ...] | None:
    if name in evaluation.types:
        return evaluation.types[name].shape
    found = evaluation.known.get(name)
    return None if found is None else tuple(found.shape)


def find_axes(evaluation: Evaluation, options: LoadOptions) -> list[Axis]:
    """Axes that the file leaves open and the user does not bind.

    Dimensions of one name are one axis. Those without a name are one where they have the same
    position and planned size.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    sizes: dict[str, int] = {}
    bound = bind_sizes(evaluation.model.written, options)
    for info in evaluation.model.written.inputs:
        value = evaluation.inputs[info.name]
        if not isinstance(value, Tensor):
            continue
        for k, dim in enumerate(dimensions(info) or ()):
            if dim.size is None and dim.evaluate(bound) is None:
                name = with_sizes(dim.name, bound) or f"axis {k} of size {value.shape[k]}"
                places.setdefault(name, []).append((info.name, k))
                sizes[name] = value.shape[k]
    return [Axis(name, sizes[name], tuple(found)) for name, found in places.items()]


def open_axes(evaluation: Evaluation, options: LoadOptions) -> tuple[Axes, Growth]:
    """As many of the declared axes as the model can be evaluated at other sizes of."""
    found = dict[tuple[Axis, ...], Growth]()

    def attempt(axes: Sequence[Axis]) -> None:
        found[tuple(axes)] = grow(evaluation, axes, options)

    axes = most_open(find_axes(evaluation, options), attempt)
    return axes, found.get(axes.open) or grow(evaluation, axes.open, options)


def grow(evaluation: Evaluation, axes: Sequence[Axis], options: LoadOptions) -> Growth:
    """Evaluate a model at other sizes of some axes.

    Raises:
        FrontendError: It cannot be evaluated there, or is not the same model there.
    """
    if not axes:
        return Growth((), (evaluation,))
    errors = []
    for group in other_sizes(axes):
        try:
            others = [_evaluate(evaluation, Axes(tuple(axes)), s, options) for s in group]
        except FrontendError as error:
            errors.append(error)
            continue
        growth = Growth(tuple(axes), (evaluation, *others), tuple(group))
        _check_branches(growth)
        return growth
    raise errors[0]


def _evaluate(evaluation: Evaluation, axes: Axes, sizes: Sizes, options: LoadOptions) -> Evaluation:
    planned = {n: tuple(v.shape) for n, v in evaluation.inputs.items() if isinstance(v, Tensor)}
    shapes = {n: tuple(s) for n, s in axes.shapes(planned, sizes).items()}
    given: Mapping[str, tuple[int, ...]] = {**options.shapes, **shapes}
    found = evaluate_model(evaluation.model.written, replace(options, shapes=given))
    if _skeleton(found) != _skeleton(evaluation):
        text = ", ".join(f"{n}={s}" for n, s in sizes.items())
        raise FrontendError(f"the model takes other branches at {text}")
    return found


def _skeleton(evaluation: Evaluation) -> list[object]:
    nodes = evaluation.model.proto.graph.node
    outputs = [o for n in nodes for o in n.output]
    return [[n.op_type for n in nodes], outputs, [o in evaluation.known for o in outputs]]


def _check_branches(growth: Growth) -> None:
    """See that no If that was replaced by one of its branches chooses it by a size."""
    for k, node in enumerate(growth.evaluations[0].model.written.proto.graph.node):
        if node.op_type == "If" and node.input[0] in growth.computed:
            raise FrontendError("a branch is chosen by its size", where=describe(node, k))
