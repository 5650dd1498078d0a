"""Edits that break the training graphs of a plan, each in one way (see `tests.plan.wrong`)."""

from collections.abc import Callable
from dataclasses import replace

import torch

from pipec.graph.comm import OFFLOAD
from pipec.graph.ir import Graph, GraphOutput, InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.graph.written import with_outputs
from tests.plan.edits import fake

aten = torch.ops.aten


def _outputs(change: Callable[[list[GraphOutput]], list[GraphOutput]]) -> Callable[[Graph], Graph]:
    return lambda graph: with_outputs(graph, change(list(graph.outputs)))


def without(kind: OutputKind) -> Callable[[Graph], Graph]:
    def change(outputs: list[GraphOutput]) -> list[GraphOutput]:
        outputs.remove(next(o for o in outputs if o.kind is kind))
        return outputs

    return _outputs(change)


def swapped(kind: OutputKind, match: str) -> Callable[[Graph], Graph]:
    """Two gradients change places: the names stay, the nodes do not."""

    def change(outputs: list[GraphOutput]) -> list[GraphOutput]:
        a, b = (k for k, o in enumerate(outputs) if o.kind is kind and match in o.name)
        one, two = outputs[a], outputs[b]
        outputs[a], outputs[b] = replace(one, node=two.node), replace(two, node=one.node)
        return outputs

    return _outputs(change)


def of_other_shape(graph: Graph) -> Graph:
    """The gradients of a weight and of its bias change places."""

    def change(outputs: list[GraphOutput]) -> list[GraphOutput]:
        a, b = (k for k, o in enumerate(outputs) if o.name.endswith(("a.weight", "a.bias")))
        one, two = outputs[a], outputs[b]
        outputs[a], outputs[b] = replace(one, node=two.node), replace(two, node=one.node)
        return outputs

    return with_outputs(graph, change(list(graph.outputs)))


def saved_more(graph: Graph) -> Graph:
    node = next(n for n in graph.calls if n.name not in {o.node for o in graph.outputs})
    return with_outputs(
        graph, (*graph.outputs, GraphOutput(node.name, OutputKind.SAVED, node.name))
    )


def strided(graph: Graph) -> Graph:
    """A saved value is said to have other strides; nothing that reads it can tell."""
    copy = with_outputs(graph, graph.outputs)
    for i in copy.inputs_of(InputKind.SAVED):
        node = copy.nodes[i.node]
        if node.meta["val"].dim() == 2:
            node.meta["val"] = fake(node, tuple(reversed(node.meta["val"].shape))).t()
    return copy


def unseen(graph: Graph) -> Graph:
    """B takes targets as numbers of classes that F has left out."""
    copy = with_outputs(graph, graph.outputs)
    node = next(n for n in copy.calls if "nll_loss_backward" in str(n.target))
    node.args = (*node.args[:5], -1, *node.args[6:])
    return copy


def negated(graph: Graph) -> Graph:
    copy = with_outputs(graph, graph.outputs)
    next(n for n in copy.calls if "neg" in str(n.target)).target = aten.abs.default
    return copy


def largest(graph: Graph) -> Graph:
    """The gradient of a bias is the largest of the samples', not their sum."""
    copy = with_outputs(graph, graph.outputs)
    next(n for n in copy.calls if "sum" in str(n.target)).target = aten.amax.default
    return copy


def twice(kind: OutputKind, match: str) -> Callable[[Graph], Graph]:
    def change(outputs: list[GraphOutput]) -> list[GraphOutput]:
        a, b = (k for k, o in enumerate(outputs) if o.kind is kind and match in o.name)
        outputs[a] = replace(outputs[a], node=outputs[b].node)
        return outputs

    return _outputs(change)


def constant(graph: Graph) -> Graph:
    """A weight is read as a constant, which no optimizer changes."""
    kinds = (
        replace(i, kind=InputKind.CONSTANT) if i.kind is InputKind.PARAMETER else i
        for i in graph.inputs
    )
    return graph.replace(inputs=tuple(kinds))


def mutating(graph: Graph) -> Graph:
    copy = with_outputs(graph, graph.outputs)
    node = copy.calls[-1]
    with copy.module.graph.inserting_after(node):
        new = copy.module.graph.call_function(aten.mul_.Scalar, (node, 1.0))
    new.meta = dict(node.meta)
    return copy


def early_offload(graph: Graph) -> Graph:
    """A value leaves as soon as it is there, in the middle of F."""
    copy = with_outputs(graph, graph.outputs)
    node = next(n for n in copy.calls if n.target is OFFLOAD)
    value = node.all_input_nodes[0]
    inputs = [n for n in copy.nodes.values() if n.op == "placeholder"]
    (value if value.op == "call_function" else inputs[-1]).append(node)
    return copy


def no_fetch(graph: Graph) -> Graph:
    """What was fetched is read as saved."""
    return lower(graph).graph
