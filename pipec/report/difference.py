"""What differs between two plans: graph, cuts, channels, schedule and costs, name by name."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from pipec.cluster.units import show
from pipec.graph.ir import op_name, tensors
from pipec.plan.model import Plan


@dataclass(frozen=True)
class Change:
    """One thing that one plan has otherwise than the other.

    Attributes:
        part: ``graph``, ``cuts``, ``stage 0 B`` (a graph of a stage), ``channels``, ``placement``,
            ``schedule``, ``costs`` or ``options``.
        name: The node, channel, device or stage.
        before: What the first plan has; None if it lacks it.
        after: What the second one has.
    """

    part: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.part}: {self.name} = {self.after}"
        if self.after is None:
            return f"- {self.part}: {self.name} = {self.before}"
        return f"~ {self.part}: {self.name}: {self.before} -> {self.after}"


def difference(before: Plan, after: Plan) -> list[Change]:
    """Every change from one plan to another, but for the numbers in weights."""
    one, other = _facts(before), _facts(after)
    return [
        Change(part, name, one.get((part, name)), other.get((part, name)))
        for part, name in dict.fromkeys([*one, *other])
        if one.get((part, name)) != other.get((part, name))
    ]


def _facts(plan: Plan) -> dict[tuple[str, str], str]:
    """What a plan says, by part and name."""
    found = {("graph", n.name): _call(n) for n in plan.graph.calls}
    found |= {("options", k): str(v) for k, v in plan.options.items()}
    found |= {("options", "target"): plan.target, ("options", "cluster"): str(plan.cluster)}
    for stage in plan.stages:
        found |= {("cuts", n.name): f"stage {stage.index}" for n in stage.graph.calls}
        training = stage.training
        graphs = {p: getattr(training, p) for p in "FBIW"} if training else {"F": stage.graph}
        for phase, graph in graphs.items():
            part = f"stage {stage.index} {phase}"
            found |= {(part, n.name): _call(n) for n in graph.calls}
    for c in plan.channels:
        ends = f"stage {c.src} to {c.dst}, {show(c.nbytes, 'B')}, depth {c.depth}"
        found["channels", c.name] = f"{c.value} ({c.dtype}), {ends}"
    return found | dict(_times(plan))


def _times(plan: Plan) -> Iterator[tuple[tuple[str, str], str]]:
    for k, devices in enumerate(plan.placement.forward if plan.placement is not None else ()):
        yield ("placement", f"stage {k}"), f"devices {', '.join(map(str, devices))}"
    if plan.schedule is not None:
        yield ("schedule", "generator"), plan.schedule.name
        yield ("schedule", "microbatches"), str(plan.schedule.microbatches)
        for device, row in enumerate(plan.schedule.rows()):
            yield ("schedule", f"device {device}"), " ".join(map(str, row))
    for kind, seconds in plan.costs.seconds.items() if plan.costs is not None else ():
        for name, s in seconds.items():
            yield ("costs", f"{name} on {kind}"), _seconds(s)
    for k, t in enumerate(plan.timing):
        yield ("costs", f"stage {k}"), f"{_seconds(t.interval_seconds)} ({t.bottleneck})"
    if plan.timeline is not None:
        yield ("costs", "step"), _seconds(plan.timeline.seconds)
        yield ("costs", "bubble"), f"{plan.timeline.bubble:.3%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.6g} s"


def _call(node: fx.Node) -> str:
    types = ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in tensors(node))
    args = ", ".join([*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())])
    return f"{op_name(node)}({args}) {types}"
