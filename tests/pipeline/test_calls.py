"""A plan's model is called again as it was compiled: its numbers, nested inputs and targets."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.errors import FrontendError, PlanError


class Pair(NamedTuple):
    by: float
    text: str


def sgd(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.1)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: Any = 1.0, *more: Tensor, parts: Any = None) -> Any:
        for part in (parts or {}).values():
            x = x + part["by"][0] - part["by"][1]
        y = self.second(self.first(x) * (scale[0] if isinstance(scale, tuple) else scale))
        return y.clamp(min=parts["a"]["least"] if parts else 0.0) + sum(more), x


def _squares(found: Any, one: Tensor, two: Tensor) -> Tensor:
    loss: Tensor = (found[0] - one).square().mean() + (found[1] - two).abs().mean()
    return loss


def _named(found: Any, *, one: Tensor, two: Tensor) -> Tensor:
    return _squares(found, one, two)


_CALLS: dict[str, Callable[[Callable[[], Tensor]], Any]] = {
    "number": lambda new: {"x": new(), "scale": 3.0},
    "tuple": lambda new: {"x": new(), "scale": (0.5, "text")},
    "nested": lambda new: {
        "x": new(), "scale": 2, "parts": {"a": {"by": [new(), new()], "least": -math.inf}}
    },
    "positional": lambda new: (new(), 2.0, new(), new()),
}  # fmt: skip


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
@pytest.mark.parametrize("by_name", [False, True])
def test_other_shapes_and_evaluation_keep_numbers_and_nesting(
    call: Callable[[Callable[[], Tensor]], Any], by_name: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Scaled()
    targets = {"one": torch.randn(4, 8), "two": torch.randn(4, 8)}
    loss = (_named, targets) if by_name else (_squares, tuple(targets.values()))
    given = call(lambda: torch.randn(4, 8))
    pipec.compile(model, given, "2xcpu", loss=loss, microbatches=2).save(tmp_path / "out")
    plan = pipec.load(tmp_path / "out")
    names = [i.name for i in plan.graph.inputs if i.name not in plan.graph.weights]
    for rows in (8, 6):  # the compiled shape twice, and another one behind it
        tensors: list[Tensor] = []

        def new(n: int = rows, kept: list[Tensor] = tensors) -> Tensor:
            kept.append(torch.randn(n, 8))
            return kept[-1]

        again = call(new)
        found = model(**again) if isinstance(again, Mapping) else model(*again)
        want = _squares(found, new(), new()).item()
        batch = dict(zip(names, tensors, strict=True))
        with pipec.Pipeline(plan, model=model, loss=loss[0], optimizer=sgd) as pipeline:
            assert pipeline.evaluate([batch]).loss == pytest.approx(want)
            assert pipeline.step(batch).loss == pytest.approx(want)


def test_an_argument_that_no_plan_keeps_is_told() -> None:
    model, x = Scaled(), torch.randn(4, 8)
    plan = pipec.compile(model, {"x": x, "scale": Pair(2.0, "x")}, "2xcpu")
    with (
        pipec.Pipeline(plan, model=model) as pipeline,
        pytest.raises(FrontendError, match="a Pair"),
    ):
        pipeline.evaluate([x])


def test_a_file_that_changed_is_another_model(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), "
        "torch.ones(4, 8), lambda y: y.square().mean()\n"
    )
    file = tmp_path / "net.py"
    file.write_text(text)
    plan = pipec.compile(f"{file}:make", devices="2xcpu", microbatches=2)
    for now, refused in ((text, False), (text.replace("ReLU", "Tanh"), True)):
        file.write_text(now)
        with (
            pipec.Pipeline(plan, optimizer=sgd) as pipeline,
            pytest.raises(PlanError, match=r"another|not the one") if refused else nullcontext(),
        ):
            pipeline.evaluate([torch.ones(4, 8)])
