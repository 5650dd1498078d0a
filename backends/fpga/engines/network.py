"""The network of layers while it is being built, and how handlers of ops build it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import fx

from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.engines.base import Layer, Nest, Use
from pipec.backends.fpga.engines.constants import Constants, shape_of
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.parts import Table
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.route import Repeat
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.engines.view import View, merge, permutation, standard_order, strides_of
from pipec.backends.fpga.numbers import Int8
from pipec.graph.ir import Graph, origin, tensors

DTYPES = {torch.int64: "int32", torch.int32: "int32", torch.bool: "int32"}
"""Torch type to stream type; floating point becomes the design's precision."""
LOWEST = -3e38
"""What is less is as good as minus infinity around maxima: exporters write float32's least."""


class UnsupportedError(Exception):
    """No engine computes this node; the message says why. Collected, never shown alone."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True)
class MemoryPorts:
    """Memory ports of a board, each a DDR controller or an HBM channel.

    Attributes:
        count: Number of ports.
        room: Bytes behind each.
    """

    count: int = 1
    room: float = math.inf


@dataclass(frozen=True)
class Padding:
    """Padding around maps that the next window generator is to make: top, left, bottom, right."""

    top: int
    left: int
    bottom: int
    right: int
    value: float

    @property
    def number(self) -> float:
        """The number to pad with; all that are as good as minus infinity are one."""
        return max(self.value, LOWEST)


@dataclass(frozen=True)
class Value:
    """A tensor in a stream.

    Attributes:
        edge: The edge that carries it; ``rows x channels`` elements of ``dtype``.
        view: Which logical tensor it is.
        padding: Padding that is still to be made around it.
    """

    edge: str
    rows: int
    channels: int
    view: View
    dtype: str = "float32"
    padding: Padding | None = None

    def use(self, channels: int | None = None) -> Use:
        """How a layer reads it: in rows of ``channels`` elements, its own rows if None."""
        c = channels or self.channels
        return Use(self.edge, self.rows * self.channels // c, c, self.dtype)

    def reshape(self, shape: Sequence[int]) -> "Value":
        """The same elements under another logical shape; always free."""
        return dataclasses.replace(self, view=self.view.reshape(shape))


@dataclass(frozen=True)
class NetPort:
    """An input or output of the network.

    Attributes:
        value: Name of the graph's input or output; ``node`` the graph node behind it.
        use: The edge and its rows; ``order`` the axis order on the wire, of ``shape``.
        dtype: Element type in the model.
    """

    value: str
    node: str
    use: Use
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Network:
    """Layers in topological order, and what goes in and out.

    Attributes:
        named: Edge to the format that the model itself names for it.
        types: Graph node to the element type of its value, where layers have types of their own.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[NetPort, ...]
    outputs: tuple[NetPort, ...]
    named: Mapping[str, Int8] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """Multiply-accumulates per frame, those with zeros by construction left out."""
        return sum(round(layer.used * layer.nest.macs) for layer in self.layers)

    def at_clock(self, clock_hz: float) -> "Network":
        """The same on a board with a clock, whose operators have as many stages as it asks for."""
        layers = (dataclasses.replace(y, clock_mhz=clock_hz / 1e6) for y in self.layers)
        return dataclasses.replace(self, layers=tuple(layers))

    def products(self, precision: str) -> float:
        """DSPs times cycles per frame that its multiply-accumulates take at least."""
        found = 0.0
        for y in self.layers:
            cost, common = arithmetic(y.arithmetic(precision)), y.nest.common
            macs = round(y.used * y.nest.macs)
            found += macs / common * cost.multipliers(common) * cost.mac_dsp
        return found


@dataclass
class Builder:
    """State of lowering one stage graph.

    Attributes:
        graph: The stage's compute graph.
        precision: Stream type of floating-point values.
        constants: Its constant nodes.
        layers: Layers so far, by name.
        values: What the nodes so far yield.
        border: Makes the padding around a value that a node yields (`maps.pad_around`).
        pace: Cycles per frame that are aimed at; 0 if not known. An input of more pixels is read
            by two at a time, a matrix of more beats of memory by several ports.
        memory: Memory ports of the board.
        prefix: What the names of all layers, edges and ports begin with.
        named: Edge to the format that the model itself names for it.
    """

    graph: Graph
    precision: str = "float32"
    pace: int = 0
    memory: MemoryPorts = MemoryPorts()
    prefix: str = ""
    border: "Callable[[Builder, fx.Node, Value], Value]" = lambda _b, _node, value: value
    layers: dict[str, Layer] = field(default_factory=dict)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    named: dict[str, Int8] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = Constants(self.graph)
        self.output_nodes = {o.node for o in self.graph.outputs}

    def stream_type(self, node: fx.Node) -> str:
        """The stream type of a node's (first) tensor."""
        return DTYPES.get(tensors(node)[0].dtype, self.precision)

    def value(self, node: object, around: float | None = None) -> Value:
        """The stream value of an argument, the padding around it made.

        Padding with the number that the reader's windows have ``around`` maps is left to them.

        Raises:
            UnsupportedError: It is a constant where a stream is needed.
        """
        if not isinstance(node, fx.Node) or node not in self.values:
            constant = not isinstance(node, fx.Node) or node in self.constants
            kind = "a constant" if constant else "a truth value, which only a choice reads"
            raise UnsupportedError(f"its operand {node} is {kind}; wanted is a stream of numbers")
        padding = self.values[node].padding
        if padding is not None and (around is None or padding.number != max(around, LOWEST)):
            self.values[node] = self.border(self, node, self.values[node])
        return self.values[node]

    def is_stream(self, node: object) -> bool:
        """Whether the argument is a value that arrives at run time."""
        return isinstance(node, fx.Node) and node not in self.constants

    def number(self, node: object) -> float:
        """The number that an argument is, a constant of equal elements too.

        Raises:
            UnsupportedError: It is none.
        """
        if isinstance(node, fx.Node) and np.unique(known := self.constants.value(node)).size == 1:
            node = known.flat[0].item()
        if not isinstance(node, int | float) or math.isnan(node):
            raise UnsupportedError(f"its operand {node} is a constant; wanted is one number")
        return float(node)

    def add(self, layer: Layer) -> str:
        """Append a layer; returns its edge (a unique name made of the layer's)."""
        name, k = layer.name, 1
        while name in self.layers:
            name, k = f"{layer.name}_{k}", k + 1
        self.layers[name] = dataclasses.replace(layer, name=name)
        return name

    def facts(self, node: fx.Node, suffix: str = "") -> dict[str, Any]:
        """The name, node and origin of a layer made for ``node``."""
        name = f"{self.prefix}{node.name}{suffix}"
        return {"name": name, "node": node.name, "origin": str(origin(node))}

    def put(
        self,
        nest: Nest,
        node: fx.Node,
        inputs: tuple[Use, ...],
        view: View,
        channels: int,
        *,
        suffix: str = "",
        dtype: str = "",
        tables: Mapping[str, Table | None] | None = None,
        **fields: Any,
    ) -> Value:
        """Append a layer that writes a tensor in rows of ``channels`` elements; the tensor.

        Args:
            nest: What the layer computes.
            node: What it is made for; its name with ``suffix`` is the layer's.
            inputs: What it reads.
            view: What it writes.
            channels: Elements of a row.
            suffix: Sets apart the layers of one node.
            dtype: Type of what it writes; that of the first input if not given.
            tables: Its tables by role, None where one is missing.
            fields: Other fields of the layer.
        """
        rows = view.numel // channels
        known = {role: table for role, table in (tables or {}).items() if table is not None}
        dtype = dtype or inputs[0].dtype
        whole = all(t == "int32" for t in (dtype, *(use.dtype for use in inputs)))
        layer = Layer(
            **self.facts(node, suffix), inputs=inputs, rows=rows, channels=channels, nest=nest,
            tables=known, dtype="int32" if whole else "", **fields,
        )  # fmt: skip
        return Value(self.add(layer), rows, channels, view, dtype)

    def put_map(
        self, node: fx.Node, value: Value, steps: Sequence[MapStep], *others: Use, suffix: str = ""
    ) -> Value:
        """Append a chain of steps on a value, and perhaps on a second stream; what comes out."""
        channels, uses = value.channels, (value.use(), *others)
        nest, dtype = Map(value.view.numel // channels, channels), ""
        if steps and value.dtype == "int32":  # half an integer is none
            dtype = self.stream_type(node)
            if tensors(node)[0].dtype is torch.bool:
                steps = (*steps, MapStep("min", "scalar", 1.0))
        return self.put(
            nest, node, uses, value.view, channels, suffix=suffix, dtype=dtype, steps=tuple(steps)
        )

    def innermost(self, node: fx.Node, value: Value, axes: Sequence[int]) -> Value:
        """``value`` with ``axes`` innermost in the stream; reordered if they are not."""
        if value.view.split(axes) is not None:
            return value
        shape = value.view.shape
        order = (*(d for d in range(len(shape)) if d not in axes), *axes)
        return self.permute(node, value, order)

    def sole_layer(self, node: object) -> Layer | None:
        """The layer that yields ``node`` if nothing else reads its edge (so it may be extended).

        What the model writes in a format of its own is rounded there, and nothing joins it.
        """
        if not isinstance(node, fx.Node) or node not in self.values:
            return None
        value = self.values[node]
        if (
            value.edge in self.named
            or len(node.users) != 1
            or node.name in self.output_nodes
            or value.padding is not None
        ):
            return None
        layer = self.layers.get(value.edge)
        return layer if layer is not None and self._readers(value.edge) == 1 else None

    def _readers(self, edge: str) -> int:
        """Nodes whose value lies on that edge (views share one) and which somebody reads."""
        return sum(
            1
            for node, value in self.values.items()
            if value.edge == edge
            and (node.name in self.output_nodes or any(self._reads(u, edge) for u in node.users))
        )

    def _reads(self, user: fx.Node, edge: str) -> bool:
        """Whether a node reads an edge, rather than passing it on under its own name."""
        passed = [user] if user in self.values else [i for i in user.users if i in self.values]
        return not passed or any(self.values[item].edge != edge for item in passed)

    def reorder(self, node: fx.Node, value: Value, want: View, channels: int) -> Value:
        """``value`` in the element order of ``want``, in rows of so many channels, for a node.

        A PERM layer unless it has that order already.

        Raises:
            UnsupportedError: The two orders have no common refinement.
        """
        if value.view.atoms == want.atoms:
            return value
        found = permutation(value.view, want)
        if found is None:
            raise UnsupportedError("its input's element order can't be turned into the one needed")
        sizes, order = found
        same = 0
        while order[same] == same:
            same += 1
        while math.prod(sizes[same:]) % math.lcm(value.channels, channels):
            same -= 1  # a block is made of whole rows on both sides
        order = tuple(axis - same for axis in order[same:])
        nest = Perm(math.prod(sizes[:same]), sizes[same:], order, value.channels, 1, channels, 1)
        return self.put(nest, node, (value.use(),), want, channels, suffix="_perm")

    def align(self, node: fx.Node, streams: Sequence[Value]) -> tuple[Value, tuple[Use, ...]]:
        """Operands of an elementwise op in the order of the first that is as large as its result.

        That one in the shape of the result, and how all of them are read.

        Raises:
            UnsupportedError: None is as large.
        """
        shape, found = shape_of(node), list[Use]()
        first = next((v for v in streams if v.view.numel == math.prod(shape)), None)
        if first is None:
            raise UnsupportedError("all operands broadcast")
        first = first.reshape(shape)
        for value in streams:
            whole = value.view.numel == first.view.numel
            same = (value if whole else self.broadcast(node, first, value)).reshape(shape)
            found.append(self.reorder(node, same, first.view, first.channels).use(first.channels))
        return first, tuple(found)

    def broadcast(self, node: fx.Node, big: Value, small: Value) -> Value:
        """``small`` repeated to the shape and order of ``big``: an engine per run of axes.

        Whole rows where channels are no part of the run, else single elements (of each, one per
        cycle).
        """
        rank = len(big.view.shape)
        shape = (1,) * (rank - len(small.view.shape)) + small.view.shape
        pieces = big.view.by_axis()
        if pieces is None:
            raise UnsupportedError("a broadcast over a mixed element order")
        strides = strides_of(shape)
        atoms = [(size, step * strides[axis]) for axis, size, step in pieces if shape[axis] > 1]
        small = self.reorder(node, small, View(small.view.shape, merge(atoms)), small.channels)
        sizes = [size if shape[axis] > 1 else 1 for axis, size, _ in pieces]
        runs = groupby(range(len(pieces)), key=lambda k: sizes[k] > 1)
        missing = [list(run) for present, run in runs if not present]
        for run in reversed(missing):  # the innermost first: what is outside is small as yet
            times = math.prod(pieces[k][1] for k in run)
            outer, inner = (math.prod(part) for part in (sizes[: run[0]], sizes[run[-1] + 1 :]))
            channels = math.gcd(inner, small.channels, big.channels)
            flat, nest = View.of((outer * times * inner,), (0,)), Repeat(outer, inner, times)
            small = self.put(nest, node, (small.use(channels),), flat, channels, suffix="_repeat")
            for k in run:
                sizes[k] = pieces[k][1]
        return dataclasses.replace(small, view=big.view)

    def permute(self, node: fx.Node, value: Value, order: Sequence[int]) -> Value:
        """``value`` in this order of its axes, in rows of the last one."""
        shape = value.view.shape
        return self.reorder(node, value, View.of(shape, order), row_channels(shape, order))

    def to_standard(self, node: fx.Node, value: Value) -> Value:
        """``value`` with channels last (maps) or row-major (everything else)."""
        return self.permute(node, value, standard_order(value.view.shape))


def row_channels(shape: Sequence[int], order: Sequence[int]) -> int:
    """Channels of a row of a tensor in this order of its axes: all of the last one."""
    return shape[order[-1]] if shape else 1


Handler = Callable[[Builder, fx.Node], Value | tuple[Value | None, ...]]
"""Lowers one node; returns its value, or one per item of a tuple result."""

HANDLERS: dict[str, Handler] = {}
"""Op name to handler."""

H = TypeVar("H", bound=Handler)


def lowers(*ops: str) -> Callable[[H], H]:
    """Register a handler for ATen ops, named as `pipec.graph.ir.op_name` names them.

    Raises:
        TypeError: Another one lowers such an op already.
    """

    def register(handler: H) -> H:
        if taken := HANDLERS.keys() & ops:
            raise TypeError(f"{handler.__module__} lowers {taken}, as another file does already")
        HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return register


def integers(value: object, count: int) -> tuple[int, ...]:
    """A list of ``count`` integers from an int, a list of one, or a list."""
    found = tuple(int(v) for v in value) if isinstance(value, list | tuple) else (int(str(value)),)
    return found * count if len(found) == 1 else found
