"""Which known values are weights: what stands in the weight slot of an op, under its own name."""

import numpy as np
import onnx

from pipec.frontends.onnx.context import LOWERINGS, Context
from pipec.frontends.onnx.frame import shorten_domain
from pipec.frontends.onnx.values import Value, is_known
from pipec.graph.ir import InputKind

_WEIGHTS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "PRelu": (1,),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}
_VECTORS = {"Mul": (0, 1), "Add": (0, 1)}
"""Here a known vector is a per-channel scale or shift; a known matrix may be a mask or a table."""

_STATISTICS = {"BatchNormalization": (3, 4)}


def promote(ctx: Context, values: list[Value]) -> list[Value]:
    """The node's inputs with known weights turned into parameters and statistics into buffers.

    Old exporters keep weights in Constant and ConstantOfShape nodes. A value becomes a weight at
    the node that uses it as one, after what came before (a reshape, say) was folded. Values of a
    node whose inputs are all known stay as they are.
    """
    op = ctx.node.op_type
    if shorten_domain(ctx.node.domain) or op not in _STATISTICS | _WEIGHTS | _VECTORS:
        return values
    if all(map(is_known, values)):
        return values
    result, runner = list(values), ctx.runner
    for k, value in enumerate(values):
        kind = _kind(op, k, value)
        name = runner.weights.name_of(value) if isinstance(value, np.ndarray) else None
        free = name and name not in runner.pinned and name not in runner.sized
        if kind and name and free and isinstance(value, np.ndarray):
            result[k] = runner.weights.constant(name, value, kind)
    return result


def _kind(op: str, k: int, value: Value) -> InputKind | None:
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return None
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
        return None
    if k in _STATISTICS.get(op, ()):
        return InputKind.BUFFER
    if k in _WEIGHTS.get(op, ()):
        return InputKind.PARAMETER
    is_vector = value.size > 1 and max(value.shape) == value.size
    return InputKind.PARAMETER if k in _VECTORS.get(op, ()) and is_vector else None


def statistics(graph: onnx.GraphProto) -> frozenset[str]:
    """Names in the slots of fixed statistics: buffers, not parameters."""
    return frozenset(
        name
        for node in graph.node
        for k, name in enumerate(node.input)
        if k in _STATISTICS.get(node.op_type, ()) and not shorten_domain(node.domain)
    )


def find_pinned(graph: onnx.GraphProto) -> frozenset[str]:
    """Names that some lowering needs as numbers (scales of a Resize, ratio of a Dropout)."""
    return frozenset(
        name
        for node in graph.node
        if (entry := LOWERINGS.get((shorten_domain(node.domain), node.op_type)))
        for k, name in enumerate(node.input)
        if k in entry.known and name
    )
