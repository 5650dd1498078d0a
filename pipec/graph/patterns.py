"""Patterns over ATen: where a function of ops occurs in a graph, and another one in its place.

```text
pattern(x, w, b=None) ──► matches ──► where(match)? ──► replacement(x, w, b) in its place
```
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pipec.errors import GraphError
from pipec.graph.draft import Draft
from pipec.graph.ir import Graph, OutputKind, tensor
from pipec.graph.torch_private import PatternMatcher


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
    draft, names = Draft(graph), {i.node: i.name for i in graph.inputs}
    wanted = inspect.signature(rule.replacement).parameters

    def given(name: str, bound: Any) -> Any:
        if name in rule.weights and isinstance(bound, fx.Node):
            return graph.weights[names[bound.name]]
        return fx.map_arg(bound, draft.of.__getitem__)

    for match in found:
        old = draft.of[match.calls[-1]]
        arguments = {name: given(name, b) for name, b in match.bound.items() if name in wanted}
        draft.of[match.calls[-1]] = new = draft.write(rule.replacement, old, old, **arguments)
        draft.substitute(old, new)
    return draft.finished()
