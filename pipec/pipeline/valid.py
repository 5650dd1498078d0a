"""How much a microbatch counts: the targets that its mean loss is a mean over.

A mean over microbatches of means over valid tokens is not the mean over all valid tokens, where
their numbers differ. The graph tells the denominator: of torch's cross entropy the sum over
targets t that are not ``ignore_index`` of the class weight of t, or 1; of a quotient its divisor.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pipec.errors import PlanError
from pipec.graph.extract import extract
from pipec.graph.ir import Graph, InputKind, OutputKind, op_name, origin, tensor
from pipec.graph.torch_private import OpOverload, argument_names_and_defaults

Count = Callable[[Mapping[str, torch.Tensor]], float]
_MEAN, _SUM = 1, 2  # torch's numbers of reduction="mean" and "sum"
_LOSSES = (
    "aten.cross_entropy_loss.default",
    "aten.nll_loss_nd.default",
    "aten.nll_loss.default",
    "aten.nll_loss2d.default",
    "aten.nll_loss_forward.default",
    "aten.nll_loss2d_forward.default",
)
"""Ops of scores, target, class weights, reduction and ignored index."""
_SUMS = ("aten.sum.", "aten.nansum.", "aten.dot.", "aten.trace.")
_PASSED = ("aten._to_copy", "aten.alias", "aten.clone", "aten.detach", "getitem")
_LINEAR = ("aten.mul.", "aten.div.", "aten.add.", "aten.sub.", "aten.neg.")
_BOUNDED = ("aten.clamp", "aten.maximum.")


def counts_of(graph: Graph, rows: Count) -> list[Count]:
    """What each mean that the loss is made of is a mean over.

    These are the valid targets of a cross entropy, or what a sum is divided by, such as the sum of
    a mask; of other parts that depend on the inputs, the rows.

    Args:
        graph: The model with its loss.
        rows: Counts the rows of a microbatch.

    Raises:
        PlanError: A part is a sum that nothing divides: the loss of a step is a mean.
    """
    todo = [(graph.node(o.node), False) for o in graph.outputs_of(OutputKind.LOSS)[:1]]
    inputs = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
    compiled = int(rows({n: tensor(graph.node(k)) for k, n in inputs.items()}))
    found: dict[str, Count] = {}
    while todo:
        node, scaled = todo.pop()
        name = op_name(node) if node.op == "call_function" else ""
        count = None
        if name in _LOSSES:
            count = _cross_entropy(graph, node)
        elif name == "aten.div.Tensor" and _is_sum(node.args[0], compiled):
            count = _divisor(graph, node.args[1])
        if count is not None:
            found[node.name] = count
        elif name.startswith(_LINEAR) or any(p in name for p in _PASSED):
            scaled |= _shrinks(node)
            todo += [(n, scaled) for n in node.all_input_nodes]
        elif name and inputs.keys() & _ancestors(node):
            if _is_sum(node, compiled) and not scaled:
                raise _no_mean(node)
            found["rows"] = rows
    return list(found.values()) or [rows]


def _shrinks(node: fx.Node) -> bool:
    """Whether a constant may be what divides a sum: one over a number of rows, not 0.5."""
    name, factors = op_name(node), [a for a in node.args if isinstance(a, int | float)]
    divided = name.startswith("aten.div.") and any(abs(f) > 1 for f in factors)
    return divided or (name.startswith("aten.mul.") and any(abs(f) < 0.5 for f in factors))


def _no_mean(node: fx.Node) -> PlanError:
    return PlanError(
        "the loss adds up over the batch, and the loss of a step is a mean",
        where=origin(node),
        got=op_name(node),
        want="a mean, or a sum that is divided by what it counts",
        hint="(loss.sum() / mask.sum()), or weight=lambda batch: 1.0 for the mean of microbatches",
    )


def _ancestors(node: fx.Node) -> set[str]:
    seen, todo = set[str](), [node]
    while todo:
        new = [n for n in todo.pop().all_input_nodes if n.name not in seen]
        seen.update(n.name for n in new)
        todo.extend(new)
    return seen


def weights_of(counts: Sequence[Sequence[float]]) -> list[float]:
    """How much each microbatch counts, from what was counted in it for every mean of the loss.

    Raises:
        PlanError: The means do not share one weight.
    """
    columns = [list(column) for column in zip(*counts, strict=True)]
    for column in columns[1:]:
        first, other = sum(columns[0]), sum(column)
        pairs = zip(columns[0], column, strict=True)
        if any(abs(a * other - b * first) > 1e-6 * first * other for a, b in pairs):
            raise PlanError(
                "the loss adds up means over different targets, and no one weight fits them all",
                got="; ".join(f"{sum(c):g} targets: {', '.join(f'{n:g}' for n in c)}"
                              for c in columns),
                want="the same share of both in each microbatch",
                hint="give weight=, such as weight=lambda batch: len(batch['input'])",
            )  # fmt: skip
    return columns[0]


def _cross_entropy(graph: Graph, node: fx.Node) -> Count | None:
    target, weight, scale = node.args[1], _argument(node, "weight"), None
    if _argument(node, "reduction") != _MEAN:
        return None
    if not isinstance(target, fx.Node) or target.meta["val"].is_floating_point():
        return None
    targets = _computed(graph, target)
    if targets is None:
        return None
    if isinstance(weight, fx.Node):
        held = {i.node: i.name for i in graph.inputs if i.kind.is_weight}
        if weight.name not in held:
            return None
        scale = graph.weights[held[weight.name]]
    index = _argument(node, "ignore_index")

    def count(inputs: Mapping[str, torch.Tensor]) -> float:
        """Valid targets, or the sum of their class weights."""
        found = targets(inputs)
        valid = found[found != index]
        return float(len(valid) if scale is None else scale[valid].sum())

    return count


def _is_sum(node: object, rows: int) -> bool:
    """Whether a scalar adds up over the rows: the innermost reduction that takes them says so."""
    found = False
    while isinstance(node, fx.Node) and node.op == "call_function":
        name = op_name(node)
        if (reduction := _argument(node, "reduction")) in {_MEAN, _SUM}:
            return bool(reduction == _SUM)
        if name.startswith((*_SUMS, "aten.mean.")):
            dims, shape = _argument(node, "dim"), tensor(node.all_input_nodes[0]).shape
            if not dims or len(dims) == len(shape) or (
                any(d % len(shape) == 0 for d in dims) and shape[0] % rows == 0
            ):  # fmt: skip
                found = name.startswith(_SUMS)
        elif not any(p in name for p in (*_PASSED, "aten.neg.")):
            break
        node = node.args[0]
    return found


def _divisor(graph: Graph, node: object) -> Count | None:
    """What a sum is divided by, without the bound that keeps it from zero."""
    while isinstance(node, fx.Node) and node.op == "call_function":
        if not any(p in op_name(node) for p in (*_BOUNDED, *_PASSED)):
            break
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.op == "placeholder" or node.meta["val"].dim():
        return None
    value = _computed(graph, node)
    return None if value is None else lambda inputs: float(value(inputs))


def _argument(node: fx.Node, name: str) -> Any:
    """What an op is given under this name, or its default; None if it has no such argument."""
    if not isinstance(node.target, OpOverload):
        return None
    known = argument_names_and_defaults(node.target)
    return {**known, **dict(zip(known, node.args, strict=False)), **node.kwargs}.get(name)


def _computed(
    graph: Graph, target: fx.Node
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
    """A function from inputs to a value that depends on inputs alone."""
    inputs = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
    calls, read, todo = dict[str, None](), set[str](), [target]
    while todo:
        node = todo.pop()
        if node.op == "placeholder":
            if node.name not in inputs:
                return None
            read.add(node.name)
        elif node.name not in calls:
            calls[node.name] = None
            todo.extend(node.all_input_nodes)
    if not read:
        return None
    if not calls:
        return lambda given: given[inputs[target.name]]
    part = extract(graph, calls, "Targets")
    place = next(k for k, o in enumerate(part.outputs) if o.node == target.name)

    def run(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The targets of a microbatch."""
        with torch.no_grad():
            results = part.module(*(given[i.name] for i in part.inputs))
        found: torch.Tensor = results[place]
        return found

    return run
