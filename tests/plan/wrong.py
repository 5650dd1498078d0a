"""Edits that break a plan, each in one way; `tests.plan.wrong_passes` says which rule must see it.

Starts: ``traced`` is a model with costs, ``bare`` is cut with its channels, ``cut`` is trained,
scheduled and timed on four stages, ``hosted`` has saved values wait in host memory (PipeFB), in
``eager`` a part runs as a module under autograd.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.frontends.trace import Loss, trace
from pipec.graph.comm import RECV, SEND
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind, Source
from pipec.graph.lower import lower
from pipec.graph.written import extract, with_outputs
from pipec.plan.model import Partition, Plan, Stage, cut_stages
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Placement
from tests.plan.edits import (
    Edit,
    edited,
    fake,
    first,
    in_channel,
    in_stage,
    with_stage,
)
from tests.plan.wrong_training import without

aten = torch.ops.aten


class Block(nn.Module):
    """Equal layers with a difference, whose operands may not be swapped."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x) - self.b(x)) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.blocks(x)))
        return y


PLACED = {
    "bare": Placement(((0,), (1,), (2,), (3,))),
    "cut": Placement.together(((0,), (1,), (2,), (3,))),
    "eager": Placement.together(((0,), (1,), (2,), (3,))),
    "hosted": Placement(((0,), (1,), (2,), (3,)), ((7,), (6,), (5,), (4,))),
}


@cache
def start(name: str) -> Plan:
    """A sound plan, a block per stage; what edits in place gets one that nobody else has."""
    torch.manual_seed(0)
    loss = Loss(nn.functional.cross_entropy, torch.tensor([0, 1, 2, 0]))
    told = {"loss": loss, "source": Source("memory", "wrong")}
    eager = ["blocks.0.a"] if name == "eager" else []
    graph = trace(Model(), (torch.randn(4, 8),), **told, eager=eager)  # type: ignore[arg-type]
    plan = Plan(graph, parse_cluster("8xh100" if name == "hosted" else "4xh100"))
    plan = run_passes(parse_pipeline("simplify,annotate-cost"), plan)
    if name == "traced":
        return plan
    ends = [k for k, n in enumerate(plan.graph.calls) if n.target is aten.add.Tensor][:3]
    stage_of = {n.name: sum(k > e for e in ends) for k, n in enumerate(plan.graph.calls)}
    parts = [extract(plan.graph, {n for n, s in stage_of.items() if s == k}, "S") for k in range(4)]
    plan = plan.replace(
        partition=Partition(stage_of, (1.0,) * 4, 1.0, proven=False, answers="", method="by hand"),
        placement=PLACED[name],
        stages=tuple(Stage(k, part) for k, part in enumerate(parts)),
    )
    kind = {"cut": "1f1b", "eager": "1f1b", "hosted": "pipefb"}.get(name)
    order = f",differentiate,time-stages,schedule{{generator={kind} microbatches=4}},simulate"
    return run_passes(parse_pipeline(f"insert-comm{order if kind else ''}"), plan)


def pipemare(plan: Plan) -> Plan:
    """Let the backward of an eager part use other weights than its forward."""
    return plan.replace(schedule=complete(generate("pipemare", 4, 4), plan), timeline=None)


def pipemare_again(plan: Plan) -> Plan:
    """The same where no part is eager, and values that read weights are computed again."""
    told = "insert-recompute{values=blocks.* microbatches=4}"
    plan = run_passes(parse_pipeline(told), plan.replace(schedule=None, timeline=None))
    return pipemare(plan)


def method(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "relu")
    node.op, node.target = "call_method", "relu"


def view(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "relu")
    with graph.inserting_after(node):
        view = graph.call_function(aten.view.default, (node, [4, 8]))
    view.meta = dict(node.meta)
    node.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)


def cyclic(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    first(nodes, "relu").append(first(nodes, "linear"))


def foreign(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    first(nodes, "relu").target = torch.ops.wrong_passes.same.default


_library = torch.library.Library("wrong_passes", "DEF")
_library.define("same(Tensor x) -> Tensor")
_library.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("wrong_passes::same", torch.empty_like, lib=_library)


def shorter_output(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    output = graph.output_node()
    output.args = (output.args[0][:-1],)  # type: ignore[index]


def swapped_operands(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "sub")
    node.args = (node.args[1], node.args[0])


def shorter_bias(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    """One number as the bias of all channels, where torch's kernel reads eight."""
    node = first(nodes, "batch_norm")
    with graph.inserting_before(node):
        new = graph.call_function(aten.sum.default, (node.args[0],))
    new.meta = {**node.meta, "val": fake(first(nodes, "relu"), ())}
    node.args = (*node.args[:2], new, *node.args[3:])


def other_constant(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    first(nodes, "add.Tensor").kwargs = {"alpha": 2}


def dropped(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "relu")
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.erase_node(node)


def renamed(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    first(nodes, "relu").name = "renamed"


def duplicated(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "relu")
    with graph.inserting_after(node):
        twin = graph.node_copy(node, lambda n: n)
    twin.name = "relu_twin"
    next(iter(node.users)).replace_input_with(node, twin)


def renamed_in_place(plan: Plan) -> Plan:
    """The graph itself is edited: the very same object comes back."""
    node = first(plan.graph.nodes, "relu")
    node.meta["val"] = fake(node, (4, 9))
    return plan


def two_entries(plan: Plan) -> Plan:
    o = plan.graph.outputs[-1]
    graph = with_outputs(plan.graph, (*plan.graph.outputs, o))
    return plan.replace(graph=graph)


def without_weight(plan: Plan) -> Plan:
    weights = dict(plan.graph.weights)
    weights.popitem()
    return plan.replace(graph=plan.graph.replace(weights=weights))


def reshaped_weight(plan: Plan) -> Plan:
    weights = {name: w[:1] if w.dim() else w for name, w in plan.graph.weights.items()}
    return plan.replace(graph=plan.graph.replace(weights=weights))


def stray_weight(plan: Plan) -> Plan:
    weights = {**plan.graph.weights, "stray": torch.zeros(1)}
    return plan.replace(graph=plan.graph.replace(weights=weights))


def output_called(name: str) -> Edit:
    def run(plan: Plan) -> Plan:
        *rest, last = plan.graph.outputs
        outputs = (*rest, replace(last, name=name))
        return plan.replace(graph=plan.graph.replace(outputs=outputs))

    return run


def whole_tuple(plan: Plan) -> Plan:
    node = first(plan.graph.nodes, "getitem").args[0]
    assert isinstance(node, fx.Node)
    extra = GraphOutput(node.name, OutputKind.OUTPUT, "whole")
    return plan.replace(graph=with_outputs(plan.graph, (*plan.graph.outputs, extra)))


def saved_in_model(plan: Plan) -> Plan:
    inputs = tuple(
        replace(i, kind=InputKind.SAVED) if i.kind is InputKind.INPUT else i
        for i in plan.graph.inputs
    )
    return plan.replace(graph=plan.graph.replace(inputs=inputs))


def update(name: str) -> Edit:
    """The first update of a buffer gets another name."""

    def run(plan: Plan) -> Plan:
        one = plan.graph.outputs_of(OutputKind.BUFFER_UPDATE)[0]
        outputs = tuple(replace(o, name=name) if o is one else o for o in plan.graph.outputs)
        return plan.replace(graph=with_outputs(plan.graph, outputs))

    return run


def uncosted(edit: Edit) -> Edit:
    return lambda plan: edit(plan.replace(costs=None))


def unscheduled(edit: Edit) -> Edit:
    return lambda plan: edit(plan.replace(schedule=None, timeline=None))


def order(*order: int) -> Edit:
    return lambda plan: plan.replace(stages=tuple(plan.stages[k] for k in order))


def empty_stage(plan: Plan) -> Plan:
    graph = Graph(fx.GraphModule({}, _nothing()), (), (), {}, source=plan.graph.source)
    stages = (*plan.stages, Stage(len(plan.stages), graph))
    return plan.replace(stages=stages, placement=None)


def _nothing() -> fx.Graph:
    graph = fx.Graph()
    graph.output(())
    return graph


def scaled_weights(plan: Plan) -> Plan:
    graph = plan.stages[1].graph
    weights = {name: w * 7 for name, w in graph.weights.items()}
    return with_stage(plan, 1, graph=graph.replace(weights=weights))


def swapped_weights(plan: Plan) -> Plan:
    graph = plan.stages[1].graph
    twins = [i for i in graph.inputs if plan.graph.weights[i.name].dim() == 2]
    other = {twins[0].name: twins[1].name, twins[1].name: twins[0].name}
    inputs = tuple(replace(i, name=other.get(i.name, i.name)) for i in graph.inputs)
    return with_stage(plan, 1, graph=graph.replace(inputs=inputs))


def stale_tie(plan: Plan) -> Plan:
    graph = plan.stages[1].graph
    name = next(iter(graph.weights))
    return with_stage(plan, 1, graph=graph.replace(tied={name: ("old.name",)}))


def aliased_stage(plan: Plan) -> Plan:
    return with_stage(plan, 2, graph=plan.stages[1].graph)


def result_of(stage: int, **changes: Any) -> Edit:
    def run(plan: Plan) -> Plan:
        graph = plan.stages[stage].graph
        outputs = tuple(
            replace(o, **changes) if o.kind is OutputKind.LOSS else o for o in graph.outputs
        )
        return with_stage(plan, stage, graph=with_outputs(graph, outputs))

    return run


def reads_buffer(plan: Plan) -> Plan:
    """The model's first layer reads a buffer that its last stage updates, and so does its stage."""

    def edit(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        node = first(nodes, "relu")
        node.target = aten.add.Tensor
        node.args = (node.args[0], nodes[buffer.node])

    buffer = next(i for i in plan.graph.inputs_of(InputKind.BUFFER) if "mean" in i.name)
    model = edited(plan.graph, edit)
    stage, *_ = cut_stages(model, plan.home, len(plan.stages), plan.channels)
    return plan.replace(graph=model, stages=(stage, *plan.stages[1:]), costs=None)


def comm(op: object, **changes: Any) -> Callable[[fx.Graph, dict[str, fx.Node]], None]:
    def edit(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        node = next(n for n in nodes.values() if n.target is op)
        node.kwargs = {**node.kwargs, **changes}

    return edit


def recv_typed(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    """All of a received value's type changes at once, strides alone."""
    node = next(n for n in nodes.values() if n.target is RECV)
    node.meta["val"] = fake(node, (8, 4)).t()


def no_send(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    graph.erase_node(next(n for n in nodes.values() if n.target is SEND))


def two_sends(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = next(n for n in nodes.values() if n.target is SEND)
    with graph.inserting_after(node):
        graph.node_copy(node, lambda n: n).name = "send_again"


def dead(graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    node = first(nodes, "relu")
    with graph.inserting_after(node):
        graph.node_copy(node, lambda n: n).name = "dead"


def fewer_bytes(plan: Plan) -> Plan:
    """A channel and its send node agree on what is wrong."""
    c = plan.channels[0]

    def edit(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        for n in nodes.values():
            if n.target is SEND and n.kwargs["channel"] == c.name:
                n.kwargs = {**n.kwargs, "nbytes": 1}

    return in_channel(0, nbytes=1)(in_stage(c.src, edit)(plan))


def without_channels(plan: Plan) -> Plan:
    """What the first stage sends goes with both its ends: the next one reads what nobody brings."""
    gone = [c for c in plan.channels if c.src == 0]
    assert all(c.dst == 1 for c in gone)

    def edit(_: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        for n in nodes.values():
            if n.target is RECV:
                n.op, n.target, n.kwargs = "placeholder", n.name, {}

    stage = edited(plan.stages[1].graph, edit)
    read = tuple(GraphInput(c.value, InputKind.VALUE, c.value) for c in gone)
    plan = with_stage(plan, 1, graph=stage.replace(inputs=(*stage.inputs, *read)))
    plan = with_stage(plan, 0, graph=lower(plan.stages[0].graph).graph)
    return plan.replace(channels=tuple(c for c in plan.channels if c not in gone))


def second_channel(plan: Plan) -> Plan:
    c = plan.channels[0]
    return plan.replace(channels=(*plan.channels, replace(c, name="again")))


def other_name(plan: Plan) -> Plan:
    """A channel and both its ends get another name."""
    c = plan.channels[0]
    for stage, op in ((c.src, SEND), (c.dst, RECV)):

        def edit(graph: fx.Graph, nodes: dict[str, fx.Node], op: object = op) -> None:
            for n in nodes.values():
                if n.target is op and n.kwargs["channel"] == c.name:
                    n.kwargs = {**n.kwargs, "channel": "other"}

        plan = in_stage(stage, edit)(plan)
    return in_channel(0, name="other")(plan)


def slot(**changes: Any) -> Edit:
    def run(plan: Plan) -> Plan:
        return plan.replace(slots=(replace(plan.slots[0], **changes), *plan.slots[1:]))

    return run


def partition(**changes: Any) -> Edit:
    def run(plan: Plan) -> Plan:
        assert plan.partition is not None
        new = {k: f(plan.partition) for k, f in changes.items()}
        return plan.replace(partition=replace(plan.partition, **new))

    return run


def costs(**changes: Any) -> Edit:
    def run(plan: Plan) -> Plan:
        assert plan.costs is not None
        new = {k: f(plan.costs) for k, f in changes.items()}
        return plan.replace(costs=replace(plan.costs, **new))

    return run


def schedule(change: Callable[[Any], Any]) -> Edit:
    return lambda plan: plan.replace(schedule=change(plan.schedule), timeline=None)


def raw(plan: Plan) -> Plan:
    return plan.replace(schedule=generate("1f1b", 4, 4), timeline=None)


def reordered(schedule: Any) -> Any:
    kind, microbatch = schedule.kind.copy(), schedule.microbatch.copy()
    row = slice(schedule.device_ptr[1], schedule.device_ptr[2])
    kind[row], microbatch[row] = kind[row][::-1], microbatch[row][::-1]
    return schedule.replace(kind=kind, microbatch=microbatch)


def stale_bytes(schedule: Any) -> Any:
    channels = tuple(replace(c, nbytes=c.nbytes + 1) if c.name else c for c in schedule.channels)
    return schedule.replace(channels=channels)


def host_bytes(schedule: Any) -> Any:
    channels = tuple(
        replace(c, nbytes=1) if c.name.endswith("host0") else c for c in schedule.channels
    )
    return schedule.replace(channels=channels)


def half(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(row.items())[1:])


def moved(plan: Plan) -> Plan:
    place = Placement.together(((3,), (2,), (1,), (0,)))
    return plan.replace(placement=place)


def nan(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {k: {n: float("nan") for n in row} for k, row in seconds.items()}


def stage_of(change: Callable[[dict[str, int]], dict[str, int]]) -> Edit:
    return partition(stage_of=lambda p: change(dict(p.stage_of)))


def stale_timeline(plan: Plan) -> Plan:
    assert plan.schedule is not None
    return plan.replace(schedule=plan.schedule.replace(name="twin"))


def without_update(plan: Plan) -> Plan:
    """A stage computes the next value of a buffer and keeps it for itself."""
    position = next(
        k for k, s in enumerate(plan.stages) if s.graph.outputs_of(OutputKind.BUFFER_UPDATE)
    )
    graph = without(OutputKind.BUFFER_UPDATE)(plan.stages[position].graph)
    return with_stage(plan, position, graph=graph)


def drawing(graph: Graph) -> Graph:
    """A mask is drawn that nothing reads, as a replayed dropout would."""
    copy = with_outputs(graph, graph.outputs)
    last = copy.calls[-1]
    with copy.module.graph.inserting_after(last):
        new = copy.module.graph.call_function(aten.bernoulli.p, (last, 0.5))
    new.meta = dict(last.meta)
    return copy


def small_devices(plan: Plan) -> Plan:
    devices = tuple(replace(d, memory_bytes=100.0) for d in plan.cluster.devices)
    return plan.replace(cluster=replace(plan.cluster, devices=devices))
