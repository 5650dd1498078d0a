"""Stages of a model that was an ONNX file: its own nodes, under their own names."""

from collections.abc import Iterator
from pathlib import Path

from pipec.backends.onnx.files import Names, apart
from pipec.errors import BackendError
from pipec.frontends.onnx.frontend import evaluate_file
from pipec.frontends.onnx.submodel import Assembler, Part
from pipec.frontends.reload import load_options
from pipec.graph.ir import Graph, InputKind, OutputKind, origin
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage


def assembled_stages(plan: Plan) -> Iterator[tuple[Stage, Part, Names]]:
    """Every stage as a model of its own, with its names; the source file is read again.

    Raises:
        FrontendError: The source cannot be read, or a cut goes through one of its nodes.
        BackendError: The file is not the one that was compiled.
    """
    source = plan.graph.source
    evaluation = evaluate_file(Path(source.location), load_options(source))
    if evaluation.model.digest() != source.sha256:
        raise BackendError("the ONNX file changed while it was compiled", got=source.location)
    traced = {k for n in plan.graph.calls if (k := origin(n).index) is not None}
    assembler = Assembler(evaluation, plan.graph.weights, traced)
    nodes = plan.graph.nodes
    called: dict[str, str] = {c.value: assembler.name_of(nodes[c.value]) for c in plan.channels}
    for stage in plan.stages:
        graph = lower(stage.graph).graph
        names, passed_on = _names(graph, called)
        indices = {k for n in graph.calls if (k := origin(n).index) is not None}
        outputs = dict.fromkeys(names.outputs.values())
        part = assembler.part(
            f"stage{stage.index}",
            indices,
            names.inputs.values(),
            [n for n in outputs if n not in passed_on],
            passed_on,
        )
        yield stage, part, names


def _names(graph: Graph, called: dict[str, str]) -> tuple[Names, dict[str, str]]:
    """What a stage's tensors are called, and which outputs are copies of inputs of their name."""
    received = {i.name for i in graph.inputs_of(InputKind.VALUE)}
    inputs = {
        i.name: called[i.name] if i.kind is InputKind.VALUE else i.name
        for i in graph.inputs
        if not i.kind.is_weight
    }
    outputs = {
        o.name: called[o.name] if o.kind is OutputKind.VALUE else o.name
        for o in graph.outputs
        if o.kind is not OutputKind.VALUE or o.name not in received
    }
    free = apart(outputs, inputs.values())
    return Names(inputs, free), {free[n]: old for n, old in outputs.items() if free[n] != old}
