"""The nine CNN graphs of the onnx wheel compiled for four VCU118, each besides start-up.

Start-up is the same command on a model of one node: the interpreter, the imports, and what torch
sets up when it traces for the first time. Each command is a process of its own.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
from onnx import TensorProto, helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
WANT = 10.0


def one_node(path: Path) -> Path:
    """A model of one batch normalisation."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 8, 8]) for n in "xy"]
    vectors = [helper.make_tensor(n, TensorProto.FLOAT, [8], [1.0] * 8) for n in "smbv"]
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], vectors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def seconds(model: Path, devices: str, out: Path) -> tuple[float, float]:
    """Wall and processor seconds of one command."""
    before, start = os.times(), time.perf_counter()
    command = ["compile", str(model), "--target", "fpga", "--devices", devices, "-o", str(out)]
    subprocess.run(
        [sys.executable, "-m", "pipec", *command, "--force"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    used = after.children_user - before.children_user
    return (
        time.perf_counter() - start,
        used + after.children_system - before.children_system,
    )


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        one = one_node(Path(folder) / "one.onnx")
        start = sorted(seconds(one, "vcu118", out) for _ in range(3))[1]
        print(f"start-up {start[0]:.1f} s (processor {start[1]:.1f} s)")
        for model in sorted(LIGHT.glob("*.onnx")):
            wall, used = seconds(model, "4xvcu118", out)
            ratio = (wall - start[0]) / WANT
            print(
                f"{model.stem:20} {wall - start[0]:5.1f} s besides start-up "
                f"(processor {used - start[1]:5.1f} s); of the {WANT:.0f} s wanted {ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
