"""``--target onnx``: one model file per stage for onnxruntime or any other ONNX engine."""

import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pipec.backends.onnx.assembled import Assembly, Written
from pipec.backends.onnx.exported import StageExporter
from pipec.backends.onnx.files import Names, check_file, check_shapes, write_model
from pipec.compiler.backend import Backend, Emitted
from pipec.compiler.comparison import OTHER_KERNELS, REWRITTEN, rounding_tolerance
from pipec.compiler.job import StageFunction
from pipec.compiler.stage_timing import sum_stage_times
from pipec.errors import BackendError, PipecError, first_line, list_lines
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.frontends.onnx.frontend import session
from pipec.graph.arrays import ONNX_TYPES, to_array
from pipec.graph.axes import Axes, reason
from pipec.graph.eager import EAGER
from pipec.graph.ir import Graph, InputKind, origin, tensor, tensors
from pipec.graph.lower import lower
from pipec.graph.opaque import engine_errors, lacks_kernel, ort_session, ort_type, run_session
from pipec.graph.quantised import QUANTISED
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import OpOverload, namespace_of
from pipec.plan.model import Plan, Stage, StageTiming
from pipec.plan.weights import all_have_data, stage_folder


class OnnxBackend(Backend):
    """Stages as ONNX models.

    ```text
    stage0/stage0.onnx   the model; stage0.onnx.data beside it where weights are large
    stage0/names.json    which of its inputs and outputs is which value of the plan
    ```

    A model that was an ONNX file gives back its own nodes under their own names; a torch model
    goes through `torch.onnx.export`, stage by stage.
    """

    name: ClassVar[str] = "onnx"
    runs_emitted_code: ClassVar[bool] = False
    draws = ".onnx"

    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted.

        Raises:
            BackendError: The model trains, has no weight data, or holds ops of other packages or
                values of types that onnxruntime does not take where a stage begins or ends.
        """
        if plan.trains:
            raise BackendError(
                "ONNX stages are for inference",
                got="a model with a loss",
                hint="--inference for its forward pass alone, or --target torch",
            )
        if not all_have_data(plan.graph.weights):
            raise BackendError(
                "an ONNX file holds its weights, and the model was built without",
                hint="build it with data; a directory that was written before is verified as it is",
            )
        found = list(_foreign(plan)) if plan.graph.source.kind != "onnx" else []
        nodes, graph = plan.graph.nodes, plan.graph
        ends = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
        ends |= {o.node: o.name for o in graph.outputs}
        found += [
            f"{name}: {str(t.dtype).removeprefix('torch.')}, which onnxruntime does not take"
            for node, name in ({c.value: c.value for c in plan.channels} | ends).items()
            for t in tensors(nodes[node])
            if t.dtype not in ONNX_TYPES or t.dtype.is_complex
        ]
        if found:
            what = f"{len(found)} node(s) cannot be written as ONNX"
            raise BackendError(what, got=list_lines(found))

    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its device: node by node, by the plan's costs."""
        return sum_stage_times(plan)

    def node_seconds(
        self, graph: Graph, inputs: Mapping[str, Tensor], runs: int
    ) -> dict[str, float]:
        """Seconds of the calls of a quantised file: onnxruntime has kernels of its own for them."""
        quantised = any(n.target in QUANTISED for n in graph.calls)
        return profile(graph, inputs, runs) if quantised and graph.source.kind == "onnx" else {}

    def emit(self, plan: Plan, directory: Path) -> None:
        """Write one model per stage, each of which passes the checker and loads.

        Raises:
            BackendError: The ONNX checker, strict shape inference or onnxruntime refuses a stage,
                or a pass has rewritten what was an ONNX file, whose own nodes are emitted.
        """
        if plan.graph.source.kind == "onnx" and REWRITTEN in plan.options:
            raise BackendError(
                "rewritten ONNX nodes cannot be emitted as ONNX",
                where=f"pass {plan.options[REWRITTEN]}",
            )
        if plan.graph.source.kind != "onnx":
            export = StageExporter()
            _write(directory, ((stage, *export(stage)) for stage in plan.stages))
            return
        assembly = Assembly(plan)
        try:
            self._write_source(plan, directory, assembly)
        except PipecError as error:
            if not assembly.axes.open:
                raise
            for stage in plan.stages:
                shutil.rmtree(directory / stage_folder(stage.index), ignore_errors=True)
            assembly.fix(reason(error))
            self._write_source(plan, directory, assembly)

    def _write_source(self, plan: Plan, directory: Path, assembly: Assembly) -> None:
        """Write the file's own nodes; with open axes, run them at other sizes too."""
        _write(directory, assembly.stages())
        if assembly.axes.open:
            emitted = self.load(plan, directory)
            assembly.check(emitted.stages, emitted.tolerance)
        assembly.axes.write(directory)

    def load(self, plan: Plan, directory: Path) -> Emitted:
        """The emitted models as functions, run by onnxruntime.

        Raises:
            BackendError: A file is damaged, or onnxruntime refuses it.
        """
        runners = [
            onnx_runner(
                _file(directory, s.index),
                Names.read(directory / stage_folder(s.index) / "names.json"),
                lower(s.graph).graph,
            )
            for s in plan.stages
        ]
        # Other kernels than the reference's: sums in another order, fused operations.
        tolerance = rounding_tolerance(plan.graph, OTHER_KERNELS)
        return Emitted(runners, tolerance, axes=Axes.read(directory, plan.graph))

    def draw(self, stage: Stage, path: Path) -> None:
        """Write a stage's graph as an ONNX model, for Netron."""
        proto, weights, _ = StageExporter()(stage)
        write_model(proto, weights, path)


def _file(directory: Path, stage: int) -> Path:
    return directory / stage_folder(stage) / f"{stage_folder(stage)}.onnx"


_OTHERWISE = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")
"""Batch norms by the statistics of the batch: the exporter writes them with those of training."""


def _foreign(plan: Plan) -> Iterator[str]:
    for n in plan.graph.calls:
        if any(part in str(n.target) for part in _OTHERWISE):
            yield f"{n.name}: {origin(n)} in training mode; call model.eval() before it is exported"
        foreign = isinstance(n.target, OpOverload) and namespace_of(n.target) not in OWN_NAMESPACES
        if foreign or n.target is EAGER:
            yield f"{n.name}: {n.target} from {origin(n)}"


def _write(directory: Path, stages: Iterable[Written]) -> None:
    for stage, proto, weights, names in stages:
        folder = directory / stage_folder(stage.index)
        folder.mkdir()
        proto.graph.name = folder.name
        names.write(folder / "names.json")
        path = _file(directory, stage.index)
        check_shapes(proto, weights)
        write_model(proto, weights, path)
        check_file(path)
        onnx_runner(path, names, lower(stage.graph).graph)  # its types must be the graph's


def onnx_runner(path: Path, names: Names, graph: Graph) -> StageFunction:
    """A function that runs a model file through onnxruntime on the CPU.

    Raises:
        BackendError: onnxruntime refuses the file.
    """
    fused = not any(n.target in QUANTISED for n in graph.calls)
    try:
        engine = ort_session(str(path), threads=torch.get_num_threads(), fused=fused)
    except engine_errors() as error:
        raise BackendError(
            "onnxruntime refuses an emitted stage",
            where="/".join(path.parts[-2:]),
            got=first_line(error),
            hint=_NO_KERNEL if lacks_kernel(error) else None,
        ) from error
    nodes = graph.nodes
    types = {o.name: tensor(nodes[o.node]).dtype for o in graph.outputs}
    wanted = {i.name for i in graph.inputs if not i.kind.is_weight}
    if names.inputs.keys() != wanted or not names.outputs.keys() <= types.keys():
        raise BackendError(
            "a stage's names are not those of its graph",
            where=path,
            got=", ".join((*names.inputs, *names.outputs)),
            want=", ".join((*wanted, *types)),
        )
    ports = [{v.name for v in ends} for ends in (engine.get_inputs(), engine.get_outputs())]
    for ends, own in zip(ports, (names.inputs, names.outputs), strict=True):
        if not ends >= {*own.values()}:
            raise BackendError(
                "a stage's names are not those of its file", where=path, got=own, want=ends
            )
    made_as = {names.outputs[name]: types[name] for name in names.outputs}
    _check_types(engine, made_as, path)

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        fed = {names.inputs[n]: inputs[n] for n in names.inputs}
        try:
            results = run_session(engine, fed, made_as)
        except engine_errors() as error:
            raise BackendError(
                "onnxruntime fails on a stage", where=path, got=first_line(error)
            ) from error
        return {name: results[onnx_name] for name, onnx_name in names.outputs.items()}

    return run


def _check_types(engine: Any, made_as: Mapping[str, torch.dtype], path: Path) -> None:
    for value in engine.get_outputs():
        want = made_as.get(value.name)
        if want is not None and value.type != ort_type(want):
            raise BackendError(
                "a stage yields another type than the plan says",
                where=f"{path}, {value.name}",
                got=value.type,
                want=want,
            )


_NO_KERNEL = (
    "on the CPU it does not take every type, such as bfloat16: --target torch, or save the model "
    "in float32"
)


_KERNEL = re.compile(r"#(\d+)_kernel_time")


def profile(graph: Graph, inputs: Mapping[str, Tensor], runs: int) -> dict[str, float]:
    """Seconds of every call of a graph that was an ONNX file.

    Of each ONNX node the fastest run counts, as onnxruntime's clock goes on while others have the
    processor. The first of the calls that stand for a node has them all.

    Raises:
        FrontendError: The file cannot be read, or onnxruntime refuses it.
    """
    evaluation = evaluate_file(Path(graph.source.location), LoadOptions.of(graph.source))
    fed = {
        n: v if isinstance(v, np.ndarray) else to_array(inputs[n])
        for n, v in evaluation.inputs.items()
    }
    names = [o.name for o in evaluation.model.proto.graph.output]
    with tempfile.TemporaryDirectory() as folder:
        engine = session(evaluation.model, profile=Path(folder) / "profile")
        for _ in range(runs):
            engine.run(names, fed)
        events = json.loads(Path(engine.end_profiling()).read_text(encoding="utf-8"))
    took = dict[int | None, float]()
    for event in events:
        if found := _KERNEL.fullmatch(event["name"]):
            k = int(found[1])
            took[k] = min(took.get(k, math.inf), event["dur"] * 1e-6)
    return {n.name: took.pop(origin(n).index, 0.0) for n in graph.calls}
