"""Pass ``split-layer``: one layer in two halves, so that a cut may run through it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from pipec.compiler.comparison import REWRITTEN
from pipec.compiler.costing import Parts, make_cost_table
from pipec.compiler.pass_base import Pass
from pipec.graph.ir import Graph, nbytes, origin
from pipec.graph.split_node import is_split, is_splittable, split_node
from pipec.passes.partition import PartitionPass
from pipec.plan.model import Fact, Partition, Plan


@dataclass(frozen=True)
class SplitLayer(Pass):
    """Splits one linear, matmul, addmm or conv2d by output channels (BaPipe's intra-layer split).

    1. Two halves over views of the same parameter, and a ``cat``, replace the node; ``partition``
       may then put the halves on both sides of a cut (Zhao et al., arXiv 2012.12544).
    2. Without a name, the layer is the slowest stage's splittable node next to its less loaded
       neighbour, and it is split only if the best cut gets a faster slowest stage by it.
    3. The halves take their share of the layer's seconds where these were measured, else what the
       cost model says; the ``cat`` what the cost model says.

    There is no step for BaPipe's coarse-graining (merging layers where a cut would be bound by
    communication) and no threshold: ``partition`` is exact and prices every boundary's bytes on
    its link, so an edge too wide for its link is never cut unless all others are worse.

    Attributes:
        node: Name of the node; chosen if empty.
        share: Part of the output channels that the first half computes.
        stages: Number of stages that the choice looks at; as many as devices if not given.
    """

    name: ClassVar[str] = "split-layer"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COST})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.COST})
    node: str = ""
    share: float = 0.5
    stages: int | None = None

    def run(self, plan: Plan) -> Plan:
        if plan.stages:
            return plan
        if self.node:
            done = is_split(plan.graph, self.node)
            return plan if done else self._split(plan, self.node)
        before = self._cut(plan)
        layers = boundary_layers(plan.graph, before.stage_of, before.seconds)
        if not layers:
            return plan
        after = self._split(plan, layers[min(layers, key=lambda k: before.seconds[k])])
        return after if self._cut(after).max_load < before.max_load else plan

    def _split(self, plan: Plan, name: str) -> Plan:
        options = dict(plan.options)
        if origin(plan.graph.node(name)).index is not None:
            options[REWRITTEN] = self.name
        graph = split_node(plan.graph, name, self.share)
        costs = make_cost_table(plan, graph, _parts(graph.node(name)))
        return plan.replace(graph=graph, costs=costs, options=options)

    def _cut(self, plan: Plan) -> Partition:
        found = PartitionPass(stages=self.stages).run(plan).partition
        assert found is not None
        return found


def boundary_layers(
    graph: Graph, stage_of: Mapping[str, int], seconds: Sequence[float]
) -> dict[int, str]:
    """The splittable layer of the slowest stage that is next to each neighbour of this stage."""
    slow = max(range(len(seconds)), key=lambda k: seconds[k])
    layers = [n.name for n in graph.calls if stage_of[n.name] == slow and is_splittable(graph, n)]
    neighbours = [k for k in (slow - 1, slow + 1) if layers and 0 <= k < len(seconds)]
    return {k: layers[0 if k < slow else -1] for k in neighbours}


def _parts(cat: fx.Node) -> Parts:
    """The halves that a node was split into, each with its share of the output channels."""
    halves = cat.all_input_nodes
    whole = sum(map(nbytes, halves))
    return {half.name: (cat.name, nbytes(half) / whole) for half in halves}
