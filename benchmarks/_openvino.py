"""OpenVINO's plug-in HETERO over two devices of one thread each, where OpenVINO is installed.

The plug-in of the processor is registered a second time, so that HETERO has two devices on a
machine without a GPU. OpenVINO wants no other numpy, so keep it apart:
``pip install --target .bench/openvino --no-deps openvino``.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from benchmarks._ranks import ROOT

SITE = ROOT / ".bench" / "openvino"
DEVICES = ("CPU", "CPU2")
IN_FLIGHT = 4
_SLACK = 0.05
"""By how much OpenVINO's own split may miss the share of the weights that it wants."""
_SETTINGS = {
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": False,
    "EXCLUSIVE_ASYNC_REQUESTS": False,  # else both devices share one queue
}
Run = Callable[[int], tuple[float, float]]
"""Seconds of as many inferences, and processor seconds of the thread that works most."""


def find_openvino() -> bool:
    """Whether OpenVINO can be imported, also from where the docstring says."""
    if SITE.is_dir() and str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    return importlib.util.find_spec("openvino") is not None


def _library() -> Any:
    return importlib.import_module("openvino")


def two_devices() -> Any:
    """OpenVINO with a second device of the processor's plug-in."""
    library = _library()
    core = library.Core()
    plugin = Path(library.__file__).parent / "libs" / "libopenvino_intel_cpu_plugin.so"
    core.register_plugin(str(plugin), DEVICES[1])
    return core


def place_model(text: str, path: Path, stage: Mapping[str, int] | None = None) -> Any:
    """The model of a file as the exported text places it, or so with other stages of its values."""
    names: dict[str, Any] = {"__name__": "exported"}
    exec(text, names)
    names["DEVICES"][:] = DEVICES
    if stage is not None:
        names["STAGE"] = stage
    return names["placed"](path)


def compile_model(core: Any, model: Any) -> Any:
    """A model on both devices; one without affinities is placed by OpenVINO."""
    settings = {"DEVICE_PROPERTIES": dict.fromkeys(DEVICES, _SETTINGS)}
    policy = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}
    return core.compile_model(model, f"HETERO:{','.join(DEVICES)}", settings | policy)


def by_weights(path: Path) -> dict[str, int]:
    """The rule of OpenVINO where no device holds a model: half of the bytes of the weights each.

    ``get_supported_nodes`` in its ``iplugin.cpp``: the operations in order, until they read 0.95 to
    1.05 of the share; among such places the one that the fewest elements cross; if there is none,
    before the operation that goes beyond.
    """
    graph = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False)).graph
    sizes = {t.name: _nbytes(t) for t in graph.initializer}
    first = dict[str, int]()
    for k, node in enumerate(graph.node):
        for name in node.input:
            first.setdefault(name, k)
    per = np.zeros(len(graph.node))
    for name, nbytes in sizes.items():
        per[first[name]] += nbytes
    share = np.cumsum(per) / (per.sum() / 2)
    places = [k + 1 for k in np.flatnonzero(abs(share - 1) <= _SLACK).tolist()]
    if not places:
        return half(graph.node, int(np.searchsorted(share, 1 - _SLACK)))
    return half(graph.node, min(places, key=lambda place: _crossing(graph, place)))


def by_number(path: Path) -> dict[str, int]:
    """As many operations on each device."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return half(nodes, len(nodes) // 2)


def half(nodes: Sequence[onnx.NodeProto], place: int) -> dict[str, int]:
    """Values to stages: those of the first nodes to the first stage."""
    return {v: int(k >= place) for k, node in enumerate(nodes) for v in node.output if v}


def _nbytes(tensor: onnx.TensorProto) -> int:
    size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=int)) * size


def _crossing(graph: onnx.GraphProto, place: int) -> int:
    shapes = {
        v.name: [d.dim_value or 1 for d in v.type.tensor_type.shape.dim]
        for v in [*graph.value_info, *graph.output]
    }
    made = {v for node in graph.node[:place] for v in node.output}
    read = {v for node in graph.node[place:] for v in node.input}
    return sum(int(np.prod(shapes.get(v, [1]), dtype=int)) for v in made & read)


def hetero(compiled_model: Any, inputs: Sequence[np.ndarray]) -> Run:
    """A pipeline of inferences through both devices."""
    queue = _library().AsyncInferQueue(compiled_model, IN_FLIGHT)
    fed = dict(enumerate(inputs))

    def run(count: int) -> tuple[float, float]:
        begin, before = perf_counter(), _processor()
        for _ in range(count):
            queue.start_async(fed)
        queue.wait_all()
        seconds = perf_counter() - begin
        return seconds, max(s - before.get(t, 0) for t, s in _processor().items())

    return run


def _processor() -> dict[str, float]:
    """Seconds that every thread of this process has had a processor."""
    threads = Path("/proc/self/task").iterdir()
    return {t.name: int((t / "schedstat").read_text().split()[0]) * 1e-9 for t in threads}
