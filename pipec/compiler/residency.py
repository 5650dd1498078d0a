"""What a stage's training graphs take to compute values again.

Seconds of the nodes of F are shares: the roofline's figures of these nodes, scaled so that F takes
what the plan says of the stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import everything
from pipec.autodiff.rewrite import lineage, reads_trained
from pipec.cluster.device import Device
from pipec.compiler.stage_timing import device_of, peak_live_bytes
from pipec.cost.count import count
from pipec.cost.model import Roofline
from pipec.graph.comm import is_comm
from pipec.graph.ir import Graph, nbytes
from pipec.graph.lower import lower
from pipec.plan.model import Plan


@dataclass(frozen=True)
class StageWork:
    """The seconds of one stage, node by node.

    Attributes:
        training: The training graphs of the stage.
        device: The device of its backward.
        forward_seconds: What F takes there.
    """

    training: Training
    device: Device
    forward_seconds: float

    @cached_property
    def forward(self) -> Mapping[str, float]:
        """Node of F to seconds; they sum up to ``forward_seconds``."""
        graph, roofline = lower(self.training.F).graph, Roofline()
        counts = count(graph)
        raw = {n.name: roofline.seconds(n, counts[n.name], self.device) for n in graph.calls}
        whole = sum(raw.values())
        scale = self.forward_seconds / whole if whole else 0.0
        return {name: scale * s for name, s in raw.items()}

    def again_seconds(self, graph: Graph) -> float:
        """Seconds of what B, I or W computes that F has computed; what is fetched is not."""
        known = self.training.F.nodes
        calls = [n.name for n in graph.calls if not is_comm(n) and n.name in known]
        return sum(self.forward[name] for name in calls)

    def recompute(self, value: str, *, alike: bool = True) -> float:
        """Seconds to compute a saved value again from the others; infinite where it cannot be.

        Not computed again: what was received, what draws random numbers on the way, what
        would have more bytes saved in its place (as many may serve several values), and what
        reads weights that B may have in another version than F (not ``alike``).
        """
        kept = {v.name for v in self.training.saved} - {value}
        steps = lineage(self.training, value, kept)
        calls = [n for n in steps if n.op == "call_function"]
        inputs = sum(nbytes(n) for n in steps if n.op == "placeholder")
        own = nbytes(self.training.F.node(value))
        if not calls or not all(map(everything, calls)) or inputs > own:
            return inf
        if not alike and reads_trained(self.training, calls):
            return inf
        return sum(self.forward[n.name] for n in calls)


def list_saved(training: Training) -> list[str]:
    """Saved values that stay on the device, in the order in which F produces them."""
    names = {v.name for v in training.saved}
    return [n for n in training.F.nodes if n in names]


def list_work(plan: Plan) -> list[StageWork]:
    """Every stage of a differentiated plan with a timing."""
    found = []
    for stage, timing in zip(plan.stages, plan.timing, strict=True):
        device, seconds = device_of(plan, stage, backward=True), timing.compute_seconds
        if device != device_of(plan, stage) and plan.costs is not None:
            calls = lower(stage.graph).calls
            seconds = plan.costs.total(device.kind, (n.name for n in calls))
        found.append(StageWork(stage.phases, device, seconds))
    return found


def working_bytes(training: Training) -> dict[str, int]:
    """Most bytes of recomputed values that are alive at a time while B, I or W runs, of each."""
    computed = {n.name for n in training.F.calls}
    return {
        kind: peak_live_bytes(g, {n.name for n in g.calls if n.name in computed and not is_comm(n)})
        for kind, g in training.graphs.items()
        if kind != "F"
    }
