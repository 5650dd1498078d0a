"""Pass ``insert-comm``: real send and receive nodes, one channel per value and hop."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import fx

from pipec.compiler.backend import load_backend
from pipec.compiler.pass_base import Pass
from pipec.graph.ir import InputKind, OutputKind, nbytes, tensor
from pipec.graph.lower import with_transfers
from pipec.plan.model import Fact, Plan, Stage, ValueChannel


@dataclass(frozen=True)
class InsertComm(Pass):
    """Turns what crosses a cut into channels and puts their two ends into the stage graphs.

    1. A value that a later stage reads gets a channel from its stage to the reader (route
       ``direct``), or one channel per hop through all stages between (``relay``).
    2. Receives come first in a stage, in the order of the model; sends come last.
    3. A stage that only passes a value on receives and sends it.

    Attributes:
        route: ``direct``, ``relay``, or ``auto``: what the backend's devices want.
        depth: Slots of every channel; 0 is a rendezvous.
    """

    name: ClassVar[str] = "insert-comm"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.COMM})
    route: Literal["auto", "direct", "relay"] = "auto"
    depth: int = 2

    def run(self, plan: Plan) -> Plan:
        """The plan with its channels, and stages that send and receive."""
        if plan.channels:
            return plan
        route = self.route if self.route != "auto" else load_backend(plan.target).route
        nodes = plan.graph.nodes
        channels = [
            _channel(nodes[value], src, dst, self.depth)
            for value, src, dst in _hops(plan, relay=route == "relay")
        ]
        stages = tuple(_with_comm(stage, channels, nodes) for stage in plan.stages)
        return plan.replace(stages=stages, channels=tuple(channels))


def _hops(plan: Plan, *, relay: bool) -> Iterator[tuple[str, int, int]]:
    """(value, sending stage, receiving stage) in the order of the model."""
    home = {o.name: s.index for s in plan.stages for o in s.graph.outputs_of(OutputKind.VALUE)}
    readers: dict[str, list[int]] = {}
    for s in plan.stages:
        for i in s.graph.inputs_of(InputKind.VALUE):
            readers.setdefault(i.name, []).append(s.index)
    for n in plan.graph.module.graph.nodes:
        if n.name in readers:
            src, stages = home[n.name], readers[n.name]
            if relay:
                yield from ((n.name, k, k + 1) for k in range(src, max(stages)))
            else:
                yield from ((n.name, src, dst) for dst in sorted(stages))


def _channel(value: fx.Node, src: int, dst: int, depth: int) -> ValueChannel:
    t = tensor(value)
    return ValueChannel(
        name=f"s{src}.s{dst}.{value.name}",
        value=value.name,
        src=src,
        dst=dst,
        nbytes=nbytes(value),
        shape=tuple(t.shape),
        dtype=str(t.dtype).removeprefix("torch."),
        depth=depth,
    )


def _with_comm(stage: Stage, channels: list[ValueChannel], nodes: dict[str, fx.Node]) -> Stage:
    receives = {c.value: c.name for c in channels if c.dst == stage.index}
    sends = [(c.value, c.name, nodes[c.value]) for c in channels if c.src == stage.index]
    graph = with_transfers(stage.graph, receives, sends)
    return Stage(stage.index, graph)
