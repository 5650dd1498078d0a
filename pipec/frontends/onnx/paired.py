"""Operators on quantised tensors as the float ones between DequantizeLinear and QuantizeLinear.

```text
QLinearConv(x, w, b)  ─►  Quantize(Conv(Dequantize(x), Dequantize(w), Dequantize(b)))
MaxPool(x)            ─►  Quantize(MaxPool(Dequantize(x))), in the format of x
```

Files of ``QuantFormat.QOperator`` in the form of ``QuantFormat.QDQ``, for targets that read of the
pairs in which format a value is written. Names of values stay; the file is not touched.
Operators: onnxruntime's `ContribOperators.md` and ONNX's ``QLinearConv`` and ``QLinearMatMul``.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto, helper

from pipec.frontends.onnx.frame import shorten_domain
from pipec.frontends.onnx.inline_if import fresh, names_of
from pipec.frontends.onnx.reader import ModelFile

_FORMS = {
    **{f"QLinear{op}": (op, (0, 3), 6) for op in ("Conv", "MatMul", "Add", "Mul")},
    **{
        f"QLinear{op}": (op, (0,), 3)
        for op in ("Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool")
    },
    "QGemm": ("Gemm", (0, 3), 7),
    "QLinearWhere": ("Where", (1, 4), 7),
}
"""The float operator; where each operand stands, its scale and zero point behind it; where scale
and zero point of the result stand."""
_BIASES = {"QLinearConv": 8, "QGemm": 6}
"""Where a bias stands, whose scale is the product of the operands'."""
_MOVES = {
    "AveragePool", "Clip", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Relu",
    "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose results are in the format of what they read."""
_OWN = {"channels_last", "opset"}
"""Attributes that the float operators lack."""
Format = tuple[str, str]
"""Names of a scale and a zero point, which may be empty."""


def replace_paired(model: ModelFile) -> ModelFile:
    """The model with such operators replaced; itself if it has none."""
    graph = model.proto.graph
    if not any(n.op_type in _FORMS or n.op_type == "QLinearConcat" for n in graph.node):
        return model
    proto = deepcopy(model.proto)
    del proto.graph.node[:]
    pairs = _Pairs({t.name: len(t.dims) for t in graph.initializer}, names_of(graph), _read(graph))
    for node in graph.node:
        proto.graph.node.extend(pairs.of(node))
    return model.with_proto(proto)


def _form(node: NodeProto) -> tuple[str, Sequence[int], int] | None:
    """What `_FORMS` says of a node; None of one that it does not hold for."""
    if any(a.name == "channels_last" and a.i for a in node.attribute):
        return None
    if node.op_type == "QLinearConcat":
        return "Concat", range(2, len(node.input), 3), 0
    return _FORMS.get(node.op_type)


def _read(graph: onnx.GraphProto) -> dict[str, Format]:
    """In which formats values are read, by name."""
    found: dict[str, Format] = {}
    for node in graph.node:
        form = ("", (0,), 0) if node.op_type == "DequantizeLinear" else _form(node)
        given = [*node.input, "", ""]
        for at in form[1] if form else ():
            found.setdefault(given[at], (given[at + 1], given[at + 2]))
    return found


@dataclass
class _Pairs:
    """What the nodes so far say about formats.

    Attributes:
        ranks: Ranks of the initialisers, by name.
        taken: Names that new values may not have.
        read: Formats in which values are read, by name.
        formats: Formats of quantised values that are computed, by name.
    """

    ranks: dict[str, int]
    taken: set[str]
    read: dict[str, Format]
    formats: dict[str, Format] = field(default_factory=dict)

    def of(self, node: NodeProto) -> Iterator[NodeProto]:
        """What stands for a node: itself, or the float operator and its neighbours."""
        if node.op_type == "QuantizeLinear" and not shorten_domain(node.domain):
            self.formats[node.output[0]] = node.input[1], "".join(node.input[2:3])
        form = _form(node)
        if form is not None and len(node.input) > form[2]:
            yield from self._operator(node, *form)
        elif node.op_type in _MOVES and (moved := self._moves(node)) is not None:
            yield from self._move(node, moved)
        else:
            yield node

    def _operator(
        self, node: NodeProto, op: str, operands: Sequence[int], result: int
    ) -> Iterator[NodeProto]:
        given = [*node.input, "", "", ""]
        reads = list(node.input[:1]) if op == "Where" else []
        for at in operands:
            before = self._real(given[at], (given[at + 1], given[at + 2]), self._axis(node, op, at))
            yield before
            reads.append(before.output[0])
        if bias := given[_BIASES[node.op_type]] if node.op_type in _BIASES else "":
            scale = fresh(f"{bias}/scale", self.taken)
            yield helper.make_node("Mul", [given[1], given[4]], [self._took(scale)])
            before = self._real(bias, (scale, ""), 0)
            yield before
            reads.append(before.output[0])
        yield from self._write(node, op, reads, (given[result], given[result + 1]))

    def _moves(self, node: NodeProto) -> Format | None:
        """The format of what a node moves; None of other numbers."""
        reads, writes = node.input[0], node.output[0]
        return self.formats.get(reads) or (self.read.get(writes) if reads in self.ranks else None)

    def _move(self, node: NodeProto, form: Format) -> Iterator[NodeProto]:
        values = [0, 2] if node.op_type == "Pad" else [0, 1, 2] if node.op_type == "Clip" else [0]
        reads = list(node.input)
        for at in values:
            if reads[at : at + 1] not in ([], [""]):
                before = self._real(reads[at], form, None)
                yield before
                reads[at] = before.output[0]
        yield from self._write(node, node.op_type, reads, form)

    def _write(
        self, node: NodeProto, op: str, reads: Sequence[str], form: Format
    ) -> Iterator[NodeProto]:
        """The float operator, and its results in their format."""
        real = [self._took(fresh(f"{o}/real", self.taken)) for o in node.output]
        floating = helper.make_node(op, reads, real, name=node.name)
        floating.attribute.extend(a for a in node.attribute if a.name not in _OWN)
        yield floating
        for value, own in zip(real, node.output, strict=True):
            self.formats[own] = form
            yield helper.make_node("QuantizeLinear", [value, *filter(None, form)], [own])

    def _real(self, value: str, form: Format, axis: int | None) -> NodeProto:
        name = self._took(fresh(f"{value}/real", self.taken))
        node = helper.make_node("DequantizeLinear", [value, *filter(None, form)], [name])
        node.attribute.extend([] if axis is None else [helper.make_attribute("axis", axis)])
        return node

    def _axis(self, node: NodeProto, op: str, at: int) -> int | None:
        """The axis of an operand's scales, if it is a weight."""
        if at == 0 or op not in ("Conv", "MatMul", "Gemm") or node.input[at] not in self.ranks:
            return None
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        return 0 if op == "Conv" or turned else max(0, self.ranks[node.input[at]] - 1)

    def _took(self, name: str) -> str:
        self.taken.add(name)
        return name
