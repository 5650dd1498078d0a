"""How much a microbatch counts: the targets that its mean loss is a mean over.

A mean over microbatches of means over valid tokens is not the mean over all valid tokens, where
their numbers differ. The denominator of torch's cross entropy is known from the graph: the sum
over targets t that are not ``ignore_index`` of the class weight of t, or of 1.
"""

from collections.abc import Callable, Mapping

import torch
from torch import fx

from pipec.graph.extract import extract
from pipec.graph.ir import Graph, InputKind, OutputKind, op_name

Count = Callable[[Mapping[str, torch.Tensor]], float]
_MEAN = 1  # torch's number of reduction="mean"
_LOSSES = {
    "aten.cross_entropy_loss.default": (3, 4),
    "aten.nll_loss_nd.default": (3, 4),
    "aten.nll_loss.default": (3, 4),
    "aten.nll_loss2d.default": (3, 4),
    "aten.nll_loss_forward.default": (3, 4),
    "aten.nll_loss2d_forward.default": (3, 4),
}
"""Ops of (scores, target, class weights, reduction, ignored index): places of the last two."""
_PASSED = ("aten._to_copy", "aten.alias", "aten.clone", "aten.detach", "getitem")


def count_of(graph: Graph) -> Count | None:
    """What counts the valid targets of a microbatch; None where the loss is no such mean.

    Args:
        graph: The model with its loss.
    """
    node = _loss(graph)
    if node is None:
        return None
    reduction, ignored = (_argument(node, k) for k in _LOSSES[op_name(node)])
    if (1 if reduction is None else reduction) != _MEAN:
        return None
    targets = _computed(graph, node.args[1])
    if targets is None:
        return None
    weight, scale = _argument(node, 2), None
    if isinstance(weight, fx.Node):
        held = {i.node: i.name for i in graph.inputs if i.kind.is_weight}
        if weight.name not in held:
            return None
        scale = graph.weights[held[weight.name]]
    index = -100 if ignored is None else ignored

    def count(inputs: Mapping[str, torch.Tensor]) -> float:
        """Valid targets, or the sum of their class weights."""
        found = targets(inputs)
        valid = found[found != index]
        return float(len(valid) if scale is None else scale[valid].sum())

    return count


def _loss(graph: Graph) -> fx.Node | None:
    """The op that is the loss and nothing else."""
    outputs = graph.outputs_of(OutputKind.LOSS)
    node = graph.node(outputs[0].node) if outputs else None
    while node is not None and any(p in op_name(node) for p in _PASSED):
        first = node.args[0]
        node = first if isinstance(first, fx.Node) else None
    if node is None or node.op != "call_function" or op_name(node) not in _LOSSES:
        return None
    target = node.args[1]
    if not isinstance(target, fx.Node) or target.meta["val"].is_floating_point():
        return None
    return node


def _argument(node: fx.Node, place: int) -> fx.Node | int | None:
    found = node.args[place] if len(node.args) > place else None
    return found if isinstance(found, fx.Node | int) else None


def _computed(
    graph: Graph, target: object
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
    """A function from inputs to a value that depends on inputs alone."""
    assert isinstance(target, fx.Node)
    inputs = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
    calls, todo = dict[str, None](), [target]
    while todo:
        node = todo.pop()
        if node.op == "placeholder":
            if node.name not in inputs:
                return None
        elif node.name not in calls:
            calls[node.name] = None
            todo.extend(node.all_input_nodes)
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
