"""Stages against the model: each is a piece of it, node by node, with its types and weights."""

from collections import Counter
from collections.abc import Iterator

from torch import fx

from pipec.graph.finding import Finding
from pipec.graph.ir import Graph, InputKind, OutputKind, op_name
from pipec.plan.rules.parts import Parts, PlanRule, mismatch, value_of


def _numbered(parts: Parts) -> Iterator[Finding]:
    for position, stage in enumerate(parts.plan.stages):
        if stage.index != position:
            yield Finding(f"stage at position {position}", f"index {stage.index}", position)


def _every_node_once(parts: Parts) -> Iterator[Finding]:
    if not parts.plan.stages:
        return
    where = Counter(n.name for low in parts.lowered for n in low.calls)
    for n in parts.plan.graph.calls:
        if where[n.name] != 1:
            yield Finding(f"node {n.name}", f"in {where[n.name]} stages", "in exactly one")


def _stages_compute(parts: Parts) -> Iterator[Finding]:
    for index, low in enumerate(parts.lowered):
        if not low.calls:
            yield Finding(f"stage {index}", "computes nothing", "at least one node of the model")


def _stages_follow_model(parts: Parts) -> Iterator[Finding]:
    """A node of a stage is the model's node of its name: op, arguments and type."""
    for index, low in enumerate(parts.lowered):
        for n in low.calls:
            place, twin = f"stage {index}, node {n.name}", parts.nodes.get(n.name)
            if twin is None or twin.op != "call_function":
                yield Finding(place, f"{op_name(n)}, which the model does not have", "its nodes")
            elif _call(n) != _call(twin):
                yield Finding(place, _call(n), f"as in the model: {_call(twin)}")
            else:
                yield from mismatch(place, value_of(n), value_of(twin), strided=True)


def _call(node: fx.Node) -> str:
    named = "".join(f", {k}={node.kwargs[k]!r}" for k in sorted(node.kwargs))
    return f"{op_name(node)}({', '.join(map(repr, node.args))}{named})"


def _stages_read_the_model(parts: Parts) -> Iterator[Finding]:
    """What a stage reads is an input of the model, of its kind, name and type, or a value of it."""
    for index, low in enumerate(parts.lowered):
        nodes = low.stage.nodes
        for i in low.inputs:
            place = f"stage {index}, input {i.node}"
            if i.kind is InputKind.VALUE:
                yield from _read_value(parts, place, i.name, nodes[i.node])
                continue
            want = parts.inputs.get(i.node)
            if want != i:
                told = "no such input in the model" if want is None else f"{want.kind} {want.name}"
                yield Finding(place, f"{i.kind} {i.name}", told)
            else:
                own = parts.nodes[i.node]
                yield from mismatch(place, value_of(nodes[i.node]), value_of(own), strided=True)


def _read_value(parts: Parts, place: str, name: str, node: fx.Node) -> Iterator[Finding]:
    source = parts.nodes.get(name)
    if source is None or source.op != "call_function" or name != node.name:
        yield Finding(place, f"value {name}", "a value that the model computes, under its name")
    else:
        yield from mismatch(place, value_of(node), value_of(source))


def _outputs_leave_once(parts: Parts) -> Iterator[Finding]:
    """Every output of the model is yielded by one stage: by its name, in its order, of its node."""
    model = {(o.kind, o.name): (k, o.node) for k, o in enumerate(parts.plan.graph.outputs)}
    homes = Counter[tuple[OutputKind, str]]()
    for stage in parts.plan.stages:
        own = [o for o in stage.graph.outputs if o.kind is not OutputKind.VALUE]
        homes.update((o.kind, o.name) for o in own)
        places = [model[o.kind, o.name][0] for o in own if (o.kind, o.name) in model]
        if places != sorted(places):
            names = [o.name for o in own]
            yield Finding(f"stage {stage.index}, outputs", names, "the order of the model")
        for o in own:
            want = model.get((o.kind, o.name), (0, "nothing of this name"))[1]
            if want != o.node:
                yield Finding(f"stage {stage.index}, {o.kind} {o.name}", f"node {o.node}", want)
    for kind, name in model if parts.plan.stages else ():
        if homes[kind, name] != 1:
            yield Finding(f"{kind} {name}", f"yielded by {homes[kind, name]} stages", "exactly one")


def _buffers_have_one_home(parts: Parts) -> Iterator[Finding]:
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
                place = f"stage {stage.index} reads buffer {i.name}"
                yield Finding(place, f"an update in stage {home}", "an update where it is read")


def _updates_fit_buffers(parts: Parts) -> Iterator[Finding]:
    """The next value of a buffer is of the buffer's type."""
    graph = parts.plan.graph
    buffers = {i.name: parts.nodes[i.node] for i in graph.inputs_of(InputKind.BUFFER)}
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


RULES: dict[str, PlanRule] = {
    "stages-are-numbered": _numbered,
    "every-node-once": _every_node_once,
    "stages-compute": _stages_compute,
    "stages-follow-model": _stages_follow_model,
    "stages-read-the-model": _stages_read_the_model,
    "outputs-leave-once": _outputs_leave_once,
    "buffers-have-one-home": _buffers_have_one_home,
    "updates-fit-buffers": _updates_fit_buffers,
    "weights-are-the-models": _weights_are_the_models,
}
