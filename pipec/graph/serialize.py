"""A graph as JSON: our own schema, one line per node, loaded through a whitelist of ops.

```text
{"format":"pipec.graph","version":1,"title":"Stage0","namespaces":[],"tied":{},
"inputs":[
{"node":"p_w","kind":"parameter","name":"fc.weight","type":"float32[64,64]"},
{"node":"x","kind":"input","name":"x","type":"float32[4,64]"}],
"nodes":[
{"name":"linear","target":"aten.linear.default","args":["%x","%p_w"],
 "type":"float32[4,64]","origin":{"name":"fc","op":"Linear"}}],
"outputs":[
{"node":"linear","kind":"output","name":"y"}]}
```

An argument is a JSON value; ``%name`` is a node, and what JSON cannot say is an object with one
key: ``{"str": ...}``, ``{"dtype": ...}``, ``{"float": "inf"}``, ``{"tuple": [...]}``, ... . The
source and the weights' data are not in the file: a plan states them once for all its graphs.
`GraphFile` is the schema.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NotRequired, TypedDict

import msgspec
import torch
from torch import fx

from pipec.errors import GraphError
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, Origin
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.tensor_type import DTYPES, empty_of_type, type_text
from pipec.graph.torch_private import FakeTensorMode, graph_module
from pipec.graph.whitelist import GETITEM, resolve

FORMAT, VERSION = "pipec.graph", 1
Json = dict[str, Any]


class End(TypedDict):
    """A placeholder, with its type."""

    node: str
    kind: InputKind
    name: str
    type: str


class Call(TypedDict):
    """A node: an op with its arguments and the type of its value (a list of types, of several)."""

    name: str
    target: str
    args: list[Any]
    kwargs: NotRequired[dict[str, Any]]
    type: str | list[Any] | None
    origin: NotRequired[Origin]


class GraphFile(TypedDict):
    """The whole file."""

    format: str
    version: int
    title: str
    namespaces: list[str]
    tied: dict[str, list[str]]
    inputs: list[End]
    nodes: list[Call]
    outputs: tuple[GraphOutput, ...]


_LAYOUTS = {str(v).removeprefix("torch."): v for v in (torch.strided, torch.sparse_coo)}
_MEMORY_FORMATS = {
    str(v).removeprefix("torch."): v
    for v in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}


def graph_to_json(graph: Graph) -> Json:
    """The graph as a JSON object; the same graph gives the same object.

    Raises:
        GraphError: An argument or a value has a type that the schema does not know.
    """
    nodes = graph.nodes
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": type(graph.module).__name__,
        "namespaces": sorted(graph.namespaces),
        "tied": {name: list(aliases) for name, aliases in sorted(graph.tied.items())},
        "inputs": [
            {"node": i.node, "kind": i.kind.value, "name": i.name, "type": _type(nodes[i.node])}
            for i in graph.inputs
        ],
        "nodes": [_node(n) for n in graph.calls],
        "outputs": [{"node": o.node, "kind": o.kind.value, "name": o.name} for o in graph.outputs],
    }


def dumps(data: Json) -> str:
    """JSON text with one line per element of what it holds, so that versions can be compared."""
    parts = []
    for key, value in data.items():
        text = _compact(value)
        if value and isinstance(value, dict):
            rows = ",\n  ".join(f"{_compact(str(k))}:{_compact(v)}" for k, v in value.items())
            text = f"{{\n  {rows}}}"
        elif value and isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(_compact, value)) + "]"
        parts.append(f'"{key}":{text}')
    return "{" + ",\n".join(parts) + "}\n"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _node(n: fx.Node) -> Json:
    row: Json = {"name": n.name, "target": _target(n), "args": [_encode(a, n) for a in n.args]}
    if n.kwargs:
        row["kwargs"] = {k: _encode(v, n) for k, v in n.kwargs.items()}
    row["type"] = _type(n)
    found = n.meta.get("origin")
    if isinstance(found, Origin):
        row["origin"] = {k: v for k, v in vars(found).items() if v is not None}
    return row


def _target(n: fx.Node) -> str:
    name = GETITEM if getattr(n.target, "__name__", "") == GETITEM else str(n.target)
    if name == GETITEM or hasattr(n.target, "namespace"):
        return name
    raise GraphError("only ops can be saved", where=n.name, got=n.target)


def _type(n: fx.Node) -> object:
    return _value_type(n.meta.get("val"), n)


def _value_type(value: object, n: fx.Node) -> object:
    if isinstance(value, torch.Tensor):
        return type_text(value)
    if isinstance(value, list | tuple):
        return [_value_type(v, n) for v in value]
    if value is None:
        return None
    raise GraphError(
        "the value has no static type",
        where=n.name,
        got=repr(value),
        want="tensors",
        hint="bind all dimensions to numbers",
    )


def _encode(value: object, n: fx.Node) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list):
        return [_encode(v, n) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, n) for v in value]}
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    kinds = {
        torch.dtype: "dtype",
        torch.device: "device",
        torch.layout: "layout",
        torch.memory_format: "memory_format",
    }
    if type(value) in kinds:
        return {kinds[type(value)]: str(value).removeprefix("torch.")}
    raise GraphError("an argument cannot be saved", where=n.name, got=repr(value))


def graph_from_json(
    data: Json, *, allowed: Collection[str] = (), mode: FakeTensorMode | None = None
) -> Graph:
    """The graph that `graph_to_json` wrote. No code of the file runs, nothing is imported.

    Its weights have no data.

    Args:
        data: The JSON object.
        allowed: Op namespaces all of whose ops the file may use; of pipec's own the others.
        mode: The fake mode of all values; a new one by default.

    Raises:
        GraphError: The object is no graph of this version, or names an op that is not admitted.
    """
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        got = f"{data.get('format')} version {data.get('version')}"
        raise GraphError("not a graph file", got=got, want=f"{FORMAT} version {VERSION}")
    try:
        file = msgspec.convert(data, GraphFile)
        return _decode_graph(file, allowed, mode or FakeTensorMode())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise GraphError("the graph file is damaged", got=repr(error)) from error


def _decode_graph(data: GraphFile, allowed: Collection[str], mode: FakeTensorMode) -> Graph:
    namespaces = frozenset(data["namespaces"])
    decoder = _Decoder((namespaces | OWN_NAMESPACES) & frozenset(allowed), mode)
    inputs = tuple(GraphInput(row["node"], row["kind"], row["name"]) for row in data["inputs"])
    for row in data["inputs"]:
        decoder.placeholder(row)
    for call in data["nodes"]:
        decoder.call(call)
    outputs = data["outputs"]
    for o in outputs:
        if decoder.env[o.node].meta["val"] is None:
            raise ValueError(f"{o.node} yields nothing that could be a {o.kind}")
    decoder.graph.output(tuple(decoder.env[o.node] for o in outputs))
    return Graph(
        module=graph_module(decoder.graph, _identifier(data["title"])),
        inputs=inputs,
        outputs=outputs,
        weights={i.name: decoder.env[i.node].meta["val"] for i in inputs if i.kind.is_weight},
        tied={k: tuple(v) for k, v in data["tied"].items()},
        namespaces=namespaces,
    )


class _Decoder:
    """An FX graph that grows row by row."""

    def __init__(self, allowed: frozenset[str], mode: FakeTensorMode) -> None:
        self.graph, self.env = fx.Graph(), dict[str, fx.Node]()
        self.allowed, self.mode = allowed, mode

    def placeholder(self, row: End) -> None:
        name = _identifier(row["node"])
        node = self.graph.create_node("placeholder", name, name=name)
        self._enter(node, row["node"], row["type"])

    def call(self, row: Call) -> None:
        """Add the node that a row describes."""
        args = tuple(self.argument(a) for a in row["args"])
        kwargs = {_identifier(k): self.argument(v) for k, v in row.get("kwargs", {}).items()}
        name = _identifier(row["name"])
        target = resolve(row["target"], self.allowed, where=name)
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        self._enter(node, name, row["type"])
        if "origin" in row:
            node.meta["origin"] = row["origin"]

    def _enter(self, node: fx.Node, name: str, kind: object) -> None:
        if node.name != name:
            raise GraphError("a name is used twice, or is a word of Python", got=name)
        node.meta["val"] = self.value(kind)
        self.env[name] = node

    def value(self, kind: object) -> object:
        """What a node yields: fakes of the types in the record."""
        if isinstance(kind, str):
            return empty_of_type(kind, self.mode)
        if kind is None:
            return None
        if isinstance(kind, list):
            return tuple(map(self.value, kind))
        raise GraphError("not a type", got=kind)

    def argument(self, value: Any) -> Any:
        if isinstance(value, str):
            if not value.startswith("%") or value[1:] not in self.env:
                raise GraphError("no node of this name comes before its use", got=value)
            return self.env[value[1:]]
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, dict):
            (kind,) = value
            return self.special(kind, value[kind])
        return value

    def special(self, kind: str, value: Any) -> Any:
        """An argument that JSON has no type for, from its kind and value."""
        if kind == "tuple":
            return tuple(self.argument(v) for v in value)
        if kind == "complex":
            return complex(float(value[0]), float(value[1]))
        if kind == "device":
            return _device(value)
        tables: dict[str, Mapping[str, object]] = {
            "dtype": DTYPES,
            "layout": _LAYOUTS,
            "memory_format": _MEMORY_FORMATS,
            "float": {"inf": math.inf, "-inf": -math.inf, "nan": math.nan},
        }
        return str(value) if kind == "str" else tables[kind][value]


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise GraphError("no such device", got=name) from error


def _identifier(name: object) -> str:
    if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
        raise GraphError("not a name", got=repr(name), want="a Python identifier")
    return name
