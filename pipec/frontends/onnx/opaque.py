"""The last resort: a node without lowering as one ``pipec::onnx`` node, run by an ONNX engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import AttributeProto, NodeProto
from torch import Tensor

from pipec.frontends.onnx.context import Context
from pipec.frontends.onnx.mini import first_line, named_inputs, one_node, output_types, type_proto
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value, torch_dtype
from pipec.frontends.onnx.ways import Way
from pipec.graph.opaque import check_engine, engine_errors, output_spec, register_payload


@dataclass(frozen=True)
class Opaque:
    """How a node is run by an engine.

    Attributes:
        reads: Names of the traced inputs, in the payload's order.
        key: Key of the payload.
        way: The engine.
        outputs: Types of the present outputs, as `pipec.graph.opaque.output_spec` writes them.
    """

    reads: tuple[str, ...]
    key: str
    way: Way
    outputs: str

    def __call__(self, node: NodeProto, values: Sequence[Value]) -> tuple[Value, ...]:
        """Put the op into the trace; outputs at their positions, None where absent."""
        inputs = named_inputs(node, values)
        found = iter(
            torch.ops.pipec.onnx(
                [inputs[n] for n in self.reads], self.key, self.way.value, self.outputs
            )
        )
        return tuple(next(found) if name else None for name in node.output)


def make_opaque(ctx: Context, values: Sequence[Value], ways: frozenset[Way]) -> Opaque:
    """Wrap a node for the best engine that can run it.

    Raises:
        Refused: Its output shapes are not static, a type has no tensor, or no engine knows the op.
    """
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in ctx.node.attribute):
        raise Refused("a node with a subgraph cannot stand alone")
    inputs = named_inputs(ctx.node, values)
    if any(isinstance(v, list) for v in inputs.values()):
        raise Refused("a sequence cannot enter an opaque node")
    traced = {
        n: onnx.ValueInfoProto(name=n, type=type_proto(v))
        for n, v in inputs.items()
        if isinstance(v, Tensor)
    }
    constants = {n: v for n, v in inputs.items() if isinstance(v, np.ndarray)}
    present = [onnx.ValueInfoProto(name=o) for o in ctx.node.output if o]
    model = one_node(ctx.node, ctx.frame, traced, present, constants)
    types = [t for t in output_types(ctx.node, model) if t is not None]
    spec = output_spec([(torch_dtype(t.dtype), t.shape) for t in types])
    for info, found in zip(model.graph.output, types, strict=True):
        info.type.CopyFrom(onnx.helper.make_tensor_type_proto(found.dtype, found.shape))
    model.graph.name = f"{ctx.node.op_type} {ctx.label}"
    key = register_payload(model.SerializeToString(deterministic=True))
    return Opaque(tuple(traced), key, _engine(key, ways), spec)


def _engine(key: str, ways: frozenset[Way]) -> Way:
    reasons = []
    for way in (Way.ORT, Way.REFERENCE):
        if way not in ways:
            continue
        try:
            check_engine(key, way.value)
        except engine_errors() as error:
            reasons.append(f"{way.value}: {first_line(error)}")
        else:
            return way
    raise Refused("no engine runs it: " + ("; ".join(reasons) or "none is allowed"))
