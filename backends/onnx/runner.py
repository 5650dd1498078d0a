"""An emitted ONNX stage as a function of named tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipec.backends.onnx.files import Names
from pipec.compiler.job import StageFunction
from pipec.errors import BackendError, first_line
from pipec.graph.ir import Graph, tensor
from pipec.graph.opaque import engine_errors, lacks_kernel, ort_session, ort_type, run_session
from pipec.graph.quantised import QUANTISED


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
