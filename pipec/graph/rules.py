"""The rules of the IR, as one table; `verify` is run after every pass.

Each rule is a row (name, function that yields what breaks it). All findings are collected and
raised at once. A model, a stage and the four training graphs of a stage follow the same rules;
only what may go in and out of them differs (`ENDS`).
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import torch
from torch import fx

from pipec.errors import GraphError, first_line
from pipec.graph.arguments import find_disagreeing
from pipec.graph.comm import FETCH, OFFLOAD, RECV, SEND
from pipec.graph.finding import Finding, refuse
from pipec.graph.infer import Inference, type_words
from pipec.graph.ir import Graph, InputKind, Origin, OutputKind, op_name, tensors
from pipec.graph.tensor_type import types_text
from pipec.graph.torch_private import OpOverload, is_mutable

OWN_NAMESPACES = frozenset({"aten", "prims", "pipec"})
"""Op namespaces that every graph may use; others are declared in `Graph.namespaces`."""

_STRIDED = "reshape: a view is only legal for the strides seen while tracing"
_BANNED: dict[OpOverload, str] = {
    torch.ops.aten.view.default: _STRIDED,
    torch.ops.aten._unsafe_view.default: _STRIDED,
    torch.ops.aten._assert_tensor_metadata.default: "nothing: it has no value",
}

_ARGUMENTS = (
    fx.Node, bool, int, float, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""What an argument of a node can be: what a file can hold."""


class Role(StrEnum):
    """What a graph is of a plan."""

    MODEL = "model"
    STAGE = "stage"
    F = "F"
    B = "B"
    I = "I"  # noqa: E741
    W = "W"


@dataclass(frozen=True)
class Ends:
    """What may go in and out of a graph, and which communication nodes it may have."""

    inputs: frozenset[InputKind]
    outputs: frozenset[OutputKind]
    first: frozenset[object] = frozenset()
    last: frozenset[object] = frozenset()


_i, _o = InputKind, OutputKind
_WEIGHTS = frozenset(kind for kind in _i if kind.is_weight)
_RESULTS = frozenset({_o.OUTPUT, _o.LOSS, _o.BUFFER_UPDATE})
_KEPT = _WEIGHTS | {_i.SAVED}
ENDS = {
    Role.MODEL: Ends(_WEIGHTS | {_i.INPUT}, _RESULTS),
    Role.STAGE: Ends(
        _WEIGHTS | {_i.INPUT, _i.VALUE}, _RESULTS | {_o.VALUE}, frozenset({RECV}), frozenset({SEND})
    ),
    Role.F: Ends(
        _WEIGHTS | {_i.INPUT, _i.VALUE}, _RESULTS | {_o.VALUE, _o.SAVED}, last=frozenset({OFFLOAD})
    ),
    Role.B: Ends(
        _KEPT | {_i.GRADIENT},
        frozenset({_o.GRADIENT, _o.WEIGHT_GRADIENT}),
        first=frozenset({FETCH}),
    ),
    Role.I: Ends(
        _KEPT | {_i.GRADIENT}, frozenset({_o.GRADIENT, _o.SAVED}), first=frozenset({FETCH})
    ),
    Role.W: Ends(_KEPT, frozenset({_o.WEIGHT_GRADIENT})),
}
"""What each kind of graph may read and yield."""

NodeRule = Callable[[Graph], Iterator[Finding]]
Rule = Callable[[Graph, Role], Iterator[Finding]]


def _well_formed(graph: Graph) -> Iterator[Finding]:
    """Nodes stand behind what they read, belong to the graph, and have names of their own."""
    try:
        graph.module.graph.lint()
    except (RuntimeError, ValueError, AttributeError) as error:
        yield Finding("the FX graph", first_line(error), "a well-formed graph")


def _kinds_of_nodes(graph: Graph) -> Iterator[Finding]:
    want = "a placeholder, call_function or output node"
    for n in graph.module.graph.nodes:
        if n.op not in ("placeholder", "call_function", "output"):
            yield Finding(n.name, f"a {n.op} node", want)
        elif n.op != "output" and not _is_name(n.name):
            yield Finding(n.name, "a name that Python code cannot have", "another identifier")
        for value in (*n.args, *n.kwargs.values()):
            if not _can_be_saved(value):
                yield Finding(
                    n.name, f"argument {value}", "nodes, numbers, strings, types of torch"
                )


@lru_cache(maxsize=100_000)
def _is_name(name: str) -> bool:
    return fx.Graph().placeholder(name).name == name


def _can_be_saved(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_can_be_saved, value))
    return isinstance(value, _ARGUMENTS)


def _check_ops(graph: Graph) -> Iterator[Finding]:
    allowed = OWN_NAMESPACES | graph.namespaces
    for n in graph.calls:
        if n.target is operator.getitem:
            continue
        if not isinstance(n.target, OpOverload):
            yield Finding(n.name, f"target {n.target}, not an op overload", "an op of torch.ops")
        elif n.target.namespace not in allowed:
            yield Finding(n.name, n.target, f"an op of a declared namespace: {sorted(allowed)}")
        elif n.target in _BANNED:
            yield Finding(n.name, n.target, _BANNED[n.target])


def _functional(graph: Graph) -> Iterator[Finding]:
    for n in graph.calls:
        if isinstance(n.target, OpOverload) and is_mutable(n.target):
            yield Finding(n.name, f"{n.target}, which mutates its argument", "a functional op")


def _check_types(graph: Graph) -> Iterator[Finding]:
    for n in graph.module.graph.nodes:
        if n.op != "output" and "val" not in n.meta:
            yield Finding(n.name, "no value annotation", 'the type of its result in meta["val"]')


def _types_follow_ops(graph: Graph) -> Iterator[Finding]:
    """What is annotated is what the op yields of arguments of the annotated types."""
    inference = Inference(strided=all(n.target is not RECV for n in graph.calls))
    for n in graph.calls:
        if all("val" in x.meta for x in (n, *n.all_input_nodes)):
            found = inference.find_wrong(n)
            if found is not None:
                yield Finding(f"{n.name} ({op_name(n)})", type_words(n.meta["val"]), found)


def _arguments_agree(graph: Graph) -> Iterator[Finding]:
    """Sizes that torch's kernel does not compare before it reads or writes memory."""
    for n in graph.calls:
        if all("val" in x.meta for x in n.all_input_nodes):
            yield from find_disagreeing(n)


def _check_origins(graph: Graph) -> Iterator[Finding]:
    for n in graph.calls:
        if not isinstance(n.meta.get("origin"), Origin):
            yield Finding(n.name, "no origin", 'the layer that it came from in meta["origin"]')


def _signature(graph: Graph, _: Role) -> Iterator[Finding]:
    placeholders = [n.name for n in graph.module.graph.nodes if n.op == "placeholder"]
    listed = [i.node for i in graph.inputs]
    if placeholders != listed:
        yield Finding("inputs", f"placeholders {placeholders}", f"the listed inputs {listed}")
    yielded = [n.name if isinstance(n, fx.Node) else repr(n) for n in _outputs(graph)]
    listed = [o.node for o in graph.outputs]
    if yielded != listed:
        yield Finding("outputs", f"output tuple {yielded}", f"the listed outputs {listed}")
    for entries in (graph.inputs, graph.outputs):
        for (kind, name), count in Counter((e.kind, e.name) for e in entries).items():
            if count > 1:
                yield Finding(f"{kind} {name}", f"listed {count} times", "once")


def _outputs(graph: Graph) -> tuple[object, ...]:
    value = graph.module.graph.output_node().args[0]
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _weights(graph: Graph, _: Role) -> Iterator[Finding]:
    nodes = graph.nodes
    read = [i for i in graph.inputs if i.kind.is_weight]
    for i in read:
        if i.name not in graph.weights:
            yield Finding(i.node, f"weight {i.name} is missing", "a tensor for every weight")
            continue
        have, want = graph.weights[i.name], tensors(nodes[i.node]) if i.node in nodes else []
        if want and (have.shape, have.dtype) != (want[0].shape, want[0].dtype):
            yield Finding(i.node, f"weight {i.name} of {types_text([have])}", types_text(want[:1]))
    for name in graph.weights.keys() - {i.name for i in read}:
        yield Finding(f"weight {name}", "no placeholder that reads it", "weights that are read")


def _whole_tuples(graph: Graph, _: Role) -> Iterator[Finding]:
    nodes = graph.nodes
    for o in graph.outputs:
        node = nodes.get(o.node)
        if node is not None and isinstance(node.meta.get("val"), list | tuple):
            yield Finding(o.node, "a tuple that leaves the graph", "its items")
    for i in graph.inputs_of(InputKind.VALUE):
        if i.node in nodes and len(tensors(nodes[i.node])) != 1:
            yield Finding(i.node, "a value of several tensors that crosses a cut", "one tensor")


def _names(graph: Graph, _: Role) -> Iterator[Finding]:
    """A result is not called like another node; values and what is saved keep their node's name."""
    nodes = graph.nodes
    for o in graph.outputs_of(OutputKind.OUTPUT, OutputKind.LOSS, OutputKind.BUFFER_UPDATE):
        if o.name in nodes and o.name != o.node and nodes[o.name].op == "call_function":
            yield Finding(o.node, f"yielded as {o.name}, the name of another node", "its own name")
    for o in graph.outputs_of(OutputKind.SAVED):
        if o.name != o.node:
            yield Finding(o.node, f"saved as {o.name}", "the name of the node")


def _ends(graph: Graph, role: Role) -> Iterator[Finding]:
    """Only what this kind of graph may read and yield."""
    may = ENDS[role]
    for i in graph.inputs:
        if i.kind not in may.inputs:
            yield Finding(i.node, f"an input of kind {i.kind}", f"none such in {role}")
    for o in graph.outputs:
        if o.kind not in may.outputs:
            yield Finding(o.node, f"an output of kind {o.kind}", f"none such in {role}")


def _ends_in_order(graph: Graph, role: Role) -> Iterator[Finding]:
    """Receives come first and sends last, in the graphs that have them."""
    may, first = ENDS[role], True
    left = False
    for n in graph.calls:
        if n.target in (SEND, OFFLOAD):
            left = True
            if n.target not in may.last:
                yield Finding(n.name, op_name(n), f"none such in {role}")
        elif n.target in (RECV, FETCH):
            if n.target not in may.first or not first:
                yield Finding(n.name, op_name(n), "only at the start of a stage, or of B and I")
        else:
            first = False
            if left:
                yield Finding(n.name, "a node behind those that send", "sends and copies last")


NODE_RULES: dict[str, NodeRule] = {
    "well-formed": _well_formed,
    "kinds-of-nodes": _kinds_of_nodes,
    "known-ops": _check_ops,
    "functional": _functional,
    "typed": _check_types,
    "arguments-agree": _arguments_agree,
    "types-follow-ops": _types_follow_ops,
    "originated": _check_origins,
}
"""Rule name to what finds its violations in the nodes, whatever goes in and out."""

RULES: dict[str, Rule] = {
    "signature": _signature,
    "weights": _weights,
    "whole-tuples": _whole_tuples,
    "names": _names,
    "ends": _ends,
    "ends-in-order": _ends_in_order,
}
"""Rule name to what finds its violations in what goes in and out."""


class Checker:
    """Checks graphs; nodes that several of them share are looked at once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, frozenset[str]], list[tuple[str, Finding]]] = {}

    def find_violations(self, graph: Graph, role: Role) -> list[tuple[str, Finding]]:
        """What breaks the rules: (name of the rule, finding)."""
        key = id(graph.module), graph.namespaces
        if key not in self._nodes:
            found: list[tuple[str, Finding]] = []
            for name, rule in NODE_RULES.items():
                here = [(name, f) for f in rule(graph)]
                found += here
                if here and name in ("well-formed", "arguments-agree"):
                    break  # nothing else can be asked of such a graph
            self._nodes[key] = found
        found = self._nodes[key]
        if any(name == "well-formed" for name, _ in found):
            return found
        return found + [(name, f) for name, rule in RULES.items() for f in rule(graph, role)]

    def check(self, graph: Graph, role: Role, where: str) -> None:
        """Refuse a graph that breaks a rule.

        Raises:
            GraphError: All findings are listed.
        """
        refuse(GraphError, "graph", self.find_violations(graph, role), where)


def verify(graph: Graph, where: str = "graph", role: Role = Role.MODEL) -> None:
    """Check all rules.

    Raises:
        GraphError: At least one rule is broken; all findings are listed.
    """
    Checker().check(graph, role, where)
