"""Stages of a torch model: `torch.onnx.export` of the pure stage graph, once per distinct graph."""

from dataclasses import replace

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from pipec.backends.onnx.files import Names, assign_names
from pipec.backends.torch.exported import OpenStage, export_stage
from pipec.errors import BackendError, first_line
from pipec.frontends.base import quiet
from pipec.graph.ir import Graph, GraphOutput, InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.graph.torch_private import export_onnx
from pipec.graph.written import with_outputs
from pipec.plan.model import Stage

OPSET = 20
"""Operator set of exported stages: the newest that the exporter writes without conversion."""

_WEIGHT = "weight"
"""Of what weights are called while a stage is exported, the part before the number."""

_Template = tuple[ir.Model, dict[int, ir.Value]]
"""An exported graph whose inputs, outputs and weights get their names last: the model without its
weights, and by the position among the graph's inputs what stands for the weight."""


class StageExporter:
    """Exports stages; equal ones (by structural key) share the work and differ in names only."""

    def __init__(self) -> None:
        self._templates: dict[str, _Template] = {}

    def __call__(self, stage: Stage) -> tuple[onnx.ModelProto, dict[str, Tensor], Names]:
        """One stage as an ONNX model.

        Returns:
            The model without weights, the weights under their original names, and the names of
            inputs and outputs, which are those of the graph.

        Raises:
            BackendError: The exporter has no translation for an operation.
        """
        graph = lower(stage.graph).graph
        own, outputs = _outputs(graph)
        key = stage.key
        if key not in self._templates:
            self._templates[key] = _template(with_outputs(graph, outputs))
        model, held = self._templates[key]
        weights = {graph.inputs[k].name: value for k, value in held.items()}
        inputs = [i.name for i in graph.inputs if not i.kind.is_weight]
        first = {o.node: o.name for o in outputs}
        free = assign_names({o.name: first[o.node] for o in own}, [*inputs, *weights])
        _rename(model, inputs, [free[o.name] for o in outputs], weights)
        proto = ir.to_proto(model)
        _strip(proto)
        return (
            proto,
            {name: graph.weights[name] for name in weights},
            Names({n: n for n in inputs}, free),
        )


def _outputs(graph: Graph) -> tuple[list[GraphOutput], list[GraphOutput]]:
    """The outputs that the stage itself computes, and one of them per node."""
    received = {i.node for i in graph.inputs_of(InputKind.VALUE)}
    own = [o for o in graph.outputs if o.kind is not OutputKind.VALUE or o.node not in received]
    first = {o.node: o for o in reversed(own)}
    return own, [o for o in own if first[o.node] is o]


def _template(graph: Graph) -> _Template:
    from onnxscript import optimizer

    # The exporter writes Python with weights' names in it, as they are: these are not theirs.
    inputs = tuple(
        replace(i, name=f"{_WEIGHT}{k}") if i.kind.is_weight else i
        for k, i in enumerate(graph.inputs)
    )
    weights = {
        new.name: graph.weights[old.name]
        for new, old in zip(inputs, graph.inputs, strict=True)
        if old.kind.is_weight
    }
    with quiet(), torch.no_grad():  # where gradients are recorded, some reshapes become views
        model = _convert(graph.replace(inputs=inputs, weights=weights))
        found = {
            k: model.graph.initializers.pop(i.name)
            for k, i in enumerate(inputs)
            if i.name in model.graph.initializers
        }
        for value in found.values():
            value.const_value = None  # or it would be folded, and stages no longer be equal
        optimizer.optimize_ir(model)
    return model, found


def _convert(graph: Graph) -> ir.Model:
    try:
        traced = export_stage(OpenStage(graph))
        model: ir.Model = export_onnx(traced, OPSET)
    except torch.onnx.errors.OnnxExporterError as error:
        raise BackendError(
            "a stage cannot be written as ONNX",
            where=type(graph.module).__name__,
            got=_reason(error),
            hint="--target torch takes every operation",
        ) from error
    return model


def _reason(error: BaseException) -> str:
    """The innermost cause, which names the operation."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _rename(
    model: ir.Model, inputs: list[str], outputs: list[str], weights: dict[str, ir.Value]
) -> None:
    """Give a model the names of one stage; inner values make way."""
    graph = model.graph
    fixed = [
        *zip(graph.inputs, inputs, strict=True),
        *zip(graph.outputs, outputs, strict=True),
        *((value, name) for name, value in weights.items()),
    ]
    fixed_ids = {id(value) for value, _ in fixed}
    inner = [v for n in graph.all_nodes() for v in n.outputs if id(v) not in fixed_ids]
    inner += [v for v in graph.initializers.values() if id(v) not in fixed_ids]
    taken = {name for _, name in fixed}
    for k, value in enumerate(inner):
        if value.name in taken:
            value.name = f"{value.name}/{k}"
    for value, name in fixed:
        value.name = name


def _strip(proto: onnx.ModelProto) -> None:
    """Drop what the exporter notes on nodes and values: stack traces with paths of this machine."""
    proto.producer_name, proto.producer_version, proto.doc_string = "pipec", "", ""
    proto.graph.doc_string = ""
    del proto.metadata_props[:]
    del proto.graph.metadata_props[:]
    del proto.graph.value_info[:]
    graph = proto.graph
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    for function in proto.functions:
        del function.metadata_props[:]
        function.doc_string = ""
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
