"""Files that onnxruntime's quantiser wrote, on several boards: its own results, to one step."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor, nn
from torch.nn import functional as fn

from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.stagejson import read_record
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import PipecError
from pipec.frontends.load import load

SHAPE = (1, 3, 8, 8)


class Residual(nn.Module):
    """Two convolutions with a sum around the second, channels of different ranges, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)
        with torch.no_grad():
            for layer in (self.a, self.b, self.head):
                layer.weight *= torch.rand(len(layer.weight), *[1] * (layer.weight.dim() - 1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        y = torch.relu(self.b(y) + y)
        return self.head(fn.adaptive_avg_pool2d(y, 1).flatten(1))  # type: ignore[no-any-return]


class Frames(CalibrationDataReader):  # type: ignore[misc]
    """Four frames to calibrate with."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.frames: Iterator[np.ndarray] = iter(rng.normal(size=(4, *SHAPE)).astype(np.float32))

    def get_next(self) -> dict[str, np.ndarray] | None:
        frame = next(self.frames, None)
        return None if frame is None else {"x": frame}


def quantised_file(folder: Path, *, per_channel: bool) -> Path:
    torch.manual_seed(0)
    plain, path = folder / "plain.onnx", folder / "qdq.onnx"
    torch.onnx.export(
        Residual().eval(), (torch.randn(SHAPE),), str(plain), dynamo=False, opset_version=13,
        input_names=["x"], output_names=["y"],
    )  # fmt: skip
    quantize_static(
        str(plain), str(path), Frames(), quant_format=QuantFormat.QDQ, per_channel=per_channel,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("boards", "per_channel"), [(2, False), (3, True)])
def test_stages_of_a_quantised_file_are_onnxruntime_to_one_step(
    boards: int, per_channel: bool, tmp_path: Path
) -> None:
    path = quantised_file(tmp_path, per_channel=per_channel)
    loaded = load(str(path))
    cluster = parse_cluster(f"{boards}xvcu118")
    with pytest.raises(PipecError, match="--precision int8"):
        make_plan(loaded.graph, cluster, "fpga")
    plan = make_plan(loaded.graph, cluster, "fpga", options={"precision": "int8"})
    out = tmp_path / "out"
    emit(plan, out)
    folders = sorted(out.glob("stage*"))
    assert [len(read_record(folder)["steps"]) for folder in folders] == [1] * boards
    assert verify_artifacts(out, loaded).ok

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    frame = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    values = {"x": frame}
    for stage in FpgaBackend().load(plan, out).stages:
        values |= stage(values)
    (want,) = session.run(None, {"x": frame.numpy()})
    scales = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    step = float(scales["y_scale"])
    assert np.abs(values["y"].numpy() - np.asarray(want)).max() <= 1.01 * step

    for folder in folders if boards == 2 else ():
        _every_table_counts(folder)


def _every_table_counts(folder: Path) -> None:
    """The test bench is content, and no more when any one table is zero."""
    assert _bench(folder) == 0
    tables = sorted((folder / "src/weights").glob("*.bin"))
    for table in tables:
        kept = table.read_bytes()
        table.write_bytes(bytes(len(kept)))
        assert _bench(folder) == 1, table
        table.write_bytes(kept)


def _bench(folder: Path) -> int:
    """0 where the bench is content, 1 where it finds outputs off, else what make returned."""
    run = subprocess.run(["make", "csim"], cwd=folder, capture_output=True, text=True, check=False)
    return 1 if run.returncode and "FAILED" in run.stdout else run.returncode
