"""Edits of what a plan remembers: names, sources, devices, times (see `tests.plan.wrong`)."""

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pipec.cluster.cluster import parse_cluster
from pipec.plan.model import Plan
from tests.plan.edits import Edit, first, with_stage


def keyword(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    first(nodes, "relu").name = "class"


def inlined(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    """A tensor stands in the graph as an argument, where no file can hold it."""
    node = first(nodes, "add.Tensor")
    node.args = (node.args[0], torch.ones(8))


def two_tied(plan: Plan) -> Plan:
    tied = {"blocks.0.a.weight": ("blocks.1.a.weight",)}
    return plan.replace(graph=plan.graph.replace(tied=tied))


def other_graph(**changes: Any) -> Edit:
    return lambda plan: with_stage(plan, 1, graph=plan.stages[1].graph.replace(**changes))


def slots_twice(plan: Plan) -> Plan:
    return plan.replace(slots=(*plan.slots, plan.slots[0]))


def other_devices(plan: Plan) -> Plan:
    return plan.replace(cluster=parse_cluster("4xcpu"))


def sends_long(plan: Plan) -> Plan:
    return plan.replace(timing=(replace(plan.timing[0], transfer_seconds=1e9), *plan.timing[1:]))
