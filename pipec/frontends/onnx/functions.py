"""Ops that are defined by other ops: model-local functions and the bodies in ONNX's own schemas."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from pipec.frontends.onnx.frame import Frame, shorten_domain
from pipec.frontends.onnx.mini import type_proto
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value

Attributes = Mapping[str, AttributeProto]


def body_of(node: NodeProto, frame: Frame, values: Sequence[Value]) -> FunctionProto:
    """The function that defines the node's op here, attributes bound to the node's.

    Raises:
        Refused: The op has no body.
    """
    local = frame.functions.get((node.domain, node.op_type, node.overload))
    if local is not None:
        return _bind_attributes(local, node, {a.name: a for a in local.attribute_proto})
    version = frame.version(node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, shorten_domain(node.domain))
    except onnx.defs.SchemaError as error:
        raise Refused(f"ONNX has no such op in opset {version}") from error
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    return _bind_attributes(_schema_body(schema, version, node, values), node, defaults)


def _schema_body(
    schema: Any, version: int, node: NodeProto, values: Sequence[Value]
) -> FunctionProto:
    if schema.has_context_dependent_function:
        types = [type_proto(v).SerializeToString() for v in values]
        versions = schema.context_dependent_function_opset_versions
        for v in sorted((v for v in versions if v <= version), reverse=True):
            body = FunctionProto()
            serialized = node.SerializeToString()
            body.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(v, serialized, types)
            )
            if body.node:
                return body
    for v in sorted((v for v in schema.function_opset_versions if v <= version), reverse=True):
        body = FunctionProto()
        body.ParseFromString(schema.get_function_with_opset_version(v))
        return body
    raise Refused("it has no function body")


def _bind_attributes(body: FunctionProto, node: NodeProto, defaults: Attributes) -> FunctionProto:
    """A copy of ``body`` in which references to attributes are replaced by their values."""
    given = {**defaults, **{a.name: a for a in node.attribute}}
    bound = FunctionProto()
    bound.CopyFrom(body)
    _bind(bound.node, given)
    return bound


def _bind(nodes: Sequence[NodeProto], given: Attributes) -> None:
    for node in nodes:
        kept = []
        for a in node.attribute:
            if not a.ref_attr_name:
                kept.append(a)
            elif a.ref_attr_name in given:
                value = AttributeProto()
                value.CopyFrom(given[a.ref_attr_name])
                value.name = a.name
                kept.append(value)
        for a in kept:
            for graph in (a.g, *a.graphs) if a.type in _GRAPHS else ():
                _bind(graph.node, given)
        del node.attribute[:]
        node.attribute.extend(kept)


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def inner_frame(body: FunctionProto, frame: Frame, values: Sequence[Value], path: str) -> Frame:
    """The scope in which a function's body runs: its formal inputs, its own opset imports."""
    padded = [*values, *([None] * (len(body.input) - len(values)))]
    opsets = {shorten_domain(o.domain): o.version for o in body.opset_import}
    env = dict(zip(body.input, padded, strict=False))
    return Frame(env, opsets or frame.opsets, frame.functions, path)
