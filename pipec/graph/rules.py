"""The rules of the IR, as one table; `verify` is run after every pass.

Each rule is a row (name, function that yields what breaks it). All findings are collected and
raised at once.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import fx

from pipec.errors import GraphError
from pipec.graph.ir import Graph, InputKind, Origin, OutputKind, op_name, tensors
from pipec.graph.torch_private import OpOverload, is_mutable

OWN_NAMESPACES = frozenset({"aten", "prims", "pipec"})
"""Op namespaces that every graph may use; others are declared in `Graph.namespaces`."""

_BANNED = {
    "aten.view.default": "reshape: a view is only legal for the strides seen while tracing",
    "aten._unsafe_view.default": "reshape: a view is only legal for the strides seen in tracing",
    "aten._assert_tensor_metadata.default": "nothing: it has no value",
}

Finding = str
Rule = Callable[[Graph], Iterator[Finding]]


def _kinds_of_nodes(graph: Graph) -> Iterator[Finding]:
    for n in graph.module.graph.nodes:
        if n.op not in ("placeholder", "call_function", "output"):
            yield f"{n.name}: a {n.op} node; only placeholder, call_function and output may occur"


def _known_ops(graph: Graph) -> Iterator[Finding]:
    allowed = OWN_NAMESPACES | graph.namespaces
    for n in graph.calls:
        if n.target is operator.getitem:
            continue
        if not isinstance(n.target, OpOverload):
            yield f"{n.name}: target {n.target} is not an op overload"
        elif n.target.namespace not in allowed:
            yield f"{n.name}: namespace of {n.target} is not declared"
        elif op_name(n) in _BANNED:
            yield f"{n.name}: {n.target} may not occur; want {_BANNED[op_name(n)]}"


def _functional(graph: Graph) -> Iterator[Finding]:
    for n in graph.calls:
        if isinstance(n.target, OpOverload) and is_mutable(n.target):
            yield f"{n.name}: {n.target} mutates its argument"


def _typed(graph: Graph) -> Iterator[Finding]:
    for n in graph.module.graph.nodes:
        if n.op != "output" and "val" not in n.meta:
            yield f"{n.name}: no value annotation"


def _originated(graph: Graph) -> Iterator[Finding]:
    for n in graph.calls:
        if not isinstance(n.meta.get("origin"), Origin):
            yield f"{n.name}: no origin"


def _signature(graph: Graph) -> Iterator[Finding]:
    placeholders = [n.name for n in graph.module.graph.nodes if n.op == "placeholder"]
    listed = [i.node for i in graph.inputs]
    if placeholders != listed:
        yield f"placeholders {placeholders} differ from the listed inputs {listed}"
    yielded = [n.name if isinstance(n, fx.Node) else repr(n) for n in _outputs(graph)]
    listed = [o.node for o in graph.outputs]
    if yielded != listed:
        yield f"output tuple {yielded} differs from the listed outputs {listed}"
    for (kind, name), count in Counter((i.kind, i.name) for i in graph.inputs).items():
        if count > 1:
            yield f"{kind} {name} is listed {count} times"


def _outputs(graph: Graph) -> tuple[object, ...]:
    value = graph.module.graph.output_node().args[0]
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _weights(graph: Graph) -> Iterator[Finding]:
    nodes = graph.nodes
    for i in graph.inputs:
        if not i.kind.is_weight:
            continue
        if i.name not in graph.weights:
            yield f"{i.node}: weight {i.name} is missing"
            continue
        have, want = graph.weights[i.name], tensors(nodes[i.node])
        if want and (have.shape, have.dtype) != (want[0].shape, want[0].dtype):
            yield f"{i.node}: weight {i.name} is {_type(have)}, the graph wants {_type(want[0])}"


def _type(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def _whole_tuples(graph: Graph) -> Iterator[Finding]:
    nodes = graph.nodes
    for o in graph.outputs:
        node = nodes.get(o.node)
        if node is not None and isinstance(node.meta.get("val"), list | tuple):
            yield f"{o.node}: a tuple may not leave the graph, only its items"
    for i in graph.inputs_of(InputKind.VALUE):
        if len(tensors(nodes[i.node])) != 1:
            yield f"{i.node}: a value that crosses a cut must be one tensor"


def _names(graph: Graph) -> Iterator[Finding]:
    nodes = graph.nodes
    kinds = (OutputKind.OUTPUT, OutputKind.LOSS, OutputKind.BUFFER_UPDATE)
    for o in graph.outputs_of(*kinds):
        if o.name in nodes and o.name != o.node and nodes[o.name].op == "call_function":
            yield f"{o.node}: is yielded as {o.name}, which is the name of another node"


RULES: dict[str, Rule] = {
    "kinds-of-nodes": _kinds_of_nodes,
    "known-ops": _known_ops,
    "functional": _functional,
    "typed": _typed,
    "originated": _originated,
    "signature": _signature,
    "weights": _weights,
    "whole-tuples": _whole_tuples,
    "names": _names,
}
"""Rule name to what finds its violations."""


def verify(graph: Graph, where: str = "graph") -> None:
    """Check all rules.

    Args:
        graph: The graph to check.
        where: What to call it in the error.

    Raises:
        GraphError: At least one rule is broken; all findings are listed.
    """
    try:
        graph.module.graph.lint()
    except RuntimeError as error:
        raise GraphError("the FX graph is malformed", where=where, got=error) from error
    found = [f"[{name}] {finding}" for name, rule in RULES.items() for finding in rule(graph)]
    if found:
        shown = "\n    ".join(found[:20])
        more = f"\n    (+{len(found) - 20} more)" if len(found) > 20 else ""
        raise GraphError(
            f"the graph breaks {len(found)} rule(s)", where=where, got=f"\n    {shown}{more}"
        )
