"""Channels against the model and the stages that they join."""

from collections import Counter
from collections.abc import Iterator

from pipec.graph.finding import Finding
from pipec.graph.ir import tensors
from pipec.plan.model import ValueChannel
from pipec.plan.rules.parts import Parts, PlanRule


def _go_forward(parts: Parts) -> Iterator[Finding]:
    """One channel per value and reader, from a stage to a later one."""
    stages, count = len(parts.plan.stages), Counter((c.value, c.dst) for c in parts.plan.channels)
    for c in parts.plan.channels:
        place = f"channel {c.name}"
        if not 0 <= c.src < c.dst < stages:
            yield Finding(place, f"stage {c.src} to {c.dst}", f"forward, below stage {stages}")
        if count[c.value, c.dst] > 1:
            yield Finding(place, f"{count[c.value, c.dst]} channels into stage {c.dst}", "one")
        if c.depth < 0:
            yield Finding(place, f"depth {c.depth}", "0 or more")


def _carry_values(parts: Parts) -> Iterator[Finding]:
    """A channel has the name, shape, dtype and bytes of a value of the model."""
    for c in parts.plan.channels:
        place, node = f"channel {c.name}", parts.nodes.get(c.value)
        if node is None or len(tensors(node)) != 1:
            yield Finding(place, f"value {c.value}", "a tensor that the model computes")
        elif c != (want := ValueChannel.of(node, c.src, c.dst, c.depth)):
            yield Finding(place, c, want)


def _values_arrive(parts: Parts) -> Iterator[Finding]:
    """What a stage reads of others is brought to it; what it sends, it computes or was brought."""
    brought, home = {(c.value, c.dst) for c in parts.plan.channels}, parts.plan.home
    if not home:
        return
    for n in parts.plan.graph.calls if parts.plan.channels else ():
        for k in sorted({home[u.name] for u in n.users if u.name in home} - {home.get(n.name)}):
            if (n.name, k) not in brought:
                yield Finding(f"stage {k}", f"reads {n.name}", "a receive of it")
    for c in parts.plan.channels:
        if home.get(c.value) != c.src and (c.value, c.src) not in brought:
            place = f"stage {c.src}, channel {c.name}"
            yield Finding(place, f"sends {c.value}", "a value that it computes or receives")


RULES: dict[str, PlanRule] = {
    "channels-go-forward": _go_forward,
    "channels-carry-values": _carry_values,
    "values-arrive": _values_arrive,
}
