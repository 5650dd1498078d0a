"""Models of one node, for shape inference, for the opaque op, and for folding.

Nodes whose inputs are all known are computed once, one at a time: by onnxruntime, or where that
cannot, or where whole numbers are computed as in every shape, by `onnx.reference`, which is faster.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pipec.errors import first_line
from pipec.frontends.onnx.frame import Frame
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Type, Value, leaves, type_of
from pipec.graph.arrays import Array
from pipec.graph.opaque import engine_errors, ort_session

LARGEST_IR_VERSION = 13
"""The newest file format that onnxruntime 1.31 reads; the format of one node never needs more."""

ENGINE_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(SystemError, TypeError, ValueError, onnx.checker.ValidationError),
    onnx.shape_inference.InferenceError,
)
"""What onnx and its reference evaluator raise on a node that they cannot handle."""


def one_node(
    node: NodeProto, frame: Frame, inputs: Mapping[str, Value], constants: Mapping[str, Array]
) -> onnx.ModelProto:
    """A model of one node, whose outputs have no types.

    Raises:
        Refused: A constant has a type that a file cannot hold.
    """
    graph = onnx.GraphProto(name="node")
    graph.node.append(node)
    graph.input.extend(ValueInfoProto(name=n, type=type_proto(v)) for n, v in inputs.items())
    graph.output.extend(ValueInfoProto(name=o) for o in node.output if o)
    for name, array in constants.items():
        try:
            graph.initializer.append(numpy_helper.from_array(array, name))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise Refused(f"its input {name} cannot be stored: {error}") from error
    opsets = [helper.make_opsetid(d, v) for d, v in sorted(frame.opsets.items())]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = LARGEST_IR_VERSION
    model.functions.extend(frame.functions.values())
    return model


def type_proto(value: Value) -> TypeProto:
    """The ONNX type of a value."""
    if isinstance(value, list):
        item = type_proto(value[0]) if value else helper.make_tensor_type_proto(1, None)
        return helper.make_sequence_type_proto(item)
    if value is None:
        return TypeProto()
    found = type_of(value)
    return helper.make_tensor_type_proto(found.dtype, found.shape)


def output_types(node: NodeProto, model: onnx.ModelProto) -> list[Type | None]:
    """Types of the node's outputs by ONNX shape inference; None for absent outputs.

    Raises:
        Refused: Inference fails, or leaves a type or dimension open.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except ENGINE_ERRORS as error:
        raise Refused(f"its output shapes cannot be inferred: {first_line(error)}") from error
    found = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
    return [_type(name, found) if name else None for name in node.output]


def _type(name: str, found: Mapping[str, ValueInfoProto]) -> Type:
    info = found.get(name)
    if info is None or not info.type.HasField("tensor_type"):
        raise Refused(f"output {name} has no type by ONNX shape inference")
    tensor = info.type.tensor_type
    if tensor.elem_type == TensorProto.UNDEFINED or not tensor.HasField("shape"):
        raise Refused(f"output {name} has no shape by ONNX shape inference")
    if any(not d.HasField("dim_value") or d.dim_value < 0 for d in tensor.shape.dim):
        raise Refused(f"the shape of output {name} depends on data")
    return Type(tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim))


def name_inputs(node: NodeProto, values: Sequence[Value]) -> dict[str, Value]:
    """Input name to value, absent inputs left out."""
    return {n: v for n, v in zip(node.input, values, strict=False) if n and v is not None}


MOST_ELEMENTS = 2**24
"""Elements that folding may read or make; larger known values stay nodes of the graph."""

SLOW_ELEMENTS = 2**12
"""Elements beyond which an op of `_SLOW` is not folded: the reference loops in Python."""

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
    | {"Bernoulli"}
)
"""Ops that yield other numbers each time."""
_SLOW = frozenset(
    {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "Col2Im", "GridSample"}
    | {"MaxPool", "AveragePool", "LpPool", "LRN", "RoiAlign", "MaxRoiPool", "Attention"}
    | {"LSTM", "GRU", "RNN", "Resize", "Upsample", "NonMaxSuppression", "DepthToSpace"}
)
_GROWING = frozenset(["Expand", "Tile", "Resize", "Upsample", "Pad", "OneHot", "AffineGrid"])


def fold(node: NodeProto, frame: Frame, values: Sequence[Value]) -> tuple[Value, ...]:
    """The outputs of a node whose inputs are all known.

    Raises:
        Refused: It is too large, or no engine can run it.
    """
    _check_size(node, frame, values)
    inputs = name_inputs(node, values)
    model = one_node(node, frame, inputs, {})
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = _run(model, inputs)
    except ENGINE_ERRORS as error:
        raise Refused(f"onnx.reference cannot run it: {first_line(error)}") from error
    results = dict(zip(filter(None, node.output), map(_plain, found), strict=True))
    return tuple(results.get(o) for o in node.output)


def _run(model: onnx.ModelProto, inputs: dict[str, Value]) -> Any:
    """Its outputs; `onnx.reference` leaves attributes and old opsets out."""
    kinds = {np.asarray(part).dtype.kind for v in inputs.values() for part in leaves(v)}
    if "f" in kinds or model.graph.node[0].op_type in {*_SLOW, "ReduceSumSquare", "Slice"}:
        with suppress(*engine_errors()):
            session = ort_session(model.SerializeToString())
            if not any(re.search("bfloat|float8|t[24]", o.type) for o in session.get_outputs()):
                return session.run(None, inputs)  # numpy has no such types: it would give bytes
    return ReferenceEvaluator(model).run(None, inputs)


def _plain(value: object) -> Value:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if value is None else np.asarray(value)


def _check_size(node: NodeProto, frame: Frame, values: Sequence[Value]) -> None:
    elements = sum(part.size for v in values for part in leaves(v) if isinstance(part, np.ndarray))
    limit = SLOW_ELEMENTS if node.op_type in _SLOW else MOST_ELEMENTS
    if elements > limit:
        raise Refused(f"it reads {elements} known elements; folding stops at {limit}")
    made = 0
    if node.op_type == "Range":
        made = _range_length(values)
    elif node.op_type in _GROWING:
        made = _elements_made(node, frame, values)
    if made > limit:
        raise Refused(f"it makes {made} known elements; folding stops at {limit}")


def _range_length(values: Sequence[Value]) -> int:
    start, limit, delta = (float(np.asarray(v).reshape(-1)[0]) for v in values[:3])
    length = (limit - start) / delta if delta else 0.0
    return max(0, int(np.ceil(length))) if np.isfinite(length) else MOST_ELEMENTS + 1


def _elements_made(node: NodeProto, frame: Frame, values: Sequence[Value]) -> int:
    constants = {n: v for n, v in name_inputs(node, values).items() if isinstance(v, np.ndarray)}
    model = one_node(node, frame, constants, constants)
    try:
        return sum(math.prod(t.shape) for t in output_types(node, model) if t)
    except Refused:
        return 0  # inference fails on strings and old forms; the reference then says more
