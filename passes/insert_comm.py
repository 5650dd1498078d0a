"""Pass ``insert-comm``: real send and receive nodes, one channel per value and hop."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from pipec.compiler.backend import load_backend
from pipec.compiler.pass_base import Pass
from pipec.plan.model import Fact, Plan, ValueChannel, cut_stages
from pipec.schedule.channels import slots_of


@dataclass(frozen=True)
class InsertComm(Pass):
    """Turns what crosses a cut into channels and puts their two ends into the stage graphs.

    1. A value that a later stage reads gets a channel from its stage to the reader (route
       ``direct``), or one channel per hop through all stages between (``relay``).
    2. Receives come first in a stage, in the order of the model; sends come last.
    3. A stage that only passes a value on receives and sends it.

    Attributes:
        route: ``direct``, ``relay``, or ``auto``: what the backend's devices want.
        depth: Slots of a channel to the next stage, one more for each that it skips; 0 is a
            rendezvous.
    """

    name: ClassVar[str] = "insert-comm"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.COMM})
    route: Literal["auto", "direct", "relay"] = "auto"
    depth: int = 2

    def run(self, plan: Plan) -> Plan:
        if plan.channels:
            return plan
        route = self.route if self.route != "auto" else load_backend(plan.target).route
        nodes = plan.graph.nodes
        channels = [
            ValueChannel.of(nodes[value], src, dst, slots_of(src, dst, self.depth))
            for value, src, dst in _hops(plan, relay=route == "relay")
        ]
        stages = cut_stages(plan.graph, plan.home, len(plan.stages), channels)
        return plan.replace(stages=stages, channels=tuple(channels))


def _hops(plan: Plan, *, relay: bool) -> Iterator[tuple[str, int, int]]:
    """(value, sending stage, receiving stage) in the order of the model."""
    home = plan.home
    for n in plan.graph.calls:
        src = home[n.name]
        readers = sorted({home[u.name] for u in n.users if u.op == "call_function"} - {src})
        hops = pairwise(range(src, readers[-1] + 1)) if relay and readers else ()
        yield from ((n.name, a, b) for a, b in hops or ((src, dst) for dst in readers))
