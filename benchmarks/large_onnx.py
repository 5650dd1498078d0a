"""Reading and evaluating an ONNX file of 10,000 nodes and 2.4 GB of weights, against onnx.load.

The external file is a hole, so that no disk is filled; each way runs in a process of its own.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

LAYERS, SIDE = 2000, 544


def write(folder: Path) -> Path:
    """A chain of MatMul, Relu, Shape, Reshape, Tanh with one weight per MatMul."""
    nodes, weights, x, nbytes = [], [], "x", SIDE * SIDE * 4
    for k in range(LAYERS):
        nodes += [
            helper.make_node("MatMul", [x, f"w{k}"], [f"a{k}"]),
            helper.make_node("Relu", [f"a{k}"], [f"b{k}"]),
            helper.make_node("Shape", [f"a{k}"], [f"s{k}"]),
            helper.make_node("Reshape", [f"b{k}", f"s{k}"], [f"c{k}"]),
            helper.make_node("Tanh", [f"c{k}"], [f"d{k}"]),
        ]
        weight = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
        weight.data_location, x = TensorProto.EXTERNAL, f"d{k}"
        for key, value in (("location", "w.bin"), ("offset", k * nbytes), ("length", nbytes)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", SIDE]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with (folder / "w.bin").open("wb") as file:
        file.truncate(LAYERS * nbytes)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def measure(way: str, path: Path) -> None:
    """Seconds, and megabytes of memory beyond the imports."""
    from pipec.frontends.base import LoadOptions
    from pipec.frontends.onnx.evaluation import evaluate_file
    from pipec.frontends.onnx.reader import read

    runs: dict[str, Callable[[], object]] = {
        "onnx.load": lambda: onnx.load(path),
        "read": lambda: read(path),
        "read and evaluate": lambda: evaluate_file(path, LoadOptions(bind={"b": (4,)})),
    }
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    kept = runs[way]()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{way:>18} {seconds:8.2f} s {grown:8.0f} MB")
    del kept


def main() -> None:
    """Each way in turn."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder))
        for way in ("onnx.load", "read", "read and evaluate"):
            command = [sys.executable, "-m", "benchmarks.large_onnx", way, str(path)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
