"""A part of an ONNX model as a model of its own, assembled node by node under the original names.

Which nodes belong to a part is known from the traced graph (`Origin.index`). Nodes without a trace
computed nothing that the graph kept; they are treated by what their outputs are:

===========================================  ============================================
a name that a node of the part reads is      it becomes
===========================================  ============================================
yielded by a node of the part                nothing new
received from another part, a graph input    an input of the part
known at compile time, or a weight           an initialiser
yielded by a node without a trace            that node joins (an ``Identity``, say)
a copy of something that the part has        an ``Identity`` of that
anything else                                zeros: the trace proves that its content does
                                             not matter (only its shape does)
===========================================  ============================================

Where axes stay open, what is known for one size of them alone is no initialiser: the nodes that
compute it join. They end at shapes of tensors; one that the part does not have is made of the
shapes of those that it is given.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper
from torch import Tensor, fx

from pipec.errors import FrontendError
from pipec.frontends.onnx.axes import Growth
from pipec.frontends.onnx.evaluation import Evaluation
from pipec.frontends.onnx.frame import reads
from pipec.frontends.onnx.mini import LARGEST_IR_VERSION
from pipec.frontends.onnx.values import Type, type_of
from pipec.graph.arrays import Array
from pipec.graph.ir import origin, tensor
from pipec.graph.size_formula import Fit

SMALLEST_IR_VERSION = 4
"""Before it every initialiser had to be listed as an input too."""


@dataclass
class Part:
    """A model without the data of its weights, and these.

    Attributes:
        proto: The model.
        weights: Name to data of the initialisers that ``proto`` lacks.
    """

    proto: onnx.ModelProto
    weights: dict[str, Tensor | Array] = field(default_factory=dict)


class _ShapeNodes:
    """Makes nodes that compute the shape of a tensor that a part does not have."""

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


class Assembler:
    """Assembles parts of one evaluated model.

    Args:
        evaluation: The model, evaluated as it was when the graph was traced.
        weights: Data of weights by name, where they may differ from the file's.
        traced: Indices of all ONNX nodes that the whole graph has nodes of.
        growth: The axes that stay open; none by default.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        weights: Mapping[str, Tensor],
        traced: Collection[int],
        growth: Growth | None = None,
    ) -> None:
        self._evaluation, self._weights, self._traced = evaluation, weights, frozenset(traced)
        self._growth = growth or Growth((), (evaluation,))
        self._model = evaluation.model
        self._nodes = list(self._model.proto.graph.node)
        self._producer = {name: k for k, n in enumerate(self._nodes) for name in n.output if name}

    def name_of(self, node: fx.Node) -> str:
        """The ONNX name of what a node of the graph yields to nodes of other indices.

        Raises:
            FrontendError: Its ONNX node has several outputs of one type and the graph does not
                say which it is.
        """
        index = origin(node).index
        if index is None:
            raise FrontendError("a node of the graph has no ONNX node", where=node.name)
        evaluation, kind = self._evaluation, type_of(tensor(node))
        names = [name for name in self._nodes[index].output if name in evaluation.types]
        exact = [name for name in names if evaluation.made[name] == node.name]
        if exact or len(names) > 1:
            names = exact[:1] or [name for name in names if evaluation.types[name] == kind]
        if len(names) != 1:
            raise FrontendError(
                "it is not clear which output of an ONNX node crosses the cut",
                where=f"{node.name}, {origin(node)}",
                got=", ".join(names) or "none",
                hint="cut elsewhere: another number of stages",
            )
        return str(names[0])

    def part(
        self,
        name: str,
        indices: Collection[int],
        inputs: Iterable[str],
        outputs: Iterable[str],
        passed_on: Mapping[str, str] | None = None,
    ) -> Part:
        """One part.

        Args:
            name: Name of the new graph.
            indices: Nodes that the graph places in this part.
            inputs: ONNX names of what the part is given.
            outputs: ONNX names of what it yields, each once.
            passed_on: Names of further outputs that are copies of inputs, to those inputs' names.

        Raises:
            FrontendError: Something that the part reads can neither be received nor made.
        """
        given, wanted = list(inputs), list(outputs)
        inside, constants, copies = self._closure(set(indices), set(given), wanted)
        part = Part(self._shell(name))
        graph = part.proto.graph
        shapes = _ShapeNodes(self._growth, given)
        for copy, of in copies.items():
            if not of:
                self._add_blank(part, copy, shapes)
        copied = [helper.make_node("Identity", [of], [n], n) for n, of in copies.items() if of]
        graph.node.extend(n for n in copied if n.input[0] in {*given, *constants})
        for k in sorted(inside):
            graph.node.append(self._nodes[k])
            graph.node.extend(n for n in copied if n.input[0] in self._nodes[k].output)
        graph.input.extend(self._value_info(n) for n in given)
        graph.output.extend(self._value_info(n) for n in wanted)
        for copy, of in (passed_on or {}).items():
            graph.node.append(helper.make_node("Identity", [of], [copy], copy))
            graph.output.append(self._value_info(of))
            graph.output[-1].name = copy
        for constant in constants:
            self._add_constant(part, constant)
        return part

    def _shell(self, name: str) -> onnx.ModelProto:
        """An empty model with the source's operator versions and functions."""
        old = self._model.proto
        proto = onnx.ModelProto(producer_name="pipec", graph=GraphProto(name=name))
        proto.ir_version = min(max(old.ir_version, SMALLEST_IR_VERSION), LARGEST_IR_VERSION)
        proto.opset_import.extend(old.opset_import)
        proto.functions.extend(old.functions)
        return proto

    def _closure(
        self, indices: set[int], given: set[str], wanted: list[str]
    ) -> tuple[set[int], list[str], dict[str, str]]:
        """All nodes of the part, what it holds as initialisers, and copies; "" of a mere shape."""
        made = self._evaluation.made
        yielded = {name for k in indices for name in self._nodes[k].output}
        todo = [*wanted, *(name for k in sorted(indices) for name in reads(self._nodes[k]))]
        done, constants, copies = set[str](), list[str](), dict[str, str]()
        while todo:
            name = todo.pop(0)
            if name in done or name in yielded or name in given:
                continue
            done.add(name)
            index = self._producer.get(name)
            computed = name in self._growth.computed
            known = name in self._evaluation.known or name in self._model.initializers
            if known and not computed:
                constants.append(name)
            elif index is not None and (computed or index not in self._traced):
                indices.add(index)
                yielded.update(self._nodes[index].output)
                todo.extend(reads(self._nodes[index]))
            elif index is not None or name in self._evaluation.inputs:
                before = [n for k in indices if k < (index or 0) for n in self._nodes[k].output]
                held = sorted([*given, *before, *self._model.initializers])
                copies[name] = next((n for n in held if made.get(n, n) == made.get(name)), "")
                todo += [copies[name]] if copies[name] else []
            else:
                where = f"{self._model.where}, {name}"
                raise FrontendError("a node reads what nothing yields", where=where)
        return indices, constants, copies

    def _type(self, name: str) -> Type:
        if name in self._evaluation.types:
            return self._evaluation.types[name]
        if name in self._evaluation.known:
            return type_of(self._evaluation.known[name])
        raise FrontendError(
            "a value that crosses a cut is no tensor", where=f"{self._model.where}, {name}"
        )

    def _value_info(self, name: str) -> onnx.ValueInfoProto:
        kind = self._type(name)
        return helper.make_tensor_value_info(name, kind.dtype, self._growth.write_shape(name))

    def _add_blank(self, part: Part, name: str, shapes: _ShapeNodes) -> None:
        kind, shape = self._type(name), f"{name}/shape"
        zero = helper.make_tensor("value", kind.dtype, [1], [0])
        nodes, numbers = shapes(name, shape)
        part.proto.graph.node.extend(nodes)
        part.weights.update(numbers)
        part.proto.graph.node.append(
            helper.make_node("ConstantOfShape", [shape], [name], f"{name}/blank", value=zero)
        )

    def _add_constant(self, part: Part, name: str) -> None:
        found, proto = self._weights.get(name), self._model.initializers.get(name)
        if proto is not None:
            kind = Type(proto.data_type, tuple(proto.dims))
        else:
            kind = type_of(self._evaluation.known[name])
        if found is not None and type_of(found) == kind:
            part.weights[name] = found
        elif proto is None:
            part.weights[name] = self._evaluation.known[name]
        elif proto.data_location == TensorProto.EXTERNAL:
            part.weights[name] = self._model.array(name)
        else:
            part.proto.graph.initializer.append(proto)
