"""The last resort: a node without lowering as one ``pipec::onnx`` node, run by an ONNX engine."""

import warnings
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import onnx
import torch
from torch import Tensor

from pipec.errors import first_line
from pipec.frontends.onnx.context import Context
from pipec.frontends.onnx.frame import free_names, shorten_domain
from pipec.frontends.onnx.mini import name_inputs, one_node, output_types, type_proto
from pipec.frontends.onnx.refusals import Refused, Way
from pipec.frontends.onnx.values import Type, Value, numpy_dtype, torch_dtype, type_of
from pipec.graph.arrays import Array
from pipec.graph.opaque import engine_errors, engine_of, ort_session, register_payload
from pipec.graph.tensor_type import types_text

_LARGEST_TRIAL = 2**24
"""Elements that the inputs of a trial may have in all."""


def _inputs(ctx: Context, values: Sequence[Value]) -> dict[str, Value]:
    """What the node reads by name: its inputs, and what its subgraphs read from outside."""
    inputs = name_inputs(ctx.node, values)
    for name in free_names(ctx.node):
        if name not in ctx.frame.env:
            raise Refused(f"a subgraph reads {name!r}, which nothing before it yields")
        inputs.setdefault(name, ctx.frame.env[name])
    return inputs


def run_opaque(ctx: Context, values: Sequence[Value]) -> tuple[tuple[Value, ...], Way]:
    """Wrap a node for the best engine that can run it.

    Returns:
        Its outputs at their positions, None where absent; and the engine.

    Raises:
        Refused: Its output shapes are not static, a type has no tensor, or no engine knows the op.
    """
    inputs = _inputs(ctx, values)
    if any(isinstance(v, list) for v in inputs.values()):
        raise Refused("a sequence cannot enter an opaque node")
    traced = {n: v for n, v in inputs.items() if isinstance(v, Tensor)}
    constants = {n: v for n, v in inputs.items() if isinstance(v, np.ndarray)}
    model = one_node(ctx.node, ctx.frame, traced, constants)
    if ctx.node.op_type == "Loop" and not shorten_domain(ctx.node.domain):
        types = _loop_types(ctx, model, values[2:])
    else:
        types = _types(ctx, model)
    spec = types_text(
        torch.empty(t.shape, dtype=torch_dtype(t.dtype), device="meta") for t in types
    )
    for info, found in zip(model.graph.output, types, strict=True):
        info.type.CopyFrom(onnx.helper.make_tensor_type_proto(found.dtype, found.shape))
    model.graph.name = f"{ctx.node.op_type} {ctx.label}"
    key = register_payload(model.SerializeToString(deterministic=True))
    way = _engine(key)
    found = iter(torch.ops.pipec.onnx([*traced.values()], key, way.value, spec))
    return tuple(next(found) if name else None for name in ctx.node.output), way


def _types(ctx: Context, model: onnx.ModelProto) -> list[Type]:
    """Types of the node's outputs: by ONNX shape inference where the op has one.

    Most of ``ai.onnx.ml`` has a schema without one; what its ops yield never depends on data.
    """
    if _has_schema(ctx):
        try:
            return [t for t in output_types(ctx.node, model) if t is not None]
        except Refused:
            if ctx.node.domain != "ai.onnx.ml":
                raise
    return _types_by_running(model)


def _loop_types(ctx: Context, unit: onnx.ModelProto, carried: Sequence[Value]) -> list[Type]:
    """Types of a Loop's outputs: those of the carried values, if one iteration keeps them."""
    body: onnx.GraphProto = deepcopy(ctx.attr("body"))
    if any(ctx.node.output[len(carried) :]):
        raise Refused("the number of rows that it stacks depends on data")
    before = [type_proto(v) for v in carried]
    for info, kind in zip(body.input[2:], before, strict=True):
        info.type.CopyFrom(kind)
    body.input.extend(i for i in unit.graph.input if i.name in set(free_names(ctx.node)))
    body.initializer.extend(unit.graph.initializer)
    for info in body.output:
        info.ClearField("type")
    inner = onnx.ModelProto(graph=body, ir_version=unit.ir_version)
    inner.opset_import.extend(unit.opset_import)
    inner.functions.extend(unit.functions)
    last = onnx.NodeProto(output=[o.name for o in body.output[1 : 1 + len(carried)]])
    after = output_types(last, inner)
    if after != [type_of(v) for v in carried if isinstance(v, Tensor | np.ndarray)]:
        raise Refused("an iteration changes the shape of what it carries")
    return [t for name, t in zip(ctx.node.output, after, strict=False) if name and t is not None]


def _has_schema(ctx: Context) -> bool:
    """Whether ONNX itself, or the model, defines the op: then its shapes can be inferred."""
    node, frame = ctx.node, ctx.frame
    if (node.domain, node.op_type, node.overload) in frame.functions:
        return True
    return onnx.defs.has(node.op_type, frame.version(node.domain), shorten_domain(node.domain))


def _engine(key: str) -> Way:
    reasons = []
    for way in (Way.ORT, Way.REFERENCE):
        try:
            engine_of(key, way.value)
        except engine_errors() as error:
            reasons.append(f"{way.value}: {first_line(error)}")
        else:
            return way
    raise Refused("no engine runs it: " + "; ".join(reasons))


def _types_by_running(model: onnx.ModelProto) -> list[Type]:
    """Types of the outputs of a model of one node, learnt by running it on two kinds of inputs."""
    try:
        session = ort_session(model.SerializeToString())
        names = [o.name for o in session.get_outputs()]
        runs = []
        for fill in (0, 1):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                runs.append(session.run(names, {i.name: _fill(i, fill) for i in model.graph.input}))
    except engine_errors() as error:
        raise Refused(f"onnxruntime does not run it: {first_line(error)}") from error
    if not all(isinstance(a, np.ndarray) for a in runs[0]):
        raise Refused("it yields maps or lists; skl2onnx writes tensors with {'zipmap': False}")
    zeros, ones = ([type_of(np.asarray(a)) for a in run] for run in runs)
    if zeros != ones:
        raise Refused("the shapes of its outputs depend on data")
    return zeros


def _fill(info: onnx.ValueInfoProto, value: int) -> Array:
    tensor = info.type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    if np.prod(shape, dtype=np.float64) > _LARGEST_TRIAL:
        raise Refused(f"its input {info.name} is too large to try it")
    return np.full(shape, value, numpy_dtype(tensor.elem_type))
