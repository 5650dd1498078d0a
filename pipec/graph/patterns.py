"""Patterns over ATen: where a function of ops occurs in a graph, and another one in its place.

```text
pattern(x, w, b=None) ──► matches ──► where(match)? ──► replacement(x, w, b) in its place
```
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from pipec.errors import GraphError
from pipec.graph.infer import type_of, type_words
from pipec.graph.ir import (
    Graph,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    origin,
    tensor,
    tensors,
)
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import OpOverload, PatternMatcher, namespace_of


@dataclass(frozen=True)
class Match:
    """One place where a pattern occurs.

    Attributes:
        graph: The graph.
        bound: What the pattern's parameters stand for: nodes, or plain arguments (ints, lists).
        calls: The nodes that the pattern's calls stand for, in graph order; the last is the result.
    """

    graph: Graph
    bound: Mapping[str, object]
    calls: tuple[fx.Node, ...]

    def value(self, name: str) -> torch.Tensor:
        """The fake tensor that a parameter of the pattern stands for.

        Raises:
            GraphError: It stands for no tensor.
        """
        node = self.bound[name]
        if not isinstance(node, fx.Node):
            raise GraphError("no tensor", where=f"pattern parameter {name}", got=repr(node))
        return tensor(node)


@dataclass(frozen=True)
class Rule:
    """What is replaced by what.

    Attributes:
        pattern: A function that calls ops of `torch.ops` and returns one value. Its parameters
            match any argument: a tensor, a number, a list. It is traced, not run.
        replacement: What is written instead. It takes those of the pattern's parameters that it
            names, and returns a value of the same shape and dtype.
        weights: Parameters that must be weights that never change: ``replacement`` is given their
            tensors, and what it computes from these becomes new weights. Only one whose default is
            None may be absent.
        where: Whether to replace a match.
    """

    pattern: Callable[..., object]
    replacement: Callable[..., object]
    weights: Collection[str] = ()
    where: Callable[[Match], bool] = lambda _: True

    def __str__(self) -> str:
        return f"{self.pattern.__name__} to {self.replacement.__name__}"


def matches(graph: Graph, rule: Rule) -> list[Match]:
    """The matches that may be replaced together: first come, first served where they overlap.

    A call inside of the pattern that something else reads too is no match.

    Raises:
        GraphError: The pattern does not return one value that it computes.
    """
    traced = fx.symbolic_trace(rule.pattern).graph
    (result,) = traced.output_node().args
    if not isinstance(result, fx.Node) or result.op != "call_function" or len(result.users) != 1:
        raise GraphError("a pattern returns one value that it computes", where=str(rule))
    order = {n: k for k, n in enumerate(graph.module.graph.nodes)}
    names = list(inspect.signature(rule.pattern).parameters)
    holders = [n for n in traced.nodes if n.op == "placeholder"]
    taken, found = set[fx.Node](), list[Match]()
    for nodes in PatternMatcher(traced).maps(graph.module.graph):
        bound = {name: nodes.get(p) for name, p in zip(names, holders, strict=True)}
        calls = sorted(
            (n for p, n in nodes.items() if p.op == "call_function"), key=order.__getitem__
        )
        match = Match(graph, bound, tuple(calls))
        inside = any(b in calls for b in bound.values() if isinstance(b, fx.Node))
        fits = not inside and taken.isdisjoint(calls) and _weights_fit(match, rule)
        if fits and rule.where(match):
            taken.update(calls)
            found.append(match)
    return found


def _weights_fit(match: Match, rule: Rule) -> bool:
    graph, parameters = match.graph, inspect.signature(rule.pattern).parameters
    changing = {o.name for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)}
    fixed = {i.node for i in graph.inputs if i.kind.is_weight and i.name not in changing}
    if graph.outputs_of(OutputKind.LOSS):
        fixed = set()
    for name in rule.weights:
        b = match.bound[name]
        absent = b is None and parameters[name].default is None
        if not absent and not (isinstance(b, fx.Node) and b.name in fixed):
            return False
    return True


def replace(graph: Graph, rule: Rule, found: Collection[Match]) -> Graph:
    """The graph with the replacement in place of each of ``found``, which `matches` gave.

    New nodes take the origin of the result that they replace. Weights that nobody reads any more
    go; strides of what is computed from a replaced value are inferred again.

    Raises:
        GraphError: The replacement is of another type, or calls something that is no op.
    """
    draft = _Draft(graph)
    for match in found:
        draft.replace(match, rule)
    return draft.finished()


class _Draft:
    """A copy of a graph that is being changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.fx = graph, fx.Graph()
        self.inputs, self.weights = list(graph.inputs), dict(graph.weights)
        self.namespaces = set(graph.namespaces)
        self._new = dict[fx.Node, fx.Node]()  # a node of the old graph to what stands for it
        for n in graph.module.graph.nodes:
            self._new[n] = self.fx.node_copy(n, self._new.__getitem__)
        self._restrided = set[fx.Node]()

    def replace(self, match: Match, rule: Rule) -> None:
        """Write the replacement before the result of the match, and erase the match."""
        calls = [self._new[n] for n in match.calls]
        old = calls[-1]
        writer = _Writer(self, rule, old)
        wanted = inspect.signature(rule.replacement).parameters
        bound = {name: b for name, b in match.bound.items() if name in wanted}
        given = {name: self._argument(name, b, rule, writer) for name, b in bound.items()}
        with self.fx.inserting_before(old), torch.no_grad():
            new = writer.create_arg(rule.replacement(**given))
        got, want = new.meta["val"] if isinstance(new, fx.Node) else new, tensor(old)
        if _kind(got) != _kind(want):
            where = f"{rule}, at {old.name}"
            raise GraphError(
                "a replacement of another type",
                where=where,
                got=type_words(got),
                want=type_words(want),
            )
        if type_of(got) != type_of(want):
            self._restrided.add(new)
        old.replace_all_uses_with(new)
        for n in [*reversed(calls), *reversed(writer.written)]:
            if not n.users and n is not new:
                self.fx.erase_node(n)
        self._new[match.calls[-1]] = new
        read = {self._new[b] for b in match.bound.values() if isinstance(b, fx.Node)}
        self._drop(read | {n for _, n in writer.known.values()})

    def _argument(self, name: str, bound: object, rule: Rule, writer: "_Writer") -> object:
        """What the replacement is given: a weight's tensor, a proxy, or a plain argument."""
        if name in rule.weights and isinstance(bound, fx.Node):
            holder = self._new[bound]
            weight = self.weights[next(i.name for i in self.inputs if i.node == holder.name)]
            writer.known[id(weight)] = weight, holder
            return weight
        given: Any = bound
        return fx.map_arg(given, lambda n: fx.Proxy(self._new[n], writer))  # type: ignore[arg-type,return-value]

    def add_weight(self, value: torch.Tensor, prefix: str) -> fx.Node:
        """A placeholder behind the other weights' for a new one."""
        heads = {name.split(".")[0] for name in (*self.weights, *self.graph.tied)}
        names = (f"{prefix}_{k}" for k in range(len(heads) + 1))
        name = next(n for n in names if n not in heads)
        at = sum(i.kind.is_weight for i in self.inputs)
        value = value.detach().contiguous()
        with self.fx.inserting_before(list(self.fx.nodes)[at]):
            node = self.fx.placeholder(f"p_{name}")
        first = next(n for n in self.fx.nodes if "val" in n.meta)
        with tensor(first).fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        self.inputs.insert(at, GraphInput(node.name, InputKind.PARAMETER, name))
        self.weights[name] = value
        return node

    def _drop(self, nodes: Collection[fx.Node]) -> None:
        """Erase those of the placeholders that are weights without readers."""
        for i in [i for i in self.inputs if i.kind.is_weight]:
            node = next((n for n in nodes if n.name == i.node and not n.users), None)
            if node is not None:
                self.fx.erase_node(node)
                self.inputs.remove(i)
                del self.weights[i.name]

    def finished(self) -> Graph:
        """The new graph."""
        for n in self.fx.nodes:
            if n.op == "call_function" and not self._restrided.isdisjoint(n.all_input_nodes):
                before, n.meta["val"] = n.meta["val"], _yielded(n)
                if type_of(before) != type_of(n.meta["val"]):
                    self._restrided.add(n)
        return self.graph.replace(
            module=fx.GraphModule({}, self.fx, type(self.graph.module).__name__),
            inputs=tuple(self.inputs),
            outputs=tuple(self._outputs()),
            weights=self.weights,
            tied={k: v for k, v in self.graph.tied.items() if k in self.weights},
            namespaces=frozenset(self.namespaces),
        )

    def _outputs(self) -> Iterator[GraphOutput]:
        nodes: Any = self.fx.output_node().args[0]
        for o, n in zip(self.graph.outputs, nodes, strict=True):
            yield GraphOutput(n.name, o.kind, o.name)


class _Writer(GraphAppendingTracer):
    """Writes the calls of a replacement into a draft, with types and origins."""

    def __init__(self, draft: _Draft, rule: Rule, old: fx.Node) -> None:
        super().__init__(draft.fx)
        self.known = dict[int, tuple[torch.Tensor, fx.Node]]()
        self.written = list[fx.Node]()
        self._draft, self._rule, self._old = draft, rule, old

    def create_node(self, kind: str, target: Any, *args: Any, **_: Any) -> fx.Node:
        """One call.

        Raises:
            GraphError: It is no op, or does not take its arguments.
        """
        where = f"{self._rule}, {target}"
        if kind != "call_function":
            raise GraphError("no op of torch.ops", where=where, got=kind)
        # the name of a node of another value is never taken, not even after that node is gone
        name = f"{self._old.name}_{target.__name__.split('.')[0]}"
        node = super().create_node(kind, target, args[0], args[1], name)
        node.meta["origin"] = origin(self._old)
        try:
            node.meta["val"] = _yielded(node)
        except Exception as error:
            got = (str(error).strip() or repr(error)).splitlines()[0]
            raise GraphError("an op does not take its arguments", where=where, got=got) from error
        if isinstance(target, OpOverload):
            self._draft.namespaces |= {namespace_of(target)} - OWN_NAMESPACES
        self.written.append(node)
        return node

    def create_arg(self, a: Any) -> Any:
        """A tensor is a weight: one of the pattern's, or a new one."""
        if not isinstance(a, torch.Tensor):
            return super().create_arg(a)
        if id(a) not in self.known:
            prefix = self._rule.replacement.__name__
            self.known[id(a)] = a, self._draft.add_weight(a, prefix)
        return self.known[id(a)][1]


def _kind(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return type_words(value)
    return value.dtype, tuple(value.shape), value.device.type


def _yielded(node: fx.Node) -> Any:
    """What a call yields of the annotated values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = next(t.fake_mode for n in node.all_input_nodes for t in tensors(n))  # type: ignore[attr-defined]
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]
