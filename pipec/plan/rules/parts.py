"""A plan as its rules see it: every stage lowered once, every node looked up once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from pipec.graph.finding import Finding
from pipec.graph.infer import type_of, type_words
from pipec.graph.ir import InputKind
from pipec.graph.lower import Lowered, lower
from pipec.plan.model import Plan, Stage
from pipec.schedule.channels import Channel, ChannelKind


@dataclass(frozen=True)
class Parts:
    """A plan whose graphs are sound, its parts not yet compared.

    Attributes:
        plan: The plan.
        before: What it was before the pass; its rules held.
    """

    plan: Plan
    before: Plan | None = None

    @cached_property
    def lowered(self) -> list[Lowered]:
        """Every stage, communication peeled off."""
        return [lower(s.graph) for s in self.plan.stages]

    @cached_property
    def trained(self) -> list[tuple[Stage, dict[str, Lowered]]]:
        """The stages with training graphs, these lowered."""
        return [
            (s, {kind: lower(graph) for kind, graph in s.training.graphs.items()})
            for s in self.plan.stages
            if s.training is not None
        ]

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """The nodes of the model by name."""
        return self.plan.graph.nodes

    @cached_property
    def copied(self) -> list[Channel]:
        """The schedule's channels through host memory."""
        schedule = self.plan.schedule
        return [] if schedule is None else [c for c in schedule.channels if c.kind is ChannelKind.H]

    def has_changed(self, *fields: str) -> bool:
        """Whether any of these fields is another object than before the pass."""
        before = self.before
        return before is None or any(
            getattr(before, f) is not getattr(self.plan, f) for f in fields
        )


PlanRule = Callable[[Parts], Iterator[Finding]]


def value_of(node: fx.Node | None) -> object:
    """What a node is annotated with; None for none."""
    return None if node is None else node.meta.get("val")


def dense(value: object) -> object:
    """The type of a value on a channel: contiguous, whatever it was where it was computed."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    return type_of(value)


def mismatch(place: str, got: object, want: object, *, strided: bool = False) -> Iterator[Finding]:
    """A finding if two values have unlike types."""
    compared = type_of if strided else dense
    if compared(got) != compared(want):
        yield Finding(place, type_words(got), type_words(want))


def values(graph: Lowered, *kinds: InputKind) -> dict[str, object]:
    """Name of each input of these kinds to its value."""
    nodes = graph.nodes
    return {i.name: value_of(nodes[i.node]) for i in graph.inputs_of(*kinds)}
