"""Models in 16 bits are held to what their own roundings explain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.compiler.backend import read_back
from pipec.compiler.interpret import measure_noise
from pipec.compiler.job import StageFunction
from pipec.compiler.verify import verify_stages
from pipec.frontends.torch_module import from_module
from pipec.plan.store import load_plan


class Sharp(nn.Module):
    """A softmax of large scores, which any rounding moves by percents."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(64, 64), nn.Linear(64, 64), scale

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.a(x) * self.scale
        return torch.softmax(scores, -1) @ self.b.weight


def deep() -> nn.Module:
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())))


def spoil(stages: Sequence[StageFunction], factor: float) -> list[StageFunction]:
    """The last stage is off by a factor."""

    def off(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: t * factor for name, t in stages[-1](inputs).items()}

    return [*stages[:-1], off]


def test_an_error_of_some_percent_is_seen(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = deep().half(), torch.randn(4, 64).half()
    pipec.compile(model, x, "2xcpu", target="onnx").save(tmp_path / "out")
    plan, read = load_plan(tmp_path / "out"), from_module(model, (x,))
    emitted = read_back(plan, tmp_path / "out")
    assert verify_stages(plan, emitted, read).ok
    off = replace(emitted, stages=spoil(emitted.stages, 1.05))
    assert not verify_stages(plan, off, read).ok
    assert verify_stages(plan, off, read, tolerance=0.2).ok  # what the user allows is allowed


@pytest.mark.parametrize("scale", [1, 60, 400])
def test_steep_models_are_no_false_alarm(scale: float) -> None:
    torch.manual_seed(0)
    model, x = Sharp(scale).half(), torch.randn(4, 64).half()
    plan = pipec.compile(model, x, "2xcpu", target="onnx")
    assert pipec.verify(plan, model, x).ok


def test_noise_is_of_the_order_of_roundings() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 64)
    assert measure_noise(from_module(deep(), (x,)).graph, {"input": x}, set()) == {}
    for dtype in (torch.float16, torch.bfloat16):
        graph = from_module(deep().to(dtype), (x.to(dtype),)).graph
        (noise,) = measure_noise(graph, {graph.inputs[-1].name: x.to(dtype)}, set()).values()
        assert 8 < noise / torch.finfo(dtype).eps < 80


class Looked(nn.Module):
    """Numbers just below the size of a table pick its rows: rounded up, they pick none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table((x.clamp(0, 0.9995) * 8).long())
        return found + x[..., None]


def test_rows_that_roundings_do_not_find_are_no_error() -> None:
    torch.manual_seed(0)
    model, x = Looked().half(), torch.rand(4, 64).half()
    graph = from_module(model, (x,)).graph
    assert measure_noise(graph, {graph.inputs[-1].name: torch.ones_like(x)}, set()) == {}
    assert pipec.verify(pipec.compile(model, x, "2xcpu", target="onnx"), model, x).ok
