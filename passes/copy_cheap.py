"""Pass ``copy-cheap``: what costs less to compute again than to receive is computed again."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from pipec.autodiff.recompute import everything
from pipec.compiler.backend import load_backend
from pipec.compiler.complete import complete
from pipec.compiler.costing import check_unsent, recut
from pipec.compiler.pass_base import Pass
from pipec.compiler.stage_timing import device_of
from pipec.compiler.timeline import plan_timeline
from pipec.graph.copies import with_copies
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, origin
from pipec.passes.insert_comm import InsertComm
from pipec.plan.model import Fact, Plan, Stage
from pipec.schedule.registry import generate

MICROBATCHES = 8
"""Of the forwards that are predicted with and without copies."""


@dataclass(frozen=True)
class CopyCheap(Pass):
    """Copies cheap nodes into the stages that read them, so that their values need not be sent.

    A mask, a table of positions, a transpose or another view is often read by every stage. Where
    the nodes that make it from constants, from inputs of the model that are no larger, and from
    values that the stage has anyway take less time on the stage's device than the transfer takes
    on its link, the stage gets copies of these nodes under names of their own.

    1. It runs between ``partition`` and ``insert-comm``; the cut stays as it is. Copies are kept
       where the forwards of 8 microbatches are predicted to be faster with them: not where
       transfers hide behind compute.
    2. Nodes that draw random numbers, read parameters or updated buffers, or are pieces of one ONNX
       node are not copied.
    3. Originals that nothing reads any more go; where a stage would be left without a node, nothing
       is copied.
    """

    name: ClassVar[str] = "copy-cheap"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COST, Fact.PARTITION})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})

    def run(self, plan: Plan) -> Plan:
        """The plan with copies of cheap nodes.

        Raises:
            PassError: The stages send and receive already.
        """
        check_unsent(plan, self.name)
        again = {stage.index: set(_cheap(plan, stage)) for stage in plan.stages}
        if not any(again.values()):
            return plan
        graph, home = with_copies(plan.graph, plan.home, again)
        if len(set(home.values())) < len(plan.stages):
            return plan  # a stage made nothing else
        copied = recut(plan, graph, home)
        return copied if _step(copied) < _step(plan) else plan


def _step(plan: Plan) -> float:
    """Seconds of the forwards of some microbatches, with what is sent."""
    sent = InsertComm().run(plan)
    timed = sent.replace(timing=load_backend(plan.target).stage_seconds(sent))
    order = generate("inference", len(plan.stages), MICROBATCHES)
    return plan_timeline(timed, complete(order, timed)).seconds


def _cheap(plan: Plan, stage: Stage) -> Iterator[str]:
    """Nodes of other stages that this one should compute for itself."""
    nodes, fixed = plan.graph.nodes, _find_fixed(plan.graph)
    has = {n.name for n in stage.graph.calls}
    waiting = [i.name for i in stage.graph.inputs_of(InputKind.VALUE)]
    while waiting:
        value = waiting.pop(0)
        chain = _chain(nodes[value], has.union(waiting), fixed)
        if chain and _compute(plan, stage, chain) < _transfer(plan, stage, value):
            yield from chain
        has.add(value)


def _find_fixed(graph: Graph) -> dict[str, int]:
    """Placeholders that any stage may read, with the bytes that reading them moves."""
    updated = {o.name for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)}
    found = {}
    for i in graph.inputs:
        if i.kind is InputKind.INPUT:
            found[i.node] = nbytes(graph.nodes[i.node])
        elif i.kind is not InputKind.PARAMETER and i.name not in updated:
            found[i.node] = 0
    return found


def _chain(value: fx.Node, has: Collection[str], fixed: Mapping[str, int]) -> list[str]:
    """The nodes that make a value from what a stage has; none if some may not be copied."""
    found, stack, read = list[str](), [value], 0
    while stack:
        node = stack.pop()
        if node.name in has or node.name in found:
            continue
        if node.op == "placeholder":
            if node.name not in fixed:
                return []
            read += fixed[node.name]
        elif not everything(node) or origin(node).index is not None:
            return []
        else:
            found.append(node.name)
            stack.extend(node.all_input_nodes)
    return found if read <= nbytes(value) else []


def _compute(plan: Plan, stage: Stage, chain: Sequence[str]) -> float:
    """Seconds of some nodes on a stage's device, in training with their backward."""
    assert plan.costs is not None
    kind = device_of(plan, stage).kind
    forward, backward = plan.costs.of(kind), plan.costs.backward_of(kind) if plan.trains else {}
    return sum(forward[name] + backward.get(name, 0.0) for name in chain)


def _transfer(plan: Plan, stage: Stage, value: str) -> float:
    """Seconds of a value's way to a stage."""
    assert plan.placement is not None
    forward = plan.placement.forward
    src, dst = forward[plan.home[value]][0], forward[stage.index][0]
    if src == dst:
        return 0.0
    return plan.cluster.link(src, dst).seconds(nbytes(plan.graph.nodes[value]))
