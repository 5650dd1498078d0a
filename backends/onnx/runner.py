"""An emitted ONNX stage as a function of named tensors."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from pipec.backends.onnx.files import Names
from pipec.compiler.chain import StageRunner
from pipec.errors import BackendError
from pipec.graph.arrays import ONNX_TYPES
from pipec.graph.ir import Graph, tensor
from pipec.graph.opaque import engine_errors
from pipec.graph.quantised import QUANTISED


def onnx_runner(path: Path, names: Names, graph: Graph) -> StageRunner:
    """A function that runs a model file through onnxruntime on the CPU.

    Args:
        path: The model file.
        names: What its inputs and outputs stand for.
        graph: The stage's pure graph, which says what types come out.

    Raises:
        BackendError: onnxruntime refuses the file.
    """
    engine = session(path, fused=not any(n.target in QUANTISED for n in graph.calls))
    nodes, something = graph.nodes, torch.empty(1)
    types = {o.name: tensor(nodes[o.node]) for o in graph.outputs}
    wanted = {i.name for i in graph.inputs if not i.kind.is_weight}
    if names.inputs.keys() != wanted or not names.outputs.keys() <= types.keys():
        raise BackendError(
            "a stage's names are not those of its graph",
            where=path,
            got=", ".join((*names.inputs, *names.outputs)),
            want=", ".join((*wanted, *types)),
        )
    held = [{v.name for v in ends} for ends in (engine.get_inputs(), engine.get_outputs())]
    for ends, told in zip(held, (names.inputs, names.outputs), strict=True):
        if not ends >= {*told.values()}:
            raise BackendError(
                "a stage's names are not those of its file", where=path, got=told, want=ends
            )
    made_as = {names.outputs[name]: types[name] for name in names.outputs}
    _check_types(engine, made_as, path)

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the stage's ONNX model in onnxruntime."""
        fed = {names.inputs[n]: inputs[n].detach().contiguous() for n in names.inputs}
        # Bound to torch's memory: numpy has no bfloat16 and no 8-bit floats.
        binding = engine.io_binding()
        for name, t in fed.items():
            address = t.data_ptr() or something.data_ptr()  # nothing is read there
            binding.bind_input(name, "cpu", 0, ONNX_TYPES[t.dtype], list(t.shape), address)
        for name in made_as:
            binding.bind_output(name, "cpu")
        try:
            engine.run_with_iobinding(binding)
        except engine_errors() as error:
            raise BackendError(
                "onnxruntime fails on a stage", where=path, got=_first_line(error)
            ) from error
        made = zip(made_as.items(), binding.get_outputs(), strict=True)
        results = {name: _copied(value, like.dtype) for (name, like), value in made}
        return {name: results[onnx_name] for name, onnx_name in names.outputs.items()}

    return run


def _check_types(engine: Any, made_as: Mapping[str, Tensor], path: Path) -> None:
    for value in engine.get_outputs():
        want = made_as[value.name].dtype if value.name in made_as else None
        name = want and TensorProto.DataType.Name(ONNX_TYPES[want]).lower()
        if want is not None and value.type != f"tensor({name})":
            raise BackendError(
                "a stage yields another type than the plan says",
                where=f"{path}, {value.name}",
                got=value.type,
                want=want,
            )


def _copied(value: Any, dtype: torch.dtype) -> Tensor:
    """What onnxruntime yielded, in memory of its own."""
    found = torch.empty(value.shape(), dtype=dtype)
    if found.nbytes:
        ctypes.memmove(found.data_ptr(), value.data_ptr(), found.nbytes)
    return found


def session(path: Path, *, fused: bool = True) -> Any:
    """An onnxruntime session on an emitted stage.

    Args:
        path: The model file.
        fused: Whether onnxruntime may rewrite it: that moves the roundings of quantised models.

    Raises:
        BackendError: onnxruntime refuses the file.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except engine_errors() as error:
        raise BackendError(
            "onnxruntime refuses an emitted stage", where=path, got=_first_line(error)
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0][:300]
