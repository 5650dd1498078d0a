"""From a stage's graph to its network of layers."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import cast

from torch import fx

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.constants import shape_of
from pipec.backends.fpga.engines.network import (
    HANDLERS,
    Builder,
    MemoryPorts,
    NetPort,
    Network,
    UnsupportedError,
    Value,
)
from pipec.backends.fpga.engines.view import standard_order
from pipec.backends.fpga.lowering import (  # noqa: F401  (each registers its handlers)
    dense,
    elementwise,
    gathering,
    norms,
    pooling,
    products,
    shapes,
)
from pipec.backends.fpga.lowering.maps import pad_around
from pipec.backends.fpga.lowering.types import OwnTypes, set_types
from pipec.backends.fpga.lowering.written import decompose
from pipec.backends.fpga.numbers import Int8
from pipec.errors import BackendError
from pipec.graph.ir import Graph, InputKind, OutputKind, op_name, origin, tensor, tensors
from pipec.graph.quantised import QUANTISED

_HINT_QUANTISED = (
    "of quantised files, --precision int8 takes those that onnxruntime's quantize_static writes:"
    " 8 bits, one scale per activation, scales that are known at compile time"
)
_HINT_TRAINING = (
    "write the model or its loss with others (docs/fpga_training.md), or --target torch"
)


def lower(
    graph: Graph,
    precision: str = "float32",
    orders: Mapping[str, tuple[int, ...]] | None = None,
    pace: int = 0,
    memory: MemoryPorts | None = None,
    prefix: str = "",
    formats: Mapping[str, Int8] | None = None,
    own: OwnTypes = (),
    types: Mapping[str, str] | None = None,
) -> Network:
    """The network of layers that computes a stage.

    Args:
        graph: Compute graph of the stage (no communication nodes).
        precision: Stream type of floating-point values.
        orders: Axis order in which values arrive, by input name; the standard order (channels
            last) where nothing is said. Pass the `NetPort.order` of the producer's outputs.
        pace: Cycles per frame that are aimed at, if known; see `Builder.pace`.
        memory: Memory ports of the board; one of any size if not given.
        prefix: What the names of all layers, edges and ports begin with.
        formats: In which the model writes values that arrive, by input name.
        own: Types of layers that compute in another one than ``precision``.
        types: Type in which values arrive, by input name, where it is another one.

    Raises:
        BackendError: Ops that no engine computes; all of them are listed.
    """
    graph = decompose(graph, precision)
    builder = Builder(graph, precision, pace, memory or MemoryPorts(), prefix, pad_around)
    inputs = [
        _input(builder, i.name, builder.graph.node(i.node), orders or {})
        for i in graph.inputs
        if not i.kind.is_weight
    ]
    known = formats or {}
    builder.named |= {p.use.edge: known[p.value] for p in inputs if p.value in known}
    problems = _walk(builder)
    if not problems:
        outputs, problems = _outputs(builder)
        if not problems:
            layers = tuple(builder.layers.values())
            names = {i.name for i in graph.inputs_of(InputKind.INPUT)}
            ports = (_widen(p, layers) if p.value in names else p for p in inputs)
            network = Network(layers, tuple(ports), tuple(outputs), builder.named)
            return set_types(network, builder, own, types or {}) if own else network
    raise BackendError(
        f"{len(problems)} node(s) have no FPGA engine",
        got="".join(f"\n    {p}" for p in problems[:20]),
        want="operations with an engine",
        hint=_HINT_QUANTISED
        if any(n.target in QUANTISED for n in graph.calls)
        else _HINT_TRAINING
        if graph.outputs_of(OutputKind.LOSS, OutputKind.GRADIENT, OutputKind.WEIGHT_GRADIENT)
        else "cut these nodes onto another target, or replace the op in the model",
    )


def _input(b: Builder, name: str, node: fx.Node, orders: Mapping[str, tuple[int, ...]]) -> NetPort:
    shape = shape_of(node)
    order = orders.get(name, standard_order(shape))
    edge = f"{b.prefix}in_{node.name}"
    value = shapes.input_value(edge, shape, order, b.stream_type(node))
    b.values[node] = value
    return NetPort(name, b.prefix + node.name, value.use(), shape, order, _dtype(node))


def _widen(port: NetPort, layers: Sequence[Layer]) -> NetPort:
    """A model input in the longer rows that its only reader wants: several pixels per token."""
    uses = [u for layer in layers for u in layer.inputs if u.edge == port.use.edge]
    longer = len(uses) == 1 and uses[0].channels % port.use.channels == 0
    return dataclasses.replace(port, use=uses[0]) if longer else port


def _dtype(node: fx.Node) -> str:
    return str(tensor(node).dtype).removeprefix("torch.")


def _walk(b: Builder) -> list[str]:
    """Lower every node; what cannot be lowered is returned, what depends on it is skipped."""
    problems: list[str] = []
    tuples: dict[fx.Node, tuple[Value | None, ...]] = {}
    lost: set[fx.Node] = set()
    for node in b.graph.calls:
        if node in b.constants:
            continue
        if any(n in lost for n in node.all_input_nodes):
            lost.add(node)
            continue
        found: Value | tuple[Value | None, ...]
        try:
            found = _node(b, node, tuples)
        except UnsupportedError as error:
            lost.add(node)
            hint = f" ({error.hint})" if error.hint else ""
            problems.append(f"{op_name(node)} {node.name}, {origin(node)}: {error}{hint}")
            continue
        if isinstance(found, tuple):
            tuples[node] = found
        elif isinstance(node.meta["val"], tuple | list):  # statistics, which nobody reads
            tuples[node] = (found, *[None] * (len(node.meta["val"]) - 1))
        else:
            b.values[node] = found
    return problems


def _node(
    b: Builder, node: fx.Node, tuples: Mapping[fx.Node, tuple[Value | None, ...]]
) -> Value | tuple[Value | None, ...]:
    if not any(t.numel() for t in tensors(node)):
        raise UnsupportedError("an empty tensor, of which nothing can be streamed")
    if node.target is operator.getitem:
        source, index = cast("fx.Node", node.args[0]), cast("int", node.args[1])
        value = tuples[source][index]
        if value is None:
            raise UnsupportedError(f"result {index} of {op_name(source)} has no engine")
        return value
    handler = HANDLERS.get(op_name(node))
    if handler is None:
        raise UnsupportedError("no engine computes this op")
    return handler(b, node)


def _outputs(b: Builder) -> tuple[list[NetPort], list[str]]:
    found, problems = [], []
    for output in b.graph.outputs:
        node = b.graph.node(output.node)
        if not all(t.numel() for t in tensors(node)):
            problems.append(f"output {output.name}: an empty tensor, which no stream carries")
            continue
        if node in b.constants:
            b.values[node] = shapes.constant_stream(b, node, standard_order(shape_of(node)))
        try:
            value = b.value(node)
            if value.edge not in b.layers:  # an input that is only passed on
                value = b.put_map(node, value, (), suffix="_copy")
            value, order = shapes.output_value(b, node, value)
        except UnsupportedError as error:
            problems.append(f"{op_name(node)} {node.name}, {origin(node)}: {error}")
            continue
        name, shape = b.prefix + node.name, shape_of(node)
        found.append(NetPort(output.name, name, value.use(), shape, order, _dtype(node)))
    return found, problems
