"""Whether a file is ONNX at all: nodes against the schemas, types, names, sizes, attributes.

Rests on `onnx.checker` and on ONNX's own inference in its strict mode, which is what onnxruntime
asks of a node too. Both get the model without its weights: a large tensor is stood in for by an
input of its type, so that a check costs no copy of them. Declared shapes of inner values are left
out, for engines take a wrong one there with a warning; declared element types are not.
"""

import math
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from pipec.errors import FrontendError, first_line
from pipec.frontends.onnx.frame import shorten_domain
from pipec.frontends.onnx.mini import ENGINE_ERRORS, LARGEST_IR_VERSION
from pipec.graph.opaque import engine_errors, ort_session

LARGEST_SEEN = 4096
"""Bytes of a tensor up to which its values are given to inference: shapes, axes, counts."""

_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
"""Ops that engines run only with a ``hidden_size``, which their schemas leave open."""

_EQUATION = re.compile(rb"[A-Za-z.,\s]*(->[A-Za-z.\s]*)?")
"""Other letters send ONNX's inference into an endless loop."""

_SAYS_OPSET = 3
"""Version of the file format from which on a file says of which opset its operators are."""

_MOST = 2**40
"""Elements that a tensor of a file may declare; more is an overflow or an attack."""


def check_validity(proto: ModelProto, where: str) -> None:
    """Check a model against ONNX's schemas and rules; external data are not read.

    Raises:
        FrontendError: It breaks a rule; the message says which.
    """
    functions = (fault for f in proto.functions for fault in _of_nodes(f.node))
    found = next(chain(_versions(proto), _faults(proto.graph, outermost=True), functions), None)
    if found is None:
        found = _by_onnx(proto)
    if found is not None:
        raise FrontendError(
            "the file is not a valid ONNX model",
            where=where,
            got=found,
            hint="it may be damaged, or written by a tool with a fault",
        )


def _versions(proto: ModelProto) -> Iterator[str]:
    newest = onnx.defs.onnx_opset_version()
    if proto.ir_version < 1:
        yield "no version of the file format (ir_version)"
    if proto.ir_version > onnx.IR_VERSION:
        yield f"file format {proto.ir_version}; the installed onnx knows up to {onnx.IR_VERSION}"
    if not proto.graph.output:
        yield "no output"
    missing = all(shorten_domain(o.domain) for o in proto.opset_import)
    if (
        missing
        and proto.ir_version >= _SAYS_OPSET
        and not all(shorten_domain(n.domain) for n in proto.graph.node)
    ):
        yield "no opset of the standard operators (opset_import)"
    for opset in proto.opset_import:
        if not shorten_domain(opset.domain) and not 1 <= opset.version <= newest:
            yield f"opset {opset.version}; the installed onnx knows 1 to {newest}"


def _faults(graph: GraphProto, *, outermost: bool) -> Iterator[str]:
    """What ONNX's checker lets pass."""
    for info in (*graph.input, *graph.output):
        if info.type.HasField("tensor_type") and not info.type.tensor_type.elem_type:
            yield f"{info.name} has a type without elements"
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < -1:
                yield f"input {info.name} has a dimension of {dim.dim_value}"
    held = [t.name for t in graph.initializer]
    if len(set(held)) < len(held):
        yield "two initialisers of one name"
    for tensor in graph.initializer:
        yield from _of_tensor(tensor, external=outermost)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        names = [a.name for a in node.attribute]
        if len(set(names)) < len(names):
            yield f"{node.op_type} {node.name} has an attribute twice"
        if node.op_type in _RECURRENT and not node.domain:
            hidden = next((a.i for a in node.attribute if a.name == "hidden_size"), 0)
            if hidden < 1:
                yield f"{node.op_type} {node.name} has the hidden_size {hidden}"
        for a in node.attribute:
            yield from _of_attribute(a, node)


def _of_attribute(a: AttributeProto, node: onnx.NodeProto) -> Iterator[str]:
    if (node.op_type, a.name) == ("Einsum", "equation") and not _EQUATION.fullmatch(a.s):
        yield f"Einsum {node.name} has the equation {a.s!r}"
    for tensor in (a.t, *a.tensors):
        yield from _of_tensor(tensor, external=False)
    for inner in (a.g, *a.graphs):
        yield from _faults(inner, outermost=False)
    if not a.ref_attr_name and a.type == AttributeProto.UNDEFINED:
        yield f"attribute {a.name} of {node.op_type} {node.name} has no type"


def _of_tensor(tensor: TensorProto, *, external: bool) -> Iterator[str]:
    if tensor.data_type == TensorProto.UNDEFINED and tensor.ByteSize():
        yield f"tensor {tensor.name} has no element type"
    if any(d < 0 for d in tensor.dims) or math.prod(tensor.dims) > _MOST:
        yield f"tensor {tensor.name} has the shape {list(tensor.dims)}"
    if tensor.data_location == TensorProto.EXTERNAL and not external:
        yield f"tensor {tensor.name}, which is no initialiser of the model, has external data"


def _by_onnx(proto: ModelProto) -> str | None:
    """What the checker, or inference in strict mode, finds; None if nothing."""
    try:
        lean = _lean(proto)
        shaped = deepcopy(lean)
        for info in (*shaped.graph.input, *shaped.graph.output):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.shape.SetInParent()  # the checker wants one, engines do not
    except ValueError as error:
        return f"a name or a type in it is malformed: {first_line(error)}"
    called = [n.name for n in lean.graph.node if n.name]
    if len(set(called)) < len(called) and not _loads(lean):
        return "two nodes of one name"
    try:
        onnx.checker.check_model(shaped)
        onnx.shape_inference.infer_shapes(lean, check_type=True, strict_mode=True)
    except ENGINE_ERRORS as error:
        return None if _loads(lean) else first_line(error)
    text = _refusal(lean) if any(shorten_domain(n.domain) for n in lean.graph.node) else ""
    return text if "Type Error" in text else None


def _loads(lean: ModelProto) -> bool:
    """Whether onnxruntime takes a model; ONNX's inference has faults of its own."""
    return not _refusal(lean)


def _refusal(lean: ModelProto) -> str:
    """What onnxruntime says against a model: it alone knows the types of its own operators."""
    lean.ir_version = min(lean.ir_version, LARGEST_IR_VERSION)
    try:
        ort_session(lean.SerializeToString())
    except engine_errors() as error:
        return first_line(error)
    return ""


def _lean(proto: ModelProto) -> ModelProto:
    """A copy without large tensors and without declared shapes of what nodes yield."""
    lean = ModelProto(ir_version=proto.ir_version)
    lean.opset_import.extend(proto.opset_import)
    lean.functions.extend(proto.functions)
    graph, old = lean.graph, proto.graph
    graph.name = old.name or "graph"
    graph.node.extend(old.node)
    graph.input.extend(old.input)
    graph.sparse_initializer.extend(old.sparse_initializer)
    have = {i.name for i in old.input}
    for tensor in old.initializer:
        if tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() <= LARGEST_SEEN:
            graph.initializer.append(tensor)
        elif tensor.name not in have:
            kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(kind)
    for infos, kept in ((old.output, graph.output), (old.value_info, graph.value_info)):
        for info in infos:
            copy = kept.add()
            copy.CopyFrom(info)
            if info.type.HasField("tensor_type"):
                copy.type.tensor_type.ClearField("shape")
    return lean
