"""The front end for ``.onnx`` files."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, fx, nn
from torch.export import graph_signature as export

from pipec.errors import FrontendError, NoLossError, first_line
from pipec.frontends.base import Frontend, Loaded, LoadOptions, resize_inputs, user_code
from pipec.frontends.factory import call_loss
from pipec.frontends.hygiene import INPUT_KINDS, Naming, Traced, clean_graph
from pipec.frontends.onnx.axes import Growth, open_axes
from pipec.frontends.onnx.evaluation import Evaluation, evaluate_file, evaluate_model
from pipec.frontends.onnx.mini import LARGEST_IR_VERSION
from pipec.frontends.onnx.module import OnnxModule, index_of
from pipec.frontends.onnx.reader import ModelFile
from pipec.frontends.trace import Loss, trace
from pipec.graph.arrays import Array, to_array, to_tensor
from pipec.graph.axes import Axes
from pipec.graph.ir import Graph, InputKind, Origin, OutputKind, Source, op_name, origin, tensor
from pipec.graph.opaque import engine_errors, lacks_kernel
from pipec.graph.quantised import QUANTISED
from pipec.graph.rules import verify


class OnnxFrontend(Frontend):
    """Reads ``MODEL.onnx``: every opset from 7 on, external data, files over 2 GB."""

    name = "onnx"
    pattern = "MODEL.onnx"
    runs_code = False

    def accepts(self, spec: str) -> bool:
        """Whether the spec ends in ``.onnx``."""
        return spec.endswith(".onnx")

    def load(self, spec: str, options: LoadOptions) -> Loaded:
        """Read, evaluate and trace the model.

        Raises:
            FrontendError: The file is broken, a dimension is open, or a node has no translation.
        """
        options = options.decide_training()
        given = options.with_loss and options.loss
        loss = call_loss(options.loss, options.seed) if given else None
        evaluation, loss = _read(Path(spec), options, loss)
        axes, growth = Axes(), Growth((), (evaluation,))
        if options.open and not options.training:
            axes, growth = open_axes(evaluation, options)
        options = replace(options, open=bool(axes))
        if growth.computed:
            evaluation = evaluate_model(evaluation.model.written, options, growth.computed)
        source = _source_of(evaluation.model, options)
        traced = {n: v for n, v in evaluation.inputs.items() if isinstance(v, Tensor)}
        original = Original(evaluation.model.written, evaluation.inputs)
        if loss:
            graph = graph_of(evaluation, source, loss)
            inputs = {**traced, **loss.inputs}
            return Loaded(graph, inputs, _loss_of(original, loss), draws_apart=True)
        graph = graph_of(evaluation, source)
        names = _name_quantised(graph, evaluation)
        inner = Original(evaluation.model.written, evaluation.inputs, names) if names else None
        graph = _with_loss(graph, spec) if options.with_loss else graph

        def resize(shapes: Mapping[str, tuple[int, ...]]) -> Graph:
            changed = replace(options, shapes={**options.shapes, **shapes})
            other = evaluate_model(evaluation.model.written, changed, growth.computed)
            return graph_of(other, _source_of(other.model, changed))

        return Loaded(
            graph, traced, original, inner=inner, axes=axes, resized=resize, draws_apart=True
        )


def _source_of(model: ModelFile, options: LoadOptions) -> Source:
    return Source("onnx", str(model.path or ""), model.digest(), options.record())


class _TupleLoss(nn.Module):
    """A loss of the tuple of a file's outputs; a module, so that the loss may have weights."""

    def __init__(self, fn: Callable[..., object]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, outputs: tuple[Tensor, ...], *args: Tensor, **named: Tensor) -> object:
        """The loss of all outputs, in the file's order, and the target's tensors."""
        return self.fn(*outputs, *args, **named)


def _read(path: Path, options: LoadOptions, loss: Loss | None) -> tuple[Evaluation, Loss | None]:
    """A file, and its loss as a function of the tuple of outputs; shapes are of both's inputs."""
    if loss is None:
        return evaluate_file(path, options), None
    own = {n: s for n, s in options.shapes.items() if n not in loss.inputs}
    sized = loss.with_inputs(resize_inputs(loss.inputs, options))
    of_all = Loss(_TupleLoss(loss.fn), sized.target, alone=not options.scored)
    return evaluate_file(path, replace(options, shapes=own)), of_all


def graph_of(evaluation: Evaluation, source: Source, loss: Loss | None = None) -> Graph:
    """Trace an evaluated model.

    Every node carries the name, op type and index of its ONNX node as origin; weights, inputs and
    outputs have their ONNX names.

    Raises:
        FrontendError: A graph output is no tensor, or tracing fails.
    """
    _check_outputs(evaluation)
    nodes = evaluation.model.proto.graph.node

    def origin(node: fx.Node) -> Origin | None:
        index = index_of(node)
        if index is None:
            return None
        proto = nodes[index]
        return Origin(proto.name or f"{proto.op_type}_{index}", proto.op_type, index)

    inputs = [name for name, v in evaluation.inputs.items() if isinstance(v, Tensor)]
    if loss is None:
        naming = Naming(inputs, list(evaluation.outputs), origin=origin)
        graph = clean_graph(_record(evaluation), naming, source, differentiable=True)
        graph = _beside_readers(graph, {})
        verify(graph, evaluation.model.where)
        return graph
    module = OnnxModule(evaluation)
    names = [*inputs, *loss.inputs]
    ends = None if loss.alone else ["loss", *evaluation.outputs]
    graph = trace(
        module, module.examples, input_names=names, output_names=ends, loss=loss, source=source,
        origin=origin,
    )  # fmt: skip
    return _beside_readers(graph, module.names)


_KINDS = {kind: exported for exported, kind in INPUT_KINDS.items()}


def _record(evaluation: Evaluation) -> Traced:
    """What was recorded of a model: its weights by kind, its inputs, its ops, what it yields."""
    recorder, weights = evaluation.recorder, evaluation.weights
    graph, kinds = recorder.graph, list(_KINDS)
    given = {n: weights.kinds.get(name, InputKind.INPUT) for n, name in recorder.names.items()}
    ordered = sorted(given, key=lambda n: kinds.index(given[n]))
    inputs = [
        export.InputSpec(
            _KINDS[given[n]],
            export.TensorArgument(name=n.name),
            None if given[n] is InputKind.INPUT else recorder.names[n],
            persistent=True,
        )
        for n in ordered
    ]
    yielded = [recorder.node_of(t) for t in evaluation.yielded.values()]
    outputs = [
        export.OutputSpec(export.OutputKind.USER_OUTPUT, export.TensorArgument(name=n.name), None)
        for n in yielded
    ]
    calls = [n for n in graph.nodes if n.op == "call_function"]
    last = graph.output(tuple(yielded))
    signature = export.ExportGraphSignature(inputs, outputs)
    return Traced([*ordered, *calls, last], signature, weights.real())


def _with_loss(graph: Graph, where: str) -> Graph:
    """The graph with its only output, one floating point number, taken for the loss."""
    ends = [tensor(graph.node(o.node)) for o in graph.outputs]
    if len(ends) != 1 or ends[0].numel() != 1 or not ends[0].is_floating_point():
        raise NoLossError(
            "an ONNX file is trained by the loss that it ends in",
            where=where,
            got=", ".join(o.name for o in graph.outputs),
            want="one output, a single floating point number",
            hint="give it one, --loss path/file.py:function, or export the model with its loss",
        )
    (output,) = graph.outputs
    return graph.replace(outputs=(replace(output, kind=OutputKind.LOSS),))


def _check_outputs(evaluation: Evaluation) -> None:
    for name, value in evaluation.outputs.items():
        known = isinstance(value, np.ndarray) and name in evaluation.weights.kinds
        if not isinstance(value, Tensor) and not known:
            raise FrontendError(
                "a graph output is not a tensor",
                where=f"{evaluation.model.where}, output {name}",
                got="strings or packed numbers" if isinstance(value, np.ndarray) else "a sequence",
                want="a tensor of a type that torch has",
            )


def _beside_readers(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph without constants that nothing reads, what weights alone make beside its readers.

    Args:
        graph: As it was traced.
        names: What its weights are called in the file, where that is something else.
    """
    read = {n.name for n in graph.module.graph.nodes if n.users}
    kept = [i for i in graph.inputs if i.kind is not InputKind.CONSTANT or i.node in read]
    dropped = {i.node for i in graph.inputs} - {i.node for i in kept}
    for n in list(graph.module.graph.nodes):
        if n.name in dropped:
            graph.module.graph.erase_node(n)
    _put_beside_readers(graph, {i.node for i in kept if i.kind.is_weight})
    graph.module.recompile()
    inputs = tuple(
        replace(i, name=names.get(i.name, i.name)) if i.kind.is_weight else i for i in kept
    )
    weights = {names.get(name, name): t for name, t in graph.weights.items()}
    held = {i.name for i in inputs}
    return graph.replace(
        inputs=inputs, weights={name: t for name, t in weights.items() if name in held}, tied={}
    )


def _put_beside_readers(graph: Graph, weights: Iterable[str]) -> None:
    """Move what is computed of weights alone to what reads it: a file may list it first of all.

    A cut between the two would send tables of weights over a link.
    """
    fixed = {graph.node(name) for name in weights}
    for n in graph.calls:
        if n.all_input_nodes and fixed.issuperset(n.all_input_nodes):
            fixed.add(n)
    for n in reversed(list(graph.calls)):
        if n in fixed:
            min(n.users).prepend(n)


class Original:
    """The model file itself, run by onnxruntime.

    Args:
        model: The model.
        inputs: Example inputs; arrays among them are bound and always fed.
        names: Names to give values under, to the model's; by default those of its outputs.
    """

    def __init__(
        self, model: ModelFile, inputs: Mapping[str, object], names: Mapping[str, str] | None = None
    ) -> None:
        self._model = model
        self._names = names or {o.name: o.name for o in model.proto.graph.output}
        self._bound = {n: v for n, v in inputs.items() if isinstance(v, np.ndarray)}

    @cached_property
    def _session(self) -> Any:
        return session(self._model, self._names.values())

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values by name for inputs by name.

        Raises:
            FrontendError: onnxruntime refuses the model or the inputs.
        """
        fed: dict[str, Array] = {**self._bound, **{n: to_array(t) for n, t in inputs.items()}}
        names = list(self._names.values())
        found = _guard(self._model, lambda: self._session.run(names, fed))
        return {n: to_tensor(np.asarray(a)) for n, a in zip(self._names, found, strict=True)}


def _loss_of(model: Original, loss: Loss) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """The loss of what the model file computes, as ``loss``, for inputs and targets by name."""

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        targets = {n: inputs[n] for n in loss.inputs}
        found = model({n: t for n, t in inputs.items() if n not in targets})
        with user_code("the loss raised"):
            return {"loss": loss(tuple(found.values()), list(targets.values()))}

    return run


def _name_quantised(graph: Graph, evaluation: Evaluation) -> dict[str, str]:
    """Nodes of quantised ops to the names that the file as written has for what they yield."""
    nodes = evaluation.model.proto.graph.node
    written = {o for n in evaluation.model.written.proto.graph.node for o in n.output}
    found = {}
    for n in graph.calls:
        op, item = (n.all_input_nodes[0], n.args[1]) if op_name(n) == "getitem" else (n, 0)
        index = origin(n).index
        if op.target in QUANTISED and isinstance(item, int) and index is not None:
            name = nodes[index].output[item]
            if name in written and isinstance(n.meta["val"], Tensor):
                found[n.name] = name
    return found


def session(model: ModelFile, outputs: Iterable[str] = (), *, profile: Path | None = None) -> Any:
    """An onnxruntime session on a model, whatever its size; a quantised one runs node by node.

    Args:
        model: The model.
        outputs: Names of inner values that can be asked for too.
        profile: Where to write what each node takes, under the name #INDEX.

    Raises:
        FrontendError: onnxruntime refuses it.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    if any("quantizelinear" in n.op_type.lower() for n in model.proto.graph.node):
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    where: str | bytes = str(model.path)
    own = {o.name for o in model.proto.graph.output}
    more = [onnx.ValueInfoProto(name=n) for n in outputs if n not in own]
    if model.proto.ir_version > LARGEST_IR_VERSION or model.path is None or more or profile:
        copy = deepcopy(model.proto)
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
            for k, node in enumerate(copy.graph.node):
                node.name = f"#{k}"
        copy.graph.output.extend(more)
        copy.ir_version = min(copy.ir_version, LARGEST_IR_VERSION)
        where = copy.SerializeToString()
        if model.path is not None:
            folder = str(model.path.resolve().parent)
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, folder)
    providers = ["CPUExecutionProvider"]
    return _guard(model, lambda: ort.InferenceSession(where, options, providers=providers))


_NO_KERNEL = (
    "on the CPU it does not take every type, such as bfloat16, and there is nothing to compare "
    "with: save the model in float32"
)


def _guard(model: ModelFile, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except engine_errors() as error:
        raise FrontendError(
            "onnxruntime cannot run the original model",
            where=model.where,
            got=first_line(error),
            hint=_NO_KERNEL if lacks_kernel(error) else None,
        ) from error
