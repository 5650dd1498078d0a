"""Stages and channels against the model: each is a piece of it, with its types and weights."""

from collections import Counter
from collections.abc import Iterator, Mapping

from torch import fx

from pipec.graph.finding import Finding
from pipec.graph.infer import describe_type, type_of
from pipec.graph.ir import Graph, InputKind, OutputKind, op_name, tensors
from pipec.graph.written import Part
from pipec.plan.model import ValueChannel, stage_parts
from pipec.plan.rules.parts import Parts, PlanRule, mismatch, value_of

_BUFFERS = (InputKind.BUFFER, InputKind.STATE)


def _check_numbers(parts: Parts) -> Iterator[Finding]:
    for position, stage in enumerate(parts.plan.stages):
        if stage.index != position:
            yield Finding(f"stage at position {position}", f"index {stage.index}", position)


def _partition_covers(parts: Parts) -> Iterator[Finding]:
    """Every node and output of the model is of one stage, and every stage has some."""
    plan = parts.plan
    if plan.partition is None:
        if plan.stages:
            yield Finding("partition", "none", "the stage of every node")
        return
    calls = {n.name for n in plan.graph.calls}
    for name in sorted(calls ^ plan.home.keys()):
        got, want = ("no stage", "one") if name in calls else ("no node of the model", "its nodes")
        yield Finding(f"partition, {name}", got, want)
    numbers, filled = {*range(len(plan.stages))}, {*plan.home.values()}
    for k in sorted(numbers ^ filled if plan.stages else ()):
        got, want = ("no such stage", "stages") if k in filled else ("computes nothing", "a node")
        yield Finding(f"partition, stage {k}", got, want)
    for o in plan.graph.outputs:
        if o.node not in calls:
            yield Finding(f"{o.kind} {o.name}", f"{o.node}, which no stage computes", "a call node")


def _follow_model(parts: Parts) -> Iterator[Finding]:
    """A stage is what its part of the model and its channels make of it, and nothing else."""
    plan = parts.plan
    made = stage_parts(plan.graph, plan.home, len(plan.stages), plan.channels)
    for stage, part in zip(plan.stages if plan.partition else (), made, strict=False):
        own = stage.graph
        got = _describe(Part(own, own.inputs, own.calls, own.outputs), own.nodes)
        want = _describe(part, part.read)
        for name in sorted(name for name in {**got, **want} if got.get(name) != want.get(name)):
            place = f"stage {stage.index}, {name}"
            yield Finding(place, got.get(name, "nothing"), want.get(name, "nothing of this name"))
        if got == want and list(got) != list(want):
            yield Finding(f"stage {stage.index}", list(got), f"the order {list(want)}")


def _describe(part: Part, nodes: Mapping[str, fx.Node]) -> dict[str, str]:
    """What a graph reads, computes and yields, by name, in order, with its types."""
    read = [(i, nodes.get(i.node)) for i in part.inputs]
    found = {f"input {i.node}": f"{i.kind} {i.name}: {_type(n)}" for i, n in read}
    found |= {f"node {n.name}": f"{_call(n)}: {_type(n)}" for n in part.calls}
    return found | {f"{o.kind} {o.name}": f"node {o.node}" for o in part.outputs}


def _call(node: fx.Node) -> str:
    named = [f"{k}={node.kwargs[k]!r}" for k in sorted(node.kwargs)]
    return f"{op_name(node)}({', '.join([*map(repr, node.args), *named])})"


def _type(node: fx.Node | None) -> str:
    return describe_type(type_of(value_of(node)))


def _buffers_have_one_home(parts: Parts) -> Iterator[Finding]:
    """No stage reads a copy of a buffer that another one updates."""
    updated = {
        o.name: stage.index
        for stage in parts.plan.stages
        for o in stage.graph.outputs_of(OutputKind.BUFFER_UPDATE)
    }
    for stage in parts.plan.stages:
        for i in stage.graph.inputs_of(*_BUFFERS):
            home = updated.get(i.name, stage.index)
            if home != stage.index:
                place = f"stage {stage.index} reads buffer {i.name}"
                yield Finding(place, f"an update in stage {home}", "an update where it is read")


def _updates_fit_buffers(parts: Parts) -> Iterator[Finding]:
    """The next value of a buffer is of the buffer's type."""
    graph = parts.plan.graph
    buffers = {i.name: parts.nodes[i.node] for i in graph.inputs_of(*_BUFFERS)}
    for o in graph.outputs_of(OutputKind.BUFFER_UPDATE):
        place, node = f"update of buffer {o.name}", parts.nodes[o.node]
        if o.name not in buffers:
            yield Finding(place, "no such buffer", f"one of {sorted(buffers)}")
        else:
            yield from mismatch(place, value_of(node), value_of(buffers[o.name]))


def _weights_are_the_models(parts: Parts) -> Iterator[Finding]:
    """Every graph of the plan holds the very tensors of the model, and their other names."""
    model = parts.plan.graph
    for name, aliases in model.tied.items():
        if name not in model.weights or model.weights.keys() & set(aliases):
            yield Finding(f"tied weight {name}", aliases, "names that no other weight has")
    for place, graph in _graphs(parts):
        for name, tensor in graph.weights.items():
            if name not in model.weights:
                yield Finding(f"{place}, weight {name}", "a weight of its own", "the model's")
            elif tensor is not model.weights[name]:
                yield Finding(f"{place}, weight {name}", "another tensor", "the model's tensor")
        if graph.source != model.source or not graph.namespaces <= model.namespaces:
            got = f"{graph.source.location}, namespaces {sorted(graph.namespaces)}"
            yield Finding(f"{place}, source", got, "the model's")
        for name, aliases in graph.tied.items():
            if aliases != model.tied.get(name):
                yield Finding(f"{place}, weight {name}", aliases, model.tied.get(name))


def _graphs(parts: Parts) -> Iterator[tuple[str, Graph]]:
    for stage in parts.plan.stages:
        yield f"stage {stage.index}", stage.graph
        if stage.training is not None:
            for kind, graph in stage.training.graphs.items():
                yield f"{kind} of stage {stage.index}", graph


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
    "stages-are-numbered": _check_numbers,
    "partition-covers": _partition_covers,
    "stages-follow-model": _follow_model,
    "buffers-have-one-home": _buffers_have_one_home,
    "updates-fit-buffers": _updates_fit_buffers,
    "weights-are-the-models": _weights_are_the_models,
    "channels-go-forward": _go_forward,
    "channels-carry-values": _carry_values,
    "values-arrive": _values_arrive,
}
