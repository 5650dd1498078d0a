"""Nodes whose inputs are all known: computed once, by `onnx.reference`, one node at a time."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator

from pipec.errors import first_line
from pipec.frontends.onnx.frame import Frame, shorten_domain
from pipec.frontends.onnx.mini import (
    ENGINE_ERRORS,
    name_inputs,
    one_node,
    output_types,
    type_proto,
)
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value, leaves

MOST_ELEMENTS = 2**24
"""Elements that folding may read or make; larger known values stay nodes of the graph."""

SLOW_ELEMENTS = 2**12
"""Elements beyond which an op of `_SLOW` is not folded: the reference loops in Python."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
    | {"Bernoulli"}
)
_SLOW = frozenset(
    {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "Col2Im", "GridSample"}
    | {"MaxPool", "AveragePool", "LpPool", "LRN", "RoiAlign", "MaxRoiPool", "Attention"}
    | {"LSTM", "GRU", "RNN", "Resize", "Upsample", "NonMaxSuppression", "DepthToSpace"}
)
_GROWING = frozenset(["Expand", "Tile", "Resize", "Upsample", "Pad", "OneHot", "AffineGrid"])


def is_deterministic(node: NodeProto) -> bool:
    """Whether the node yields the same outputs each time it is run."""
    return shorten_domain(node.domain) != "" or node.op_type not in _RANDOM


def fold(node: NodeProto, frame: Frame, values: Sequence[Value]) -> tuple[Value, ...]:
    """The outputs of a node whose inputs are all known.

    Raises:
        Refused: It is too large, or the reference evaluator cannot run it.
    """
    _check_size(node, frame, values)
    inputs = name_inputs(node, values)
    infos = {n: onnx.ValueInfoProto(name=n, type=type_proto(v)) for n, v in inputs.items()}
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    model = one_node(node, frame, infos, outputs, {})
    found = run_reference(model, inputs)
    results = dict(zip((o.name for o in outputs), found, strict=True))
    return tuple(results.get(o) for o in node.output)


def run_reference(model: onnx.ModelProto, inputs: dict[str, Value]) -> list[Value]:
    """Outputs of a model by the reference evaluator.

    Raises:
        Refused: It cannot run the model.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, inputs)
    except ENGINE_ERRORS as error:
        raise Refused(f"onnx.reference cannot run it: {first_line(error)}") from error
    return [_plain(v) for v in found]


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
    infos = {n: onnx.ValueInfoProto(name=n, type=type_proto(v)) for n, v in constants.items()}
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    model = one_node(node, frame, infos, outputs, constants)
    try:
        return sum(math.prod(t.shape) for t in output_types(node, model) if t)
    except Refused:
        return 0  # inference fails on strings and old forms; the reference then says more
