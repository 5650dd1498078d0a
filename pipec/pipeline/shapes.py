"""A plan's model traced again, for another shape or for evaluation, and cut where the plan is cut.

Weights stay where they are: a node goes to the first stage that is not before any of its operands
and that holds all weights that it reads. Nodes that the plan's graph has too keep their stages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from inspect import BoundArguments, signature

import torch
from torch import fx, nn

from pipec.compiler.comparison import REWRITTEN
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.same_model import check_parameters, check_same_model
from pipec.errors import PlanError
from pipec.frontends.base import LoadOptions
from pipec.frontends.leaves import read_back
from pipec.frontends.load import load
from pipec.frontends.pt2 import was_trusted
from pipec.frontends.torch_module import from_module
from pipec.graph.eager import EAGER
from pipec.graph.ir import Graph, origin
from pipec.plan.model import Partition, Plan, cut_stages
from pipec.runtime.program import Program
from pipec.schedule.action import ActionKind
from pipec.schedule.build import build
from pipec.schedule.schedule import Placement, Schedule

Trace = Callable[[Mapping[str, torch.Tensor], LoadOptions], Graph]


def tracer(plan: Plan, model: nn.Module | None, loss: Callable[..., object] | None) -> Trace:
    """What traces the plan's model again on other inputs.

    ``loss`` is of the outputs and the target, where the module does not compute one.

    Raises:
        PlanError: The module has not the parameters of the plan.
    """
    source = plan.graph.source
    if model is not None:
        check_parameters(plan, model)

    def trace(inputs: Mapping[str, torch.Tensor], options: LoadOptions) -> Graph:
        """The graph on these inputs, targets among them.

        Raises:
            PlanError: The plan does not say where the model is.
            FrontendError: It cannot be traced so.
        """
        recorded = LoadOptions.of(source)
        options = replace(options, autocast=recorded.autocast, eager=recorded.eager)
        if model is not None:
            known = {"call": {n: ["tensor", n] for n in inputs}, "target": None, **source.options}
            call, target = (read_back(known[n], inputs) for n in ("call", "target"))
            args = BoundArguments(signature(model.forward), call)
            scored = None if loss is None else (loss, target)
            return from_module(model, args, scored, options).graph
        if source.kind == "memory":
            raise PlanError(
                "the plan was made of a module in memory, which must be traced again here",
                got=f"inputs of {_shapes(inputs)}",
                hint="pass it: Pipeline(plan, model=model), and loss= if it was compiled with one",
            )
        shapes = {n: tuple(t.shape) for n, t in inputs.items()}
        used = replace(
            recorded,
            shapes=shapes,
            training=options.training,
            scored=options.scored,
            trust=was_trusted(source.location),
        )
        return load(source.location, used).graph

    return trace


@dataclass(frozen=True)
class Retraced:
    """Makes plans for other shapes of a plan's microbatches, and for evaluation.

    Attributes:
        plan: The plan.
        trace: Traces its model again.
    """

    plan: Plan
    trace: Trace

    def plan_training(self, inputs: Mapping[str, torch.Tensor]) -> Program:
        """The plan for microbatches of another shape, under its own schedule.

        Raises:
            PlanError: The model is another one, or is another one at this shape.
        """
        passes = "insert-comm,differentiate" if self.plan.trains else "insert-comm"
        made = self._cut(self._as_compiled(inputs), passes)
        if {c.name for c in made.channels} != {c.name for c in self.plan.channels}:
            raise PlanError(
                "at this shape the model sends other values between its stages",
                got=_shapes(inputs),
                hint="compile for this shape, or make batches of one shape",
            )
        slots = () if self.plan.order.placement.separate else self.plan.slots  # else all is moved
        return Program.of(made.replace(slots=slots), self.plan.schedule)

    def _as_compiled(self, inputs: Mapping[str, torch.Tensor]) -> Graph:
        outputs = any(o.kind.name == "OUTPUT" for o in self.plan.graph.outputs)
        trains = self.plan.trains
        return self.trace(inputs, LoadOptions(training=trains, scored=trains and outputs))

    def check_model(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """See that what is traced at the plan's own shape computes what the plan does.

        What passes may have added (copies, casts, parts of layers) is not looked at.

        Raises:
            PlanError: It is another model, or another loss.
        """
        plan = self.plan
        graph = self._as_compiled(inputs)
        check_same_model(plan, graph)
        if REWRITTEN in plan.options:
            return
        graph = run_passes(parse_pipeline("simplify"), Plan(graph, plan.cluster, plan.target)).graph
        names = sorted(graph.weights.keys() ^ plan.graph.weights.keys())
        got, want = ([_describe(n) for n in g.calls] for g in (graph, plan.graph))
        pairs = zip(got, want, strict=True) if len(got) == len(want) else ()
        other = [f"{a} for {b}" for a, b in pairs if a != b] or sorted({*got} - {*want})
        if names or other:
            raise PlanError(
                "the model, or its loss, is not the one that was compiled",
                got=", ".join([*names, *other][:3]),
                want=f"weights and operations of {plan.graph.source.location}",
                hint="pass the same model and loss as to compile",
            )

    def plan_evaluation(self, inputs: Mapping[str, torch.Tensor], microbatches: int) -> Program:
        """The model in evaluation mode, its loss beside its outputs, forward only."""
        graph = self.trace(inputs, LoadOptions(scored=self.plan.trains))
        made = self._cut(graph, "insert-comm")
        assert self.plan.placement is not None
        return Program.of(made, _forward(made, self.plan.placement.devices, microbatches))

    def _cut(self, graph: Graph, passes: str) -> Plan:
        plan = self.plan
        graph = run_passes(parse_pipeline("simplify"), Plan(graph, plan.cluster, plan.target)).graph
        stage_of, place = _stage_of(graph, plan), plan.placement
        used = sorted(set(stage_of.values()))  # in evaluation a stage may have nothing to compute
        stage_of = {n: used.index(s) for n, s in stage_of.items()}
        stages = cut_stages(graph, stage_of, len(used))
        assert plan.partition is not None
        assert place is not None
        phases = (place.forward, place.backward)
        place = Placement(*(tuple(d[s] for s in used) for d in phases if d))
        seconds = tuple(plan.partition.seconds[s] for s in used)
        partition = Partition(stage_of, seconds, 0.0, proven=False, answers="", method="as before")
        made = Plan(graph, plan.cluster, plan.target, stages=stages, partition=partition)
        return run_passes(parse_pipeline(passes), made.replace(placement=place))


def _stage_of(graph: Graph, plan: Plan) -> dict[str, int]:
    """The stage of every node of a graph of the plan's model."""
    before = plan.home
    if [(n.name, n.target) for n in graph.calls] == [(n.name, n.target) for n in plan.graph.calls]:
        return dict(before)
    holders: dict[str, list[int]] = {}
    for s in plan.stages:
        for i in s.graph.inputs:
            if i.kind.changes:
                holders.setdefault(i.name, []).append(s.index)
    weights = {i.node: i.name for i in graph.inputs if i.name in holders}
    known = _match(graph, plan.graph)
    least = {name: before[known[name]] for name in known}
    try:
        return _homes(graph, least, weights, holders, len(plan.stages))
    except PlanError:  # a node was taken for another one
        return _homes(graph, {}, weights, holders, len(plan.stages))


def _match(graph: Graph, plan: Graph) -> dict[str, str]:
    """Calls of a graph to those of the plan's, alike in op and place in the model, in order.

    With one row, what repeats it for all rows is no node, and names count on from another number.
    """
    new, old = graph.calls, plan.calls
    kinds = [[f"{n.target} {origin(n).name}" for n in calls] for calls in (new, old)]
    blocks = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_matching_blocks()
    return {new[b.a + k].name: old[b.b + k].name for b in blocks for k in range(b.size)}


def _homes(
    graph: Graph,
    least: Mapping[str, int],
    weights: Mapping[str, str],
    holders: Mapping[str, list[int]],
    stages: int,
) -> dict[str, int]:
    """The first stage for every node: not before its operands, nor before ``least``."""
    found: dict[str, int] = {}
    for node in graph.calls:
        read = node.all_input_nodes
        first = max([found[r.name] for r in read if r.name in found], default=0)
        first = max(first, least.get(node.name, 0))
        wanted = [weights[r.name] for r in read if r.name in weights]
        there = (k for k in range(first, stages) if all(k in holders[w] for w in wanted))
        if (home := next(there, None)) is None:
            raise PlanError(
                "the model cannot be cut in evaluation as it is in training",
                where=node.name,
                got=f"weights {', '.join(wanted)} on stages {[holders[w] for w in wanted]}",
                want=f"a stage from {first} on that holds them",
            )
        found[node.name] = home
    return found


def _forward(plan: Plan, devices: int, microbatches: int) -> Schedule:
    """Every stage on its own devices, microbatch after microbatch."""
    from pipec.compiler.complete import complete

    assert plan.placement is not None
    place = Placement(plan.placement.forward)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(devices)]
    for m in range(microbatches):
        for stage, here in enumerate(place.forward):
            rows[here[m % len(here)]].append((stage, int(ActionKind.F), m))
    return complete(build("inference", rows, microbatches, placement=place), plan)


def _describe(node: fx.Node) -> str:
    """A node's op with the arguments that are no nodes: a name says nothing of what is computed.

    What an eager part's call keeps and costs is left out, for it depends on values.
    """
    args = node.args[:3] if node.target is EAGER else node.args
    return f"{node.target}{fx.map_arg((args, node.kwargs), lambda _: None)}"


def _shapes(inputs: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{n}{list(t.shape)}" for n, t in inputs.items())
