"""How a test edits a copy of a plan: its model, a stage, training graphs, a channel."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from pipec.graph.ir import Graph
from pipec.graph.written import with_outputs
from pipec.plan.model import Plan

Edit = Callable[[Plan], Plan]


def edited(graph: Graph, edit: Callable[[fx.Graph, dict[str, fx.Node]], None]) -> Graph:
    """A copy in which the nodes, by name, were edited."""
    copy = with_outputs(graph, graph.outputs)
    edit(copy.module.graph, copy.nodes)
    return copy


def in_model(edit: Callable[[fx.Graph, dict[str, fx.Node]], None]) -> Edit:
    return lambda plan: plan.replace(graph=edited(plan.graph, edit))


def in_stage(index: int, edit: Callable[[fx.Graph, dict[str, fx.Node]], None]) -> Edit:
    return lambda plan: with_stage(plan, index, graph=edited(plan.stages[index].graph, edit))


def with_stage(plan: Plan, position: int, /, **changes: Any) -> Plan:
    stages = list(plan.stages)
    stages[position] = replace(stages[position], **changes)
    return plan.replace(stages=tuple(stages))


def in_training(index: int, kinds: str, edit: Callable[[Graph], Graph]) -> Edit:
    def run(plan: Plan) -> Plan:
        training = plan.stages[index].training
        assert training is not None
        changes = {kind: edit(getattr(training, kind)) for kind in kinds}
        return with_stage(plan, index, training=replace(training, **changes))

    return run


def in_channel(index: int, **changes: Any) -> Edit:
    def run(plan: Plan) -> Plan:
        channels = list(plan.channels)
        channels[index] = replace(channels[index], **changes)
        return plan.replace(channels=tuple(channels))

    return run


def fake(like: fx.Node, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    val: Tensor = like.meta["val"]
    return val.new_empty(shape, dtype=dtype or val.dtype)


def first(nodes: Mapping[str, fx.Node], text: str, skip: int = 0) -> fx.Node:
    """The first call of an op whose name contains the text."""
    return [n for n in nodes.values() if n.op == "call_function" and text in str(n.target)][skip]


def meta(text: str, **changes: Any) -> Callable[[fx.Graph, dict[str, fx.Node]], None]:
    """Changes what the first such call is annotated with; None removes it."""

    def edit(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        node = first(nodes, text)
        for key, change in changes.items():
            if change is None:
                del node.meta[key]
            else:
                node.meta[key] = change(node)

    return edit


def target(text: str, op: Any) -> Callable[[fx.Graph, dict[str, fx.Node]], None]:
    def edit(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        first(nodes, text).target = op

    return edit
