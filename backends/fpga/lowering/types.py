"""Layers that compute in an element type of their own, and the conversions between types.

```text
--precision "ap_fixed<16,6>; head = ap_fixed<24,8>"

conv ──ap_fixed<16,6>──► head_cast ──ap_fixed<24,8>──► head ──ap_fixed<24,8>──► output
```

A layer reads, multiplies and writes numbers of one type; what only moves numbers (a maximum too)
takes that of what it reads.

A model may name formats itself: ``pipec::quantize`` and ``dequantize``, one after the other. In
8-bit integers the two compute nothing: they say in which format a value is written.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, cast

import torch
from torch import fx

from pipec.backends.fpga.cpp import cpp_type, unknown_type
from pipec.backends.fpga.engines.base import Layer, Use
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.network import (
    Builder,
    NetPort,
    Network,
    UnsupportedError,
    Value,
    lowers,
)
from pipec.backends.fpga.engines.steps import MapStep
from pipec.backends.fpga.numbers import LOWEST, Int8
from pipec.errors import BackendError
from pipec.graph.ir import origin, tensor
from pipec.graph.quantised import DEQUANTIZE, QUANTIZE
from pipec.plan.weights import all_have_data

OwnTypes = Sequence[tuple[str, str]]
"""Patterns of modules or nodes, and the element type of their layers; the last one that fits."""

_OF_ENGINES_ALONE = ("int16", "int32", "rescale")
"""Element types of indices and of tables, in which no whole model is computed."""


class Types(NamedTuple):
    """The element type of a model, and those of layers that have one of their own."""

    precision: str
    own: OwnTypes = ()

    @property
    def narrow(self) -> bool:
        """Whether there are other numbers than the model's float32."""
        return self != Types("float32")


def parse_types(text: str) -> Types:
    """The element types that a text ``TYPE; PATTERN = TYPE; ...`` names.

    Raises:
        BackendError: No engine computes in a type, or in it beside the others.

    Example:
        >>> parse_types("ap_fixed<16,6>; head.* = float32")
        Types(precision='ap_fixed<16,6>', own=(('head.*', 'float32'),))
    """
    first, *rest = (part.strip() for part in text.split(";"))
    pairs = [tuple(word.strip() for word in part.partition("=")) for part in rest if part]
    for pattern, equals, dtype in pairs:
        if not (pattern and equals and dtype):
            raise BackendError(
                "a layer's element type needs the layer's name and the type",
                where="--precision",
                got=f"{pattern}{equals}{dtype}",
                want="NAME = TYPE",
            )
    kinds = [first, *(dtype for _, _, dtype in pairs)]
    if pairs and "int8" in kinds:
        raise BackendError(
            "int8 is calibrated for a whole model, not beside other types",
            where="--precision",
            got=text,
            hint="floating-point and fixed-point types go together",
        )
    for kind in kinds:
        if kind in _OF_ENGINES_ALONE:
            raise unknown_type(kind)
        cpp_type(kind)
    return Types(first, tuple((pattern, dtype) for pattern, _, dtype in pairs))


def own_type(node: fx.Node, own: OwnTypes) -> str | None:
    """The type that is named for a node, or for a module around it."""
    place = origin(node).name
    for pattern, dtype in reversed(own):
        if any(fnmatchcase(n, p) for n in (node.name, place) for p in (pattern, f"{pattern}.*")):
            return dtype
    return None


def forms_of(edge: str, layers: Mapping[str, Layer], named: Mapping[str, Int8]) -> set[Int8]:
    """The formats in which the model itself writes the numbers of an edge, before it moves them."""
    layer = layers.get(edge)
    if edge in named or layer is None or not layer.moves:
        return {named[edge]} if edge in named else set()
    return set().union(*(forms_of(use.edge, layers, named) for use in layer.inputs))


def set_types(network: Network, b: Builder, own: OwnTypes, arriving: Mapping[str, str]) -> Network:
    """The network, as lowered by a builder, with the element types that are named.

    ``arriving`` has those in which another stage sends a value, by name.
    """
    nodes, casts = b.graph.nodes, dict[tuple[Use, str], Use]()
    types = {p.use.edge: arriving.get(p.value, p.use.dtype) for p in network.inputs}
    layers = list[Layer]()

    def convert(layer: Layer, use: Use, dtype: str) -> Use:
        """The edge that a layer reads instead, behind a conversion if it is of another type."""
        use = dataclasses.replace(use, dtype=types[use.edge])
        if use.dtype in ("int32", dtype):
            return use
        if (use, dtype) not in casts:
            name, copy = f"{layer.name}_cast{len(casts)}", Map(use.rows, use.channels)
            whose = name, layer.node, layer.origin, (use,)
            layers.append(Layer(*whose, use.rows, use.channels, copy, dtype=dtype))
            casts[use, dtype] = Use(name, use.rows, use.channels, dtype)
        return casts[use, dtype]

    for layer in network.layers:
        dtype, inputs = layer.dtype, layer.inputs
        if dtype != "int32":
            reads = [t for use in layer.inputs if (t := types[use.edge]) != "int32"]
            named = own_type(nodes[layer.node], own)
            dtype = reads[0] if reads and layer.moves else named or b.precision
            inputs = tuple(convert(layer, use, dtype) for use in layer.inputs)
        types[layer.name] = dtype
        layers.append(dataclasses.replace(layer, inputs=inputs, dtype=dtype))

    def port(p: NetPort) -> NetPort:
        return dataclasses.replace(p, use=dataclasses.replace(p.use, dtype=types[p.use.edge]))

    return dataclasses.replace(
        network,
        layers=tuple(layers),
        inputs=tuple(map(port, network.inputs)),
        outputs=tuple(map(port, network.outputs)),
        types={n.name: types[v.edge] for n, v in b.values.items() if v.edge in types},
    )


_BYTES = (torch.uint8, torch.int8)


def _is_whole(first: fx.Node) -> bool:
    """Whether all that reads the integers turns them back in their own format."""
    return tensor(first).dtype in _BYTES and all(
        n.target == DEQUANTIZE and n.args[1:3] == first.args[1:3] for n in first.users
    )


@lowers("pipec.quantize.default")
def quantize(b: Builder, node: fx.Node) -> Value:
    """The value itself; its edge's format is noted, if the constants have data.

    Raises:
        UnsupportedError: The scale is none number, or the integers are read as such.
    """
    if b.precision != "int8" or not _is_whole(node):
        raise UnsupportedError("no engine computes this op")
    value, form = b.value(node.args[0]), _form(node, b)
    if form and not forms_of(value.edge, b.layers, b.named) - {form}:
        b.named[value.edge] = form
    elif form:
        value = append_round(b, node, value, form)
    return value


@lowers("pipec.dequantize.default")
def dequantize(b: Builder, node: fx.Node) -> Value:
    """The value that was quantised."""
    source = cast("fx.Node", node.args[0])
    if source.target != QUANTIZE:
        raise UnsupportedError("no engine computes this op")
    return b.value(source)


def _form(first: fx.Node, b: Builder) -> Int8 | None:
    """The format that a node writes; None while its constants have no data.

    Raises:
        UnsupportedError: The scale is none number.
    """
    constants = cast("tuple[fx.Node, fx.Node | None]", first.args[1:3])
    if any(tensor(c).numel() != 1 for c in constants if c is not None):
        raise UnsupportedError("activations with several scales")
    if not all_have_data(b.graph.weights):
        return None
    scale, zero = (0 if c is None else b.constants.value(c).reshape(-1)[0] for c in constants)
    lowest = torch.iinfo(tensor(first).dtype).min
    return Int8.of(float(scale), int(zero) + LOWEST - lowest)


def format_after(node: fx.Node, b: Builder) -> Int8 | None:
    """The format in which the model writes what a node yields; None if it does not say."""
    users = list(node.users)
    if b.precision != "int8" or len(users) != 1 or users[0].target != QUANTIZE:
        return None
    return _form(users[0], b) if _is_whole(users[0]) else None


def append_round(b: Builder, node: fx.Node, value: Value, form: Int8, suffix: str = "") -> Value:
    """The value in another format, as an engine writes it."""
    found = b.put_map(node, value, [MapStep("mul", "scalar", 1.0)], suffix=suffix)
    b.named[found.edge] = form
    return found
