"""Files of onnxruntime's quantiser on a board: its own scales, within one step of onnxruntime."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from benchmarks._zoo_exports import quantised, write
from pipec.backends.fpga.backend import FpgaBackend
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.graph.opaque import ort_session


class Both(nn.Module):
    """Maps, then tokens of 5 per head: channels that no power of two divides."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 10, 3, padding=1)
        self.qkv = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))
        self.head = nn.Linear(10, 7)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                nn.init.normal_(m.weight, std=1.5 / m.weight[0].numel() ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[1, 3, 8, 8] to [1, 7]."""
        x = self.a(x)
        x = nn.functional.max_pool2d(x + torch.sigmoid(self.b(x)), 2)
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = (m(tokens).reshape(1, 16, 2, 5).transpose(1, 2) for m in self.qkv)
        mixed = torch.softmax(q @ k.transpose(2, 3) / 2.0, -1) @ v
        tokens = tokens + mixed.transpose(1, 2).reshape(1, 16, 10)
        found: Tensor = self.head(tokens.mean(1))
        return found


def test_convolutions_and_attention(tmp_path: Path) -> None:
    torch.manual_seed(0)
    frames = [{"x": torch.randn(1, 3, 8, 8).numpy()} for _ in range(6)]
    example = (torch.from_numpy(frames[0]["x"]),)
    export = partial(write, Both(), example, dynamo=False, opset_version=17, input_names=["x"])
    path = tmp_path / "net.onnx"
    quantised(export, path, "QOperator", frames, per_channel=True)
    backend = FpgaBackend()
    loaded = load(str(path), LoadOptions(**backend.reads))
    plan = make_plan(loaded.graph, parse_cluster("1xzcu102"), "fpga", options={"precision": "int8"})
    emit(plan, tmp_path / "out")
    (runner,) = backend.load(plan, tmp_path / "out").stages
    session = ort_session(str(path), fused=False)
    (name,) = (o.name for o in loaded.graph.outputs)
    proto = onnx.load(path)
    (scale,) = (n.input[1] for n in proto.graph.node if n.output[0] == name)
    (step,) = (numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == scale)
    off, seen = [], set[float]()
    for seed in range(8):
        x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        (want,) = session.run(None, {"x": x.numpy()})
        seen |= set(want.reshape(-1).tolist())
        off.append(np.abs(runner({"x": x})[name].numpy() - want) / step)
    assert len(seen) > 40
    assert np.max(off) < 1.01
    assert (np.concatenate(off) > 0.5).mean() < 0.02
