"""Ops that a stranger's graph may use, and what must hold of their arguments.

`ops.txt` has one line per op: its name, and the rules for what torch's kernel does not look at
itself before it reads or writes memory. All ops of the table were called with hostile arguments
(``make fuzz-ops``) and end in a result or an exception.

```text
aten.gelu_backward.default like aten.gelu.default grad_output=0
```

``like OP x=0``: ``x`` has the shape of the first result of ``OP`` on arguments of the same names.
``same x y``, ``leading 2 x y``: equal shapes; but for the last two dimensions, these not empty.
``channels input x``: ``x`` has one element per channel of ``input``.
``attention``, ``recurrent 4``: queries, keys, values and masks agree; layers of four gates do.
``checked x=OP.y`` or ``x=OP.1``: ``x`` is also the argument ``y``, or the second result, of such a
call on as large tensors in the graph or in F: only that call looks whether numbers are in range.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import fx

from pipec.graph.finding import Finding
from pipec.graph.infer import result_type
from pipec.graph.torch_private import OpOverload, argument_names_and_defaults, is_view

Given = dict[str, Any]
"""The arguments of a call by name, defaults too."""
Broken = Iterator[tuple[str, object, object]]
"""Argument, what it is, what it should be."""


@lru_cache(maxsize=1)
def table() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Name of each op to its rules: their names, with the words behind them."""
    lines = files(__package__).joinpath("ops.txt").read_text(encoding="ascii").splitlines()
    rows = (line.partition(" ") for line in lines if not line.startswith("#"))
    return {
        name: tuple(tuple(rule.split()) for rule in rest.split(";") if rule)
        for name, _, rest in rows
    }


@lru_cache(maxsize=10_000)
def _rules_of(op: object) -> tuple[tuple[str, ...], ...]:
    return table().get(str(op), ())


def bind(node: fx.Node) -> Given:
    """The arguments of a call of an op by name; nodes stay nodes."""
    assert isinstance(node.target, OpOverload)
    names = argument_names_and_defaults(node.target)
    return {**names, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def find_disagreeing(node: fx.Node) -> Iterator[Finding]:
    """What breaks the rules of the node's op for the sizes of its arguments."""
    for rule, *words in _rules_of(node.target):
        if rule in _RULES:
            have = fx.map_arg(bind(node), lambda n: n.meta.get("val"))
            try:
                for name, got, want in _RULES[rule](have, *words):
                    yield Finding(f"{node.name} ({node.target})", f"{name} of {got}", want)
            except (TypeError, AttributeError, IndexError) as error:
                yield Finding(f"{node.name} ({node.target})", error, "arguments of its schema")


def find_unchecked(node: fx.Node, saved: Mapping[fx.Node, fx.Node | None]) -> Iterator[Finding]:
    """Arguments whose numbers no other call has looked at, and this one does not either.

    Args:
        node: A call.
        saved: Placeholders of what F has saved, to F's nodes.
    """
    for rule, *words in _rules_of(node.target):
        for word in words if rule == "checked" else ():
            name, _, source = word.partition("=")
            op, _, place = source.rpartition(".")
            value = bind(node)[name]
            if not any(
                str(call.target) == op and _as_large(node, call)
                for call in _checkers(value, saved, place)
            ):
                yield Finding(f"{node.name}, {name}", value, f"that of {op} on as large tensors")


def _checkers(value: fx.Node, saved: Mapping[fx.Node, fx.Node | None], place: str) -> list[fx.Node]:
    if place.isdigit():
        made = saved.get(value) or value
        return [made.args[0]] if made.args[1:] == (int(place),) else []  # type: ignore[list-item]
    held = _holder(value, saved)
    calls = [
        n for graph in {value.graph, *(n.graph for n in saved.values() if n)} for n in graph.nodes
    ]
    return [n for n in calls if _holder(bind_if_op(n).get(place), saved) == held]


def _holder(value: Any, saved: Mapping[fx.Node, fx.Node | None]) -> Any:
    """What gives the numbers: a node of F, or a view of one with the arguments of that view.

    A stage saves what is viewed, and makes its views where they are read.
    """
    if not isinstance(value, fx.Node):
        return value
    value = saved.get(value) or value
    viewed = isinstance(value.target, OpOverload) and is_view(value.target)
    if not viewed and value.target is not operator.getitem:
        return value
    base = _holder(value.args[0], saved)
    if str(value.target) == "aten.reshape.default":
        return base  # the same numbers, otherwise arranged
    return base, value.target, value.args[1:], value.kwargs


def bind_if_op(node: fx.Node) -> Given:
    """`bind`, of a node that may be no call of an op."""
    return bind(node) if isinstance(node.target, OpOverload) else {}


def _as_large(node: fx.Node, call: fx.Node) -> bool:
    """Whether arguments of the same names are equal, tensors in shape."""
    a, b = bind(node), bind(call)
    return all(_comparable(a[k]) == _comparable(b[k]) for k in a.keys() & b.keys())


def _comparable(value: Any) -> object:
    if isinstance(value, fx.Node):
        return tuple(value.meta["val"].shape)
    return tuple(value) if isinstance(value, list) else value


def _shape(value: Any) -> object:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _like(have: Given, op: str, *pairs: str) -> Broken:
    namespace, name, overload = op.split(".")
    forward = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    kwargs = {k: have.get(k, v) for k, v in argument_names_and_defaults(forward).items()}
    found: Any = result_type(forward, (), kwargs)
    if isinstance(found, str):
        yield "the arguments", found, f"those of {op}"
        return
    for name, _, place in (pair.partition("=") for pair in pairs):
        want = (found if isinstance(found[0], tuple) else (found,))[int(place)]
        if _shape(have[name]) != want[1]:
            yield name, _shape(have[name]), want[1]


def _same(have: Given, first: str, *others: str) -> Broken:
    want = _shape(have[first])
    yield from ((x, _shape(have[x]), want) for x in others if _shape(have[x]) != want)


def _leading(have: Given, count: str, first: str, *others: str) -> Broken:
    want = have[first].shape
    for name in others:
        shape, last = have[name].shape, int(count)
        empty = 0 in (*shape[-last:], *want[-last:])
        if len(shape) != len(want) or shape[:-last] != want[:-last] or empty:
            yield name, tuple(shape), f"{(*want[:-last], *['*'] * last)}, not empty"


def _channels(have: Given, source: str, *others: str) -> Broken:
    shape = have[source].shape
    want = (shape[1],) if len(shape) > 1 else None
    for name in others:
        if have[name] is not None and _shape(have[name]) not in (want, (0,)):
            yield name, _shape(have[name]), want


def _attention(have: Given) -> Broken:
    q, k, v = (have[name].shape for name in ("query", "key", "value"))
    if len(q) != 4 or 0 in (*q, *k, *v):
        yield "query", tuple(q), "(samples, heads, words, size), not empty"
        return
    want = (q[0], k[1] if q[1] % k[1] == 0 else q[1], k[2], q[3])  # heads may share keys
    for name, shape in (("key", k), ("value", v)):
        if tuple(shape) != want:
            yield name, tuple(shape), want
    mask, whole = _shape(have["attn_mask"]), (*q[:2], q[2], k[2])
    if isinstance(mask, tuple):
        fits = all(n in (1, m) for n, m in zip(mask, whole[-len(mask) :], strict=False))
        if len(mask) not in (2, 4) or not fits:
            yield "attn_mask", mask, whole


def _recurrent(have: Given, gates: str) -> Broken:
    inputs, ways, layers = have["input"].shape, 1 + have["bidirectional"], have["num_layers"]
    states = have["hx"] if isinstance(have["hx"], list | tuple) else [have["hx"]]
    samples = inputs[0 if have["batch_first"] else 1] if len(inputs) == 3 else 0
    shape = states[0].shape
    if not samples or len(shape) != 3 or 0 in (*inputs, *shape) or layers < 1:
        yield "input", tuple(inputs), "(steps, samples, size), with a state"
        return
    out, hidden = shape[2], states[-1].shape[-1]  # unlike where an LSTM projects its output
    rows, projection = int(gates) * hidden, [(out, hidden)] * (out != hidden)
    for state, size in zip(states, (out, hidden), strict=False):
        if tuple(state.shape) != (layers * ways, samples, size):
            yield "hx", tuple(state.shape), (layers * ways, samples, size)
    want = []
    for layer in range(layers):
        size = inputs[2] if layer == 0 else ways * out
        biases = [(rows,)] * 2 * have["has_biases"]
        want += ways * [(rows, size), (rows, out), *biases, *projection]
    if (got := [tuple(p.shape) for p in have["params"]]) != want:
        yield "params", got, want


_RULES: dict[str, Callable[..., Broken]] = {
    "like": _like,
    "same": _same,
    "leading": _leading,
    "channels": _channels,
    "attention": _attention,
    "recurrent": _recurrent,
}
