"""The rules of a plan, as one table; with the graph rules they are checked after every pass."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from pipec.autodiff.recompute import is_random
from pipec.errors import PlanError
from pipec.graph.ir import InputKind, OutputKind, nbytes, tensor
from pipec.graph.lower import Lowered, Transfer, lower
from pipec.graph.rules import verify as verify_graph
from pipec.plan.model import HostSlot, Plan, ValueChannel
from pipec.schedule.channels import ChannelKind

Finding = str


@dataclass(frozen=True)
class _Parts:
    """A plan and its stages, each lowered once for all rules."""

    plan: Plan

    @cached_property
    def lowered(self) -> dict[int, Lowered]:
        return {s.index: lower(s.graph) for s in self.plan.stages}


def _every_node_once(parts: _Parts) -> Iterator[Finding]:
    if not parts.plan.stages:
        return
    where = Counter(n.name for low in parts.lowered.values() for n in low.graph.calls)
    for n in parts.plan.graph.calls:
        if where[n.name] != 1:
            yield f"node {n.name} is in {where[n.name]} stages; want exactly one"


def _outputs_leave_once(parts: _Parts) -> Iterator[Finding]:
    """Every output of the model is yielded by one stage: by its name, in its order, of its type."""
    if not parts.plan.stages:
        return
    model = {(o.kind, o.name): (k, o.node) for k, o in enumerate(parts.plan.graph.outputs)}
    nodes, homes = parts.plan.graph.nodes, Counter[tuple[OutputKind, str]]()
    for stage in parts.plan.stages:
        own = [o for o in stage.graph.outputs if o.kind is not OutputKind.VALUE]
        homes.update((o.kind, o.name) for o in own)
        places = [model[o.kind, o.name][0] for o in own if (o.kind, o.name) in model]
        if places != sorted(places):
            yield f"stage {stage.index} yields outputs in another order than the model"
        have = stage.graph.nodes
        for o in own:
            _, node = model.get((o.kind, o.name), (0, ""))
            if node != o.node:
                yield f"stage {stage.index}: {o.node} as {o.kind} {o.name}; want {node or 'none'}"
            elif _type(have[node]) != _type(nodes[node]):
                yield f"stage {stage.index} yields {o.kind} {o.name} of another type than the model"
    for kind, name in model:
        if homes[kind, name] != 1:
            yield f"{kind} {name} is yielded by {homes[kind, name]} stages; want exactly one"


def _type(node: fx.Node) -> tuple[object, ...]:
    t = tensor(node)
    return t.dtype, *t.shape


def _stages_compute(parts: _Parts) -> Iterator[Finding]:
    for index, low in parts.lowered.items():
        if not low.graph.calls:
            yield f"stage {index} computes nothing"


def _channels_have_two_ends(parts: _Parts) -> Iterator[Finding]:
    sends = {k: {t.channel: t for t in low.sends} for k, low in parts.lowered.items()}
    receives = {k: {t.channel: t for t in low.receives} for k, low in parts.lowered.items()}
    known = {c.name for c in parts.plan.channels}
    for c in parts.plan.channels:
        yield from _end(c, "send", c.src, sends.get(c.src, {}))
        yield from _end(c, "recv", c.dst, receives.get(c.dst, {}))
    for ends, word in ((sends, "send"), (receives, "recv")):
        for stage, transfers in ends.items():
            for name in transfers.keys() - known:
                yield f"stage {stage} has a {word} node on channel {name}, which is not planned"


def _end(
    c: ValueChannel, word: str, stage: int, transfers: dict[str, Transfer]
) -> Iterator[Finding]:
    found = transfers.get(c.name)
    pair = f"channel {c.name} from stage {c.src} to stage {c.dst}"
    if found is None:
        yield f"{pair}: stage {stage} has no {word} node for it"
    elif (found.value, found.nbytes) != (c.value, c.nbytes):
        yield (
            f"{pair}: the {word} node carries {found.value} ({found.nbytes} bytes), "
            f"the plan says {c.value} ({c.nbytes} bytes)"
        )


def _values_arrive(parts: _Parts) -> Iterator[Finding]:
    """Every value that a stage reads is computed or received by it, and flows forward."""
    plan = parts.plan
    for c in plan.channels:
        if not c.src < c.dst:
            yield f"channel {c.name} flows backwards, from stage {c.src} to stage {c.dst}"
    if not plan.channels:
        return
    for stage in plan.stages:
        for o in stage.graph.outputs_of(OutputKind.VALUE):
            yield f"stage {stage.index} yields {o.name} but does not send it"


def _bytes_agree(parts: _Parts) -> Iterator[Finding]:
    nodes = parts.plan.graph.nodes
    for c in parts.plan.channels:
        if c.value not in nodes:
            yield f"channel {c.name} carries {c.value}, which the model does not compute"
        elif nbytes(nodes[c.value]) != c.nbytes:
            yield f"channel {c.name}: {c.nbytes} bytes planned, {nbytes(nodes[c.value])} computed"


def _slots_have_two_ends(parts: _Parts) -> Iterator[Finding]:
    """The values of host slots are offloaded by F and fetched by B, and nothing else is."""
    for stage in parts.plan.stages:
        if stage.training is None:
            continue
        slots = [s for s in parts.plan.slots if s.stage == stage.index]
        want = [(slot.name, value) for slot in slots for value in slot.values]
        training = stage.training
        ends = (
            ("offload", "F", lower(training.F).offloads),
            ("fetch", "B", lower(training.B).fetches),
            ("fetch", "I", lower(training.I).fetches),
        )
        for word, graph, transfers in ends:
            found = Counter((t.channel, t.value) for t in transfers)
            for name, value in want:
                times = found[name, value]
                where = f"host slot {name}: {graph} of stage {stage.index}"
                if not times:
                    yield f"{where} does not {word} {value}"
                elif times > 1:
                    yield f"{where} does {word} {value} {times} times"
            for name, value in sorted(found.keys() - set(want)):
                yield f"{graph} of stage {stage.index}: {word} of {value} in {name} is not planned"
            if found == Counter(want):
                yield from _slot_contents(slots, graph, word, transfers)


def _slot_contents(
    slots: list[HostSlot], graph: str, word: str, transfers: tuple[Transfer, ...]
) -> Iterator[Finding]:
    """The values of a slot lie in it in the order in which they leave, and come back."""
    for slot in slots:
        mine = [t for t in transfers if t.channel == slot.name]
        order = tuple(t.value for t in mine)
        if order != slot.values:
            yield f"host slot {slot.name}: {graph} does {word} {order}, the plan says {slot.values}"
        if sum(t.nbytes for t in mine) != slot.nbytes:
            yield f"host slot {slot.name}: {graph} does not {word} {slot.nbytes} bytes"


def _slots_are_scheduled(parts: _Parts) -> Iterator[Finding]:
    """The schedule copies what the slots hold; without slots it is free to move everything."""
    plan = parts.plan
    if plan.schedule is None or not plan.slots:
        return
    copied = {c.name: c for c in plan.schedule.channels if c.kind is ChannelKind.H}
    for slot in plan.slots:
        found = copied.get(slot.name)
        if found is None:
            yield f"host slot {slot.name}: the schedule does not copy it"
        elif (found.src, found.nbytes) != (slot.stage, slot.nbytes):
            yield f"host slot {slot.name}: the schedule copies {found.nbytes} bytes"
        elif found.depth != slot.depth:
            depths = f"depth {found.depth} in the schedule, {slot.depth} planned"
            yield f"host slot {slot.name}: {depths}"


def _random_values_are_drawn_once(parts: _Parts) -> Iterator[Finding]:
    """Only F draws random numbers: a backward that draws again computes with another mask."""
    for stage in parts.plan.stages:
        for kind in ("B", "I", "W") if stage.training else ():
            for node in filter(is_random, getattr(stage.training, kind).calls):
                yield f"{kind} of stage {stage.index} draws random numbers again: {node.name}"


def _buffers_have_one_home(parts: _Parts) -> Iterator[Finding]:
    """No stage reads a copy of a buffer that another one updates."""
    updated = {
        o.name: stage.index
        for stage in parts.plan.stages
        for o in stage.graph.outputs_of(OutputKind.BUFFER_UPDATE)
    }
    for stage in parts.plan.stages:
        for i in stage.graph.inputs_of(InputKind.BUFFER):
            home = updated.get(i.name, stage.index)
            if home != stage.index:
                yield f"stage {stage.index} reads buffer {i.name}, which stage {home} updates"


def _memory_is_kept(parts: _Parts) -> Iterator[Finding]:
    """No device holds more than it has, as the timeline follows it."""
    plan = parts.plan
    if plan.timeline is None:
        return
    pairs = zip(plan.timeline.memory_curves, plan.cluster.devices, strict=False)
    for k, (curve, device) in enumerate(pairs):
        if curve.peak > device.memory_bytes:
            held = ", ".join(f"{n} {v / 1e6:.4g} MB" for n, v in curve.at_peak.items() if v)
            yield (
                f"device {k} ({device.kind}) needs {curve.peak / 1e6:.4g} of "
                f"{device.memory_bytes / 1e6:.4g} MB ({curve.peak / device.memory_bytes:.1%}): "
                f"{held}; --schedule auto, insert-offload or smaller microbatches need less"
            )


RULES: dict[str, Callable[[_Parts], Iterator[Finding]]] = {
    "every-node-once": _every_node_once,
    "outputs-leave-once": _outputs_leave_once,
    "stages-compute": _stages_compute,
    "channels-have-two-ends": _channels_have_two_ends,
    "values-arrive": _values_arrive,
    "buffers-have-one-home": _buffers_have_one_home,
    "random-values-are-drawn-once": _random_values_are_drawn_once,
    "bytes-agree": _bytes_agree,
    "slots-have-two-ends": _slots_have_two_ends,
    "slots-are-scheduled": _slots_are_scheduled,
    "memory-is-kept": _memory_is_kept,
}
"""Rule name to what finds its violations."""


def verify(plan: Plan, *, before: Plan | None = None) -> None:
    """Check the plan and every graph in it.

    Args:
        plan: The plan to check.
        before: A plan that was checked already; graphs it shares are not checked again.

    Raises:
        PlanError: The parts do not belong together; all findings are listed.
        GraphError: A graph breaks a rule of the IR.
    """
    checked = {id(before.graph), *(id(s.graph) for s in before.stages)} if before else set()
    if id(plan.graph) not in checked:
        verify_graph(plan.graph, "the model")
    for stage in plan.stages:
        if id(stage.graph) not in checked:
            verify_graph(stage.graph, f"stage {stage.index}")
    if before and all(
        getattr(before, part) is getattr(plan, part)
        for part in ("stages", "channels", "slots", "schedule", "timeline")
    ):
        return
    parts = _Parts(plan)
    found = [f"[{name}] {finding}" for name, rule in RULES.items() for finding in rule(parts)]
    if found:
        shown = "\n    ".join(found[:20])
        more = f"\n    (+{len(found) - 20} more)" if len(found) > 20 else ""
        raise PlanError(f"the plan breaks {len(found)} rule(s)", got=f"\n    {shown}{more}")
