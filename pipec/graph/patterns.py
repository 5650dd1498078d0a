"""Patterns over ATen: where a function of ops occurs in a graph, and another one in its place.

```text
pattern(x, w, b=None) ──► a match ──► where(match)? ──► replacement(x, w, b) in its place
```
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import fx

from pipec.errors import GraphError, PassError
from pipec.graph.arguments import bind_if_op
from pipec.graph.draft import Draft
from pipec.graph.ir import Graph, tensor
from pipec.graph.torch_private import OpOverload, argument_names_and_defaults

_MOST_PER_CALL = 10
"""Rules that replace more than this, per node of the graph, are taken to go on for ever."""
_Bound = dict[fx.Node, Any]
"""What the nodes of a pattern stand for."""


@dataclass(frozen=True)
class Match:
    """One place where a pattern occurs.

    Attributes:
        bound: What the pattern's parameters stand for: nodes, or plain arguments (ints, lists).
        results: The nodes that its results stand for.
        before: The first reader of a result or the last result: there the replacement is written.
    """

    bound: Mapping[str, Any]
    results: tuple[fx.Node, ...]
    before: fx.Node

    def value(self, name: str) -> torch.Tensor:
        """The fake tensor that a parameter of the pattern stands for."""
        return tensor(self.bound[name])


@dataclass(frozen=True)
class Rule:
    """What is replaced by what.

    Attributes:
        pattern: A function that calls ops of `torch.ops`, or an op with any arguments. It returns
            one value, or several that are read off shared arguments. Its parameters match any
            argument: a tensor, a number, a list. It is traced, not run.
        replacement: What is written instead. It takes those of the pattern's parameters that it
            names, and returns as many values, of the same shapes and dtypes.
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

    @cached_property
    def results(self) -> list[fx.Node]:
        """The results of the pattern, in a graph of its own.

        Raises:
            GraphError: It does not return values that it computes.
        """
        if isinstance(self.pattern, OpOverload):
            graph = fx.Graph()
            named: dict[str, Any] = {
                n: graph.placeholder(n) for n in argument_names_and_defaults(self.pattern)
            }
            return [graph.call_function(self.pattern, kwargs=named)]
        (found,) = fx.symbolic_trace(self.pattern).graph.output_node().args
        results: Any = found if isinstance(found, tuple) else (found,)
        if not all(isinstance(n, fx.Node) and n.op == "call_function" for n in results):
            raise GraphError("a pattern returns values that it computes", where=str(self))
        return list(results)

    def matches(self, node: fx.Node, fixed: Collection[fx.Node]) -> Iterator[Match]:
        """How it occurs with its first result at ``node``; weights that never change are given."""
        holders = {str(p.target): p for p in self.results[0].graph.find_nodes(op="placeholder")}
        for found in _match(self.results, [node], {}):
            bound = {name: found.get(p) for name, p in holders.items()}
            results, read = tuple(found[p] for p in self.results), _nodes(bound)
            calls = {g for p, g in found.items() if p.op == "call_function"}
            inner = {r for n in calls.difference(results) for r in n.users}
            before = min([max(results), *(r for n in results for r in n.users)])
            folded = [(bound[name], holders[name]) for name in self.weights]
            match = Match(bound, results, before)
            if (
                inner <= calls
                and calls.isdisjoint(read)
                and all(n < before for n in read)
                and all(
                    b in fixed if isinstance(b, fx.Node) else b is None and p.args == (None,)
                    for b, p in folded
                )
                and self.where(match)
            ):
                yield match


def _match(results: Sequence[fx.Node], at: Collection[fx.Node], bound: _Bound) -> Iterator[_Bound]:
    """What a pattern's nodes can stand for, its first result at one of ``at``."""
    first, *others = results
    for node in at:
        trial = dict(bound)
        if _stands_for(first, node, trial):
            read = _nodes([trial.get(p) for n in others[:1] for p in n.all_input_nodes])
            near = sorted({r for n in read for r in n.users if r.users})
            yield from _match(others, near, trial) if others else [trial]


def _stands_for(p: Any, g: Any, bound: _Bound) -> bool:
    """Whether an argument of a graph is one of the pattern, which is remembered."""
    if isinstance(p, fx.Node):
        if p in bound:
            return bool(bound[p] == g)
        taken = g in bound.values()
        bound[p] = g
        if p.op == "placeholder":
            return True
        same = isinstance(g, fx.Node) and p.target == g.target and not taken
        return same and _stands_for(_arguments(p), _arguments(g), bound)
    if isinstance(p, list | tuple):
        same = isinstance(g, list | tuple) and len(p) == len(g)
        return same and all(_stands_for(a, b, bound) for a, b in zip(p, g, strict=True))
    return type(p) is type(g) and bool(p == g)


def _arguments(node: fx.Node) -> list[Any]:
    """With defaults, in the order of the op's schema."""
    return list(bind_if_op(node).values()) or [*node.args]


def _nodes(values: Any) -> list[fx.Node]:
    found = list[fx.Node]()
    fx.map_arg(values, found.append)
    return found


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Apply rules at every node, the first that matches, until none does.

    New nodes take the origin of the first result that they replace. What nobody reads any more
    goes, weights too; strides of what is computed from a replaced value are inferred again.

    Returns:
        The new graph; the same object if no rule ever matched.

    Raises:
        PassError: The rules never come to an end.
        GraphError: A replacement is of another type than what it replaces, or is no graph of ops.
    """
    draft, changed, most = Draft(graph), True, _MOST_PER_CALL * len(graph.calls)
    left = most
    while changed:
        changed = False
        for node in list(draft.graph.nodes):
            found = ((r, m) for r in rules if node.users for m in r.matches(node, draft.fixed))
            for rule, match in islice(found, 1):
                if not left:
                    raise PassError(
                        "the rules come to no end",
                        where=str(rule),
                        got=f"a match after {_MOST_PER_CALL} replacements per node of the graph",
                        hint="a replacement must not contain its own pattern",
                    )
                _replace(draft, rule, match)
                changed, left = True, left - 1
        draft.erase_unread()
    return graph if left == most else draft.finish()


def _replace(draft: Draft, rule: Rule, match: Match) -> None:
    given = {n: match.bound[n] for n in inspect.signature(rule.replacement).parameters}
    given |= {n: draft.fixed.get(given[n]) for n in given.keys() & set(rule.weights)}
    new = draft.write(rule.replacement, match.before, match.results[0], **given)
    new = new if isinstance(new, tuple) else (new,)
    if len(new) != len(match.results):
        words = {"got": f"{len(new)} values", "want": f"{len(match.results)}"}
        raise GraphError("a replacement of another type", where=str(rule), **words)
    for old, value in zip(match.results, new, strict=True):
        draft.substitute(old, value)
