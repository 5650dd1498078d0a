"""A graph as plain Python over `torch.ops`: what people read, and what computes the same numbers.

```python
def forward(
    p_w,  # parameter fc.weight: float32[64,64]
    x,  # input x: float32[4,64]
):
    # fc (Linear), model.py:12
    linear = aten.linear.default(x, p_w)  # float32[4,64]
    return (linear,)  # output y
```

Names out of a model file end up in comments only, on one line, with everything unprintable
escaped: such a file cannot smuggle code into the text.
"""

import keyword
from collections.abc import Iterator
from typing import Any

from pipec.errors import GraphError
from pipec.graph.eager import ADD_GRADIENTS, EAGER, EAGER_BACKWARD
from pipec.graph.ir import Graph
from pipec.graph.quantised import QUANTISED
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.serialize import Json, graph_to_json
from pipec.graph.whitelist import GETITEM

_MODULES = {
    "eager": {str(EAGER), str(EAGER_BACKWARD), str(ADD_GRADIENTS)},
    "opaque": {"pipec.onnx.default"},
    "quantised": set(map(str, QUANTISED)),
}
_NO_RESULT = ("pipec.send.", "pipec.offload.")


def graph_to_python(graph: Graph) -> str:
    """Python source of a module with one function, ``forward``.

    Raises:
        GraphError: The graph cannot be saved; see `graph_to_json`.
    """
    return json_to_python(graph_to_json(graph))


def json_to_python(data: Json) -> str:
    """Python source of a graph that `graph_to_json` wrote."""
    ops = _aliases(data)
    return "\n".join(
        [
            *_head(data, ops),
            "",
            "",
            *_signature(data["inputs"]),
            f'    """The graph {_word(data["title"])}: {len(data["nodes"])} operations."""',
            *_body(data["nodes"], ops),
            *_return(data["outputs"]),
            "",
        ]
    )


def _aliases(data: Json) -> dict[str, str]:
    """Namespace to the name that the text gives it, which no node has."""
    taken = {row["node"] for row in data["inputs"]} | {row["name"] for row in data["nodes"]}
    found = {}
    for namespace in sorted({row["target"].split(".")[0] for row in data["nodes"]} - {GETITEM}):
        alias = "pipec_ops" if namespace == "pipec" else _name(namespace)
        while alias in taken:
            alias += "_"
        found[namespace] = alias
    return found


def _head(data: Json, ops: dict[str, str]) -> Iterator[str]:
    yield f'"""{_word(data["title"])} as Python, written by pipec; its JSON neighbour is what runs.'
    yield ""
    yield "Weights are arguments. Shapes stand behind every line."
    yield '"""'
    if not ops:
        return
    yield ""
    yield "import torch"
    yield "from torch import device, inf, nan  # noqa: F401"
    yield ""
    if "pipec" in ops:
        called = {row["target"] for row in data["nodes"]}
        for module in ["comm", *(name for name, own in _MODULES.items() if called & own)]:
            yield f"import pipec.graph.{module}  # noqa: F401  (defines torch.ops.pipec)"
        yield ""
    for name in ops:
        if name not in OWN_NAMESPACES:
            yield f"# torch.ops.{name} comes from another package, which must be imported first."
    for name, alias in ops.items():
        yield f"{alias} = torch.ops.{name}"


def _signature(rows: list[Json]) -> Iterator[str]:
    if not rows:
        yield "def forward():"
        return
    yield "def forward("
    for row in rows:
        kind = f"{row['kind']} {_line(row['name'])}: {_type(row['type'])}"
        yield f"    {_name(row['node'])},  # {kind}"
    yield "):"


def _body(rows: list[Json], ops: dict[str, str]) -> Iterator[str]:
    before: str | None = None
    for row in rows:
        place = _origin(row.get("origin"))
        if place and place != before:
            yield f"    # {place}"
            before = place
        call = _call(row, ops)
        if not row["target"].startswith(_NO_RESULT):
            call = f"{_name(row['name'])} = {call}"
        comment = "" if row["type"] is None else f"  # {_type(row['type'])}"
        yield f"    {call}{comment}"


def _origin(origin: Json | None) -> str:
    if not origin:
        return ""
    index = f", node {origin['index']}" if "index" in origin else ""
    location = f", {_line(origin['location'])}" if "location" in origin else ""
    return f"{_line(origin['name']) or 'top level'} ({_line(origin['op'])}{index}){location}"


def _call(row: Json, ops: dict[str, str]) -> str:
    arguments = [_argument(a) for a in row["args"]]
    if row["target"] == GETITEM:
        return f"{arguments[0]}[{arguments[1]}]"
    arguments += [f"{_name(k)}={_argument(v)}" for k, v in row.get("kwargs", {}).items()]
    namespace, op, overload = row["target"].split(".")
    if keyword.iskeyword(op) or op.startswith("__"):
        target = f"getattr({ops[namespace]}, {op!r}).{_word(overload)}"
    else:
        target = f"{ops[namespace]}.{_word(op)}.{_word(overload)}"
    return f"{target}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if isinstance(value, str):
        return _name(value.removeprefix("%"))
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        return _special(kind, inner)
    return repr(value)


def _special(kind: str, value: Any) -> str:
    if kind == "tuple":
        items = ", ".join(map(_argument, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if kind == "str":
        return repr(str(value))
    if kind == "float":
        return f"float({value!r})"
    if kind == "complex":
        return f"complex({value[0]}, {value[1]})"
    return f"device({str(value)!r})" if kind == "device" else f"torch.{_word(value)}"


def _type(kind: object) -> str:
    return f"({', '.join(map(_type, kind))})" if isinstance(kind, list) else _line(kind)


def _return(rows: list[Json]) -> Iterator[str]:
    yield "    return ("
    for row in rows:
        yield f"        {_name(row['node'])},  # {row['kind']} {_line(row['name'])}"
    yield "    )"


def _line(value: object) -> str:
    """``value`` on one line, unprintable characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))


def _name(value: object) -> str:
    text = str(value)
    if not text.isidentifier() or keyword.iskeyword(text):
        raise GraphError("not a name", got=repr(value), want="a Python identifier")
    return text


def _word(value: object) -> str:
    text = str(value)
    if not text.isidentifier():
        raise GraphError("not a name", got=repr(value), want="a Python identifier")
    return text
