"""Runs ONNX nodes one after the other, each by the best way that applies.

```text
structural ─► all inputs known? fold ─► native lowering ─► function body ─► opaque (ort, reference)
```

What ops are run on fake tensors on the way, a `Recorder` writes down.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import AttributeProto, FunctionProto, NodeProto
from torch import Tensor

from pipec.frontends.onnx import control_flow
from pipec.frontends.onnx.context import LOWERINGS, Context
from pipec.frontends.onnx.frame import Frame, shorten_domain
from pipec.frontends.onnx.lowerings import LOADED
from pipec.frontends.onnx.mini import RANDOM, fold, type_proto
from pipec.frontends.onnx.opaque import run_opaque
from pipec.frontends.onnx.recorder import Recorder
from pipec.frontends.onnx.refusals import Demand, NeedKnown, Refused, Way
from pipec.frontends.onnx.slots import promote
from pipec.frontends.onnx.structural import STRUCTURAL
from pipec.frontends.onnx.values import Value, ints, is_known, leaves, torch_dtype, type_of
from pipec.frontends.onnx.weights import Weights
from pipec.graph.arrays import Array

REGISTERED = (control_flow, *LOADED)
"""The modules whose import fills the tables of structural ops and lowerings."""

UNITS = frozenset({"If", "Loop", "Scan"})
"""Control flow that stays one opaque node where it hangs on a value of run time."""

MOST_STEPS = 500_000
"""Nodes that one evaluation may run, unrolled loops included."""


class Interpreter:
    """Runs nodes; see the module's docstring.

    Args:
        weights: Where tensors of the model are registered and looked up.
        recorder: Writes down what is run.
        pinned: Names that must stay known, though they look like weights.
        bindable: Graph inputs whose values could be had at compile time.
        sized: Known values of the model's graph that depend on open sizes.
    """

    def __init__(
        self,
        weights: Weights,
        recorder: Recorder,
        *,
        pinned: frozenset[str] = frozenset(),
        bindable: frozenset[str] = frozenset(),
        sized: frozenset[str] = frozenset(),
    ) -> None:
        self.weights, self.recorder = weights, recorder
        self.pinned, self.bindable, self.sized = pinned, bindable, sized
        self._makers: dict[str, Context] = {}
        self._lifted: dict[str, Tensor | None] = {}
        self.used: set[Way] = set()
        # Tensors stay alive here, so that an id names one tensor for as long as the run lasts.
        self._history: dict[int, tuple[Tensor, tuple[Tensor, ...], str]] = {}
        self._steps = 0

    def bind(
        self, frame: Frame, name: str, value: Value, reads: Iterable[Value] = (), source: str = ""
    ) -> None:
        """Give ``value`` to a name; ``source`` is the graph input or initialiser that it is."""
        frame.env[name] = value
        self.weights.call(f"{name}@{frame.path}" if frame.path else name, value)
        for part in leaves(value):
            if isinstance(part, Tensor) and id(part) not in self._history:
                parents = tuple(p for v in reads for p in leaves(v) if isinstance(p, Tensor))
                self._history[id(part)] = (part, parents, source)

    def run(self, frame: Frame, nodes: Sequence[NodeProto]) -> None:
        """Run all nodes of a scope in order.

        Raises:
            Refused: A node cannot be run.
        """
        for k, node in enumerate(nodes):
            self.step(frame, node, f"{frame.path}/{k}" if frame.path else str(k))

    def step(self, frame: Frame, node: NodeProto, path: str) -> None:
        """Run one node and bind its outputs.

        Raises:
            Refused: No way applies.
            Demand: Names must be known from the beginning.
        """
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Refused(f"more than {MOST_STEPS} nodes after unrolling")
        if not frame.path:
            self.recorder.index = int(path)
            if not self.sized.isdisjoint(node.output):
                self._makers.update(dict.fromkeys(node.output, Context(node, frame, path, self)))
        values = [self._read(frame, name) for name in node.input]
        ctx = Context(node, frame, path, self)
        outputs = self._outputs(ctx, values)
        for name, value in zip(node.output, outputs, strict=False):
            if name:
                self.bind(frame, name, value, values)

    def lift(self, array: Array) -> Tensor | None:
        """What computes a known value that depends on open sizes; None for other values.

        What no lowering computes stays a constant.
        """
        name = self.weights.name_of(array)
        if name is None or name not in self._makers:
            return None
        if name not in self._lifted:
            ctx, index = self._makers[name], self.recorder.index
            self._lifted.update(dict.fromkeys(ctx.node.output))
            self.recorder.index = int(ctx.path)
            try:
                found = self._compute(ctx, array)
            except Refused:
                return None
            finally:
                self.recorder.index = index
            self._lifted.update(zip(ctx.node.output, found, strict=False))
        return self._lifted[name]

    def _compute(self, ctx: Context, array: Array) -> tuple[Tensor, ...]:
        values = [self._read(ctx.frame, name) for name in ctx.node.input]
        op = "" if shorten_domain(ctx.node.domain) else ctx.node.op_type
        if op == "ConstantOfShape":
            dtype = torch_dtype(type_of(array).dtype)
            return (torch.full(array.shape, array.reshape(-1)[0].item(), dtype=dtype),)
        if op in STRUCTURAL:
            numbers = [torch.full((1,), n) for n in ints(array)]
            return (torch.cat(numbers) if array.ndim else numbers[0].reshape(()),)
        found = self._native(ctx, values)
        if not all(isinstance(t, Tensor) for t in found):
            raise Refused("it yields no tensor")
        return cast("tuple[Tensor, ...]", found)

    def subgraph(
        self, ctx: Context, graph: onnx.GraphProto, inputs: list[Value], tag: str
    ) -> list[Value]:
        """Run a subgraph of the node in its scope.

        Returns:
            Values of its outputs.
        """
        frame = ctx.frame.inner(f"{ctx.path}/{tag}")
        for proto in graph.initializer:
            self.bind(frame, proto.name, onnx.numpy_helper.to_array(proto))
        frame.env.update(zip((i.name for i in graph.input), inputs, strict=True))
        self.run(frame, graph.node)
        return [self._read(frame, o.name) for o in graph.output]

    def sources(self, values: Iterable[Value]) -> frozenset[str]:
        """Graph inputs and initialisers that some values were computed from."""
        todo = [id(p) for v in values for p in leaves(v)]
        seen, found = set[int](), set[str]()
        while todo:
            key = todo.pop()
            if key in seen or key not in self._history:
                continue
            seen.add(key)
            _, parents, source = self._history[key]
            found.update({source} - {""})
            todo.extend(map(id, parents))
        return frozenset(found)

    def _read(self, frame: Frame, name: str) -> Value:
        if not name:
            return None
        if name not in frame.env:
            raise Refused(f"it reads {name!r}, which nothing before it yields")
        return frame.env[name]

    def _outputs(self, ctx: Context, values: list[Value]) -> tuple[Value, ...]:
        values = promote(ctx, values)
        reasons = []
        for way in self._candidates(ctx, values):
            try:
                return self._follow(way, ctx, values)
            except Refused as refusal:
                if refusal.final:
                    raise
                if isinstance(refusal, NeedKnown):
                    self._demand(refusal, values)
                reasons.append(f"{way}: {refusal.reason}")
        raise Refused("; ".join(reasons))

    def _candidates(self, ctx: Context, values: list[Value]) -> list[Way]:
        if shorten_domain(ctx.node.domain) == "" and ctx.node.op_type in STRUCTURAL:
            return [Way.STRUCTURAL, *([Way.ORT] if ctx.node.op_type in UNITS else [])]
        ways = [Way.NATIVE, Way.FUNCTION]
        if all(map(is_known, values)) and ctx.node.op_type not in RANDOM:
            ways.insert(_is_table(ctx.node, values), Way.FOLDED)
        return [*ways, Way.ORT]

    def _follow(self, way: Way, ctx: Context, values: list[Value]) -> tuple[Value, ...]:
        if way is Way.STRUCTURAL:
            found = STRUCTURAL[ctx.node.op_type](ctx, *values)
            outputs = found if isinstance(found, tuple) else (found,)
        elif way is Way.FOLDED:
            outputs = fold(ctx.node, ctx.frame, values)
        elif way is Way.NATIVE:
            outputs = self._native(ctx, values)
        elif way is Way.FUNCTION:
            outputs = self._body(ctx, values)
        else:
            outputs, way = run_opaque(ctx, values)
        self.used.add(way)
        return outputs

    def _native(self, ctx: Context, values: list[Value]) -> tuple[Value, ...]:
        entry = LOWERINGS.get((shorten_domain(ctx.node.domain), ctx.node.op_type))
        if entry is None:
            raise Refused("there is no lowering")
        return entry(ctx, values)

    def _body(self, ctx: Context, values: list[Value]) -> tuple[Value, ...]:
        body = body_of(ctx.node, ctx.frame, values)
        frame = inner_frame(body, ctx.frame, values, ctx.path)
        self.run(frame, body.node)
        return tuple(
            self._read(frame, name) if ctx.wants(k) else None for k, name in enumerate(body.output)
        )

    def _demand(self, need: NeedKnown, values: list[Value]) -> None:
        """Ask for a restart where what must be known follows from initialisers and small inputs."""
        needed = need.value if isinstance(need.value, Tensor) else None
        found = self.sources([needed]) or self.sources(values)
        if found and found <= self.bindable:
            raise Demand(found)


def _is_table(node: NodeProto, values: Sequence[Value]) -> bool:
    """Whether a node spreads out a table of integers: that stays small if the node stays."""
    first = values[0] if node.op_type == "DequantizeLinear" else None
    return isinstance(first, np.ndarray) and first.size > 1


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
    body: FunctionProto
    if schema.has_context_dependent_function:
        types = [type_proto(v).SerializeToString() for v in values]
        written = schema.get_context_dependent_function_with_opset_version
        versions = schema.context_dependent_function_opset_versions
        for v in sorted((v for v in versions if v <= version), reverse=True):
            body = FunctionProto.FromString(written(v, node.SerializeToString(), types))
            if body.node:
                return body
    for v in sorted((v for v in schema.function_opset_versions if v <= version), reverse=True):
        body = FunctionProto.FromString(schema.get_function_with_opset_version(v))
        return body
    raise Refused("it has no function body")


def _bind_attributes(body: FunctionProto, node: NodeProto, defaults: Attributes) -> FunctionProto:
    """A copy of ``body`` in which references to attributes are replaced by their values."""
    given = {**defaults, **{a.name: a for a in node.attribute}}
    bound = deepcopy(body)
    _bind(bound.node, given)
    return bound


def _bind(nodes: Sequence[NodeProto], given: Attributes) -> None:
    for node in nodes:
        kept = [deepcopy(given.get(a.ref_attr_name, a)) for a in node.attribute]
        for a, value in zip(node.attribute, kept, strict=True):
            value.name = a.name
        kept = [a for a in kept if not a.ref_attr_name]
        for a in kept:
            for graph in (a.g, *a.graphs):
                _bind(graph.node, given)
        del node.attribute[:]
        node.attribute.extend(kept)


def inner_frame(body: FunctionProto, frame: Frame, values: Sequence[Value], path: str) -> Frame:
    """The scope in which a function's body runs: its formal inputs, its own opset imports."""
    padded = [*values, *([None] * (len(body.input) - len(values)))]
    opsets = {shorten_domain(o.domain): o.version for o in body.opset_import}
    env = dict(zip(body.input, padded, strict=False))
    return Frame(env, opsets or frame.opsets, frame.functions, path)
