"""Which known values are weights: what stands in the weight slot of an op, under its own name."""

import re

import numpy as np
import onnx

from pipec.frontends.onnx.context import LOWERINGS, Context
from pipec.frontends.onnx.frame import shorten_domain
from pipec.frontends.onnx.reader import ModelFile
from pipec.frontends.onnx.values import TORCH_OF_ONNX, Value, is_known
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

_FIXED: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
_FIXED |= {"SoftmaxCrossEntropyLoss": (2,), "NegativeLogLikelihoodLoss": (2,)}
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"


def promote(ctx: Context, values: list[Value]) -> list[Value]:
    """The node's inputs with known weights turned into parameters and statistics into buffers.

    Old exporters keep weights in Constant and ConstantOfShape nodes. A value becomes a weight at
    the node that uses it as one, after what came before (a reshape, say) was folded. Values of a
    node whose inputs are all known stay as they are.
    """
    op = ctx.node.op_type
    if shorten_domain(ctx.node.domain) or op not in _FIXED | _WEIGHTS | _VECTORS:
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
    if k in _FIXED.get(op, ()):
        return InputKind.BUFFER
    if k in _WEIGHTS.get(op, ()):
        return InputKind.PARAMETER
    is_vector = value.size > 1 and max(value.shape) == value.size
    return InputKind.PARAMETER if k in _VECTORS.get(op, ()) and is_vector else None


def kinds_of(model: ModelFile) -> dict[str, InputKind]:
    """Initialisers that are weights: parameters are trained, buffers are not.

    What `torch.onnx` notes of the module counts, also of what it folded. Where it notes nothing,
    tensors of floats of rank 1 or more are parameters, but for fixed statistics.
    """
    graph, found = model.proto.graph, dict[str, InputKind]()
    signature = "".join(p.value for p in graph.metadata_props if p.key == _SIGNATURE)
    kinds = re.findall(r": (PARAMETER|BUFFER|CONSTANT_TENSOR) target='(.*?)'", signature)
    own = {name: kind == "PARAMETER" for kind, name in kinds}
    notes = [(v.name, p) for v in graph.value_info for p in v.metadata_props if own]
    made = {name: re.findall("'(.*?)'", p.value) for name, p in notes if p.key == _FOLDED}
    trained = own | {name: any(map(own.get, names)) for name, names in made.items()}
    for node in graph.node:
        fixed = () if shorten_domain(node.domain) else _FIXED.get(node.op_type, ())
        trained.update({name: False for k, name in enumerate(node.input) if k in fixed})
    for name, proto in model.initializers.items():
        dtype = TORCH_OF_ONNX.get(proto.data_type)
        if dtype and dtype.is_floating_point and (proto.dims or trained.get(name)):
            found[name] = InputKind.PARAMETER if trained.get(name, True) else InputKind.BUFFER
    return found


def find_pinned(graph: onnx.GraphProto) -> frozenset[str]:
    """Names that some lowering needs as numbers (scales of a Resize, ratio of a Dropout)."""
    return frozenset(
        name
        for node in graph.node
        if (entry := LOWERINGS.get((shorten_domain(node.domain), node.op_type)))
        for k, name in enumerate(node.input)
        if k in entry.known and name
    )
