"""Models of one node, for folding, for shape inference and for the opaque op."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from pipec.errors import first_line
from pipec.frontends.onnx.frame import Frame
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Type, Value, type_of
from pipec.graph.arrays import Array

LARGEST_IR_VERSION = 13
"""The newest file format that onnxruntime 1.31 reads; the format of one node never needs more."""

ENGINE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)
"""What onnx and its reference evaluator raise on a node that they cannot handle."""


def one_node(
    node: NodeProto,
    frame: Frame,
    inputs: Mapping[str, ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        node: The node; copied.
        frame: The scope that it stands in, for opset versions and functions.
        inputs: Types of what it reads at run time.
        outputs: Types of what it yields.
        constants: What it reads that is known; becomes initialisers.

    Raises:
        Refused: A constant has a type that a file cannot hold.
    """
    graph = onnx.GraphProto(name="node")
    graph.node.append(node)
    graph.input.extend(inputs.values())
    graph.output.extend(outputs)
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
