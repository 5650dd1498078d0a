"""Stages for any size of the axes that a model leaves open: arguments of ops that follow sizes.

The model is traced at other sizes too. A whole number among the arguments of an op that differs
there is written as a formula of the sizes of what the stage is given (`pipec.graph.size_formula`):

```text
view_3 = reshape(linear_2, [8, 16, 4, 32])     argument 1, items 0 and 1:  x.0 and x.1
```
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pipec.errors import GraphError, first_line
from pipec.graph.comm import RECV, SEND
from pipec.graph.ir import Graph, InputKind, nbytes, origin, tensor, tensors
from pipec.graph.size_formula import Fit, SizedArgument, Sizes
from pipec.graph.torch_private import graph_module, mute_logs

Shapes = Mapping[str, Sequence[int]]
"""Shapes by name of an input or a value."""

Path = tuple[int | str, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Traces:
    """A model at the planned sizes of its open axes and at others.

    Raises:
        GraphError: It is not the same model everywhere.
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._nodes = [g.nodes for g in graphs]
        first, *others = self._nodes
        for nodes, graph in zip(others, graphs[1:], strict=True):
            for a, b in zip(first.values(), nodes.values(), strict=False):
                if (a.name, a.target) != (b.name, b.target):
                    raise GraphError("the model has other ops at other sizes", where=origin(a))
            if len(first) != len(nodes):
                raise GraphError("the model has more ops at some sizes than at others")
            for i in graphs[0].inputs_of(InputKind.CONSTANT):
                one, other = graphs[0].weights[i.name], graph.weights.get(i.name)
                if other is None or one.shape != other.shape or not torch.equal(one, other):
                    raise GraphError("a constant of the model depends on a size", where=i.name)

    def arguments(self, stage: Graph) -> tuple[SizedArgument, ...]:
        """Arguments of a stage's nodes that follow its sizes.

        Raises:
            GraphError: One follows from nothing that the stage is given, or is no whole number.
        """
        values = [i for i in stage.inputs if not i.kind.is_weight]
        names = {i.name: i.node if i.kind is InputKind.INPUT else i.name for i in values}
        known = {name: node for name, node in names.items() if node in self._nodes[0]}
        fit = Fit({name: self._dims(node) for name, node in known.items()})
        found = list[SizedArgument]()
        for n in stage.calls:
            calls = [nodes[n.name] for nodes in self._nodes if n.name in nodes]
            if not calls or any(c.target is not n.target for c in calls):
                continue  # a pass has made it
            for path, sizes in _leaves(calls):
                if not all(s == sizes[0] or repr(s) == repr(sizes[0]) for s in sizes):  # nan
                    found.append(_argument(n, path, sizes, fit))
        return tuple(found)

    def _dims(self, name: str) -> tuple[Sizes, ...]:
        shapes = [tuple(map(int, tensor(nodes[name]).shape)) for nodes in self._nodes]
        if len({len(s) for s in shapes}) > 1:
            raise GraphError("how many dimensions a value has depends on a size", where=name)
        return tuple(zip(*shapes, strict=True))


def _argument(n: fx.Node, path: Path, sizes: Sequence[object], fit: Fit) -> SizedArgument:
    whole = tuple(s for s in sizes if type(s) is int)
    if len(whole) < len(sizes):
        what = "an argument of an op depends on a size, and is no whole number"
    else:
        formula = fit(whole)
        if formula is not None:
            return SizedArgument(n.name, path, formula)
        what = "a stage needs a size that follows from nothing it receives"
    raise GraphError(what, where=f"{n.name}, {origin(n)}", got=", ".join(map(str, sizes)))


def _leaves(calls: Sequence[fx.Node]) -> Iterator[tuple[Path, list[object]]]:
    """Every argument of one call at several sizes, lists taken apart: where it stands, values."""
    for k in range(max(len(c.args) for c in calls)):
        yield from _inside((k,), [c.args[k] if k < len(c.args) else None for c in calls])
    for name in dict.fromkeys(name for c in calls for name in c.kwargs):
        yield from _inside((name,), [c.kwargs.get(name) for c in calls])


def _inside(path: Path, values: list[object]) -> Iterator[tuple[Path, list[object]]]:
    lists = [v for v in values if isinstance(v, list | tuple)]
    if not lists:
        yield path, [v.name if isinstance(v, fx.Node) else v for v in values]
    elif len(lists) < len(values) or len({len(v) for v in lists}) > 1:
        yield path, list(map(str, values))
    else:
        for k, items in enumerate(zip(*lists, strict=True)):
            yield from _inside((*path, k), list(items))


def with_sizes(found: Arguments, sized: Sequence[SizedArgument], shapes: Shapes) -> Arguments:
    """Arguments of a node at other sizes.

    Raises:
        GraphError: There is no such argument.
    """
    args, kwargs = found
    for argument in sized:
        first, *rest = argument.path
        try:
            size = argument.formula(shapes)
            if isinstance(first, str):
                kwargs = {**kwargs, first: _change(kwargs[first], rest, size)}
            else:
                args = tuple(_change(args, [first, *rest], size))
        except (LookupError, TypeError) as error:
            raise GraphError("no such argument of a node", got=argument) from error
    return args, kwargs


def _change(old: Any, path: Sequence[int | str], value: int) -> Any:
    if not path:
        return value
    k, *rest = path
    items = list(old)
    items[k] = _change(items[k], rest, value)  # type: ignore[index]
    return items


def by_node(sized: Sequence[SizedArgument]) -> dict[str, list[SizedArgument]]:
    """Arguments by their node."""
    found: dict[str, list[SizedArgument]] = {}
    for argument in sized:
        found.setdefault(argument.node, []).append(argument)
    return found


def resize_graph(graph: Graph, sized: Sequence[SizedArgument], shapes: Shapes) -> Graph:
    """A stage at other shapes of what it is given, communication included.

    Raises:
        GraphError: An op does not take these sizes.
    """
    new, env, nodes, sized_of = fx.Graph(), dict[str, fx.Node](), graph.nodes, by_node(sized)
    mode: Any = next(t.fake_mode for n in nodes.values() for t in tensors(n))  # type: ignore[attr-defined]

    def like(old: fx.Node, name: str) -> Tensor:
        with mode:
            return torch.empty(tuple(shapes[name]), dtype=tensor(old).dtype)

    for i in graph.inputs:
        env[i.node] = new.placeholder(i.node)
        env[i.node].meta = dict(nodes[i.node].meta)
        if not i.kind.is_weight:
            env[i.node].meta["val"] = like(nodes[i.node], i.name)
    for old in graph.calls:
        n = env[old.name] = new.node_copy(old, lambda m: env[m.name])
        if n.target is RECV:
            n.kwargs = {**n.kwargs, "size": list(shapes[n.name])}
            n.meta["val"] = like(old, n.name)
        elif n.target is SEND:
            n.kwargs = {**n.kwargs, "nbytes": nbytes(n.all_input_nodes[0])}
        else:
            args, kwargs = with_sizes((n.args, dict(n.kwargs)), sized_of.get(n.name, ()), shapes)
            n.args, n.kwargs = args, kwargs
            n.meta["val"] = _infer(n, mode)
    new.output(tuple(env[o.node] for o in graph.outputs))
    return graph.replace(module=graph_module(new, type(graph.module).__name__))


def check_arguments(graph: Graph, sized: Sequence[SizedArgument]) -> None:
    """Check that at the planned sizes formulas give the arguments of a stage's nodes.

    Raises:
        GraphError: One gives another number, or belongs to no node.
    """
    nodes = graph.nodes
    shapes = {
        i.name: tuple(tensor(nodes[i.node]).shape) for i in graph.inputs if not i.kind.is_weight
    }
    for name, arguments in by_node(sized).items():
        if name not in nodes:
            raise GraphError("no node of the stage", got=name)
        before = (nodes[name].args, dict(nodes[name].kwargs))
        args, kwargs = with_sizes(before, arguments, shapes)
        if repr((list(before[0]), before[1])) != repr((list(args), kwargs)):
            raise GraphError("formulas of sizes give another number than the plan", where=name)


def _infer(node: fx.Node, mode: Any) -> object:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        with mode, mute_logs(), torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        got = first_line(error)
        where = f"{node.name}, {origin(node)}"
        raise GraphError("a stage does not take these sizes", where=where, got=got) from error
