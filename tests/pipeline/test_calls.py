"""A plan's model is called again as it was compiled: its numbers, nested inputs and targets."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx.parser
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


class ClassToken(nn.Module):
    """A learned token beside those of every row, as in ViT: with one row nothing repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.inner(x))
        both = torch.cat([self.token.expand(len(x), -1, -1), inner[:, None]], 1)
        first: Tensor = self.attention(both, both, both, need_weights=False)[0][:, 0]
        return torch.as_tensor(self.head(first))


def test_a_last_microbatch_may_have_one_row() -> None:
    """What is no node there does not move others to an earlier stage."""
    torch.manual_seed(0)
    model, x, labels = ClassToken(), torch.randn(5, 8), torch.randint(3, (5,))
    loss = nn.functional.cross_entropy
    want = float(loss(model(x), labels).detach())
    given = (loss, labels[:4])
    plan = pipec.compile(model, x[:4], "2xcpu", loss=given, schedule="zb-h1", microbatches=4)
    with pipec.Pipeline(plan, model=model, loss=loss, optimizer=sgd) as pipeline:
        assert pipeline.step({"x": x, "target": labels}).loss == pytest.approx(want)


def test_an_argument_that_no_plan_keeps_is_told() -> None:
    model, x = Scaled(), torch.randn(4, 8)
    plan = pipec.compile(model, {"x": x, "scale": Pair(2.0, "x")}, "2xcpu")
    with (
        pipec.Pipeline(plan, model=model) as pipeline,
        pytest.raises(FrontendError, match="a Pair"),
    ):
        pipeline.evaluate([x])


def test_a_file_that_changed_is_another_model(tmp_path: Path) -> None:
    """Also by as many letters within a second, which Python's compiled file does not notice."""
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
        os.utime(file, (1e9, 1e9))
        with (
            pipec.Pipeline(plan, optimizer=sgd) as pipeline,
            pytest.raises(PlanError, match=r"another|not the one") if refused else nullcontext(),
        ):
            pipeline.evaluate([torch.ones(4, 8)])


WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


class Ends(nn.Module):
    """A model that ends in its loss, as `TEXT` does, at ``k`` = 3."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(WEIGHT)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = ((x @ self.w).relu() @ self.w * 3.0 - target).square().mean()
        return loss


TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[n, 8] x, float k ENDS {
    h = MatMul(x, w)
    r = Relu(h)
    z = MatMul(r, w)
    y = Mul(z, k)
    REST
}"""
OWN = TEXT.replace("ENDS", ", float[n, 8] target) => (float loss)").replace(
    "REST", "d = Sub(y, target)\n q = Mul(d, d)\n loss = ReduceMean <keepdims = 0> (q)"
)
OPEN = TEXT.replace("ENDS", ") => (float[n, 8] y, float[n, 8] z)").replace("REST", "")
LOSS = """
import torch
def of():
    return (lambda y, z, target: (y - target).square().mean(), torch.zeros(4, 8))
"""


def _written(text: str, file: Path) -> Path:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT.numpy(), "w"))
    onnx.save(model, file)
    return file


def _exported(file: Path) -> Path:
    sizes = {n: {0: torch.export.Dim("n", min=1)} for n in ("x", "target")}
    example = torch.randn(4, 8), torch.randn(4, 8)
    torch.export.save(torch.export.export(Ends(), example, dynamic_shapes=sizes), file)
    return file


@pytest.mark.parametrize("kind", ["own loss", "own loss, bound", "loss, bound", "program"])
def test_a_file_is_evaluated_and_takes_other_shapes(kind: str, tmp_path: Path) -> None:
    sizes, given = {"x": (4, 8)}, {"bind": {"k": (3.0,)}} if "bound" in kind else {}
    more: dict[str, Any] = {"trust": True}
    if kind == "program":
        file = _exported(tmp_path / "net.pt2")
    elif "own" in kind:
        file = _written(OWN, tmp_path / "net.onnx")
        more = {"shapes": {**sizes, "target": (4, 8)}, **given}
    else:
        file = _written(OPEN, tmp_path / "net.onnx")
        (tmp_path / "losses.py").write_text(LOSS)
        more = {"shapes": sizes, "loss": f"{tmp_path}/losses.py:of", **given}
    plan = pipec.compile(file, devices="2xcpu", training=True, microbatches=3, **more)
    still = lambda p: torch.optim.SGD(list(p), lr=0.0)  # noqa: E731
    with pipec.Pipeline(plan, optimizer=still) as pipeline:
        for rows in (12, 6):
            batch = {"x": torch.randn(rows, 8), "target": torch.randn(rows, 8)}
            want = pytest.approx(Ends()(**batch).item())
            if kind == "own loss":
                batch["k"] = torch.tensor(3.0)
            found = pipeline.evaluate([batch], outputs=True)
            assert found.loss == want
            assert pipeline.step(batch).loss == want
            assert list(found.outputs) == (["y", "z"] if kind == "loss, bound" else [])
            if found.outputs:
                made = (batch["x"] @ WEIGHT).relu() @ WEIGHT
                assert torch.allclose(found.outputs["z"], made, atol=1e-4)
                assert torch.allclose(found.outputs["y"], 3 * made, atol=1e-4)


def test_a_program_is_trusted_as_it_was(tmp_path: Path) -> None:
    file, batch = _exported(tmp_path / "net.pt2"), [torch.ones(4, 8), torch.ones(4, 8)]
    plan = pipec.compile(file, devices="1xcpu", trust=True)
    with pipec.Pipeline(plan) as pipeline:
        pipeline.evaluate([batch])
        file.write_bytes(file.read_bytes() + b" ")
        with pytest.raises(FrontendError, match="only if you trust it"):
            pipeline.evaluate([[t[:2] for t in batch]])


class Sampled(nn.Module):
    """Draws in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found + torch.rand_like(found)


def test_evaluation_draws_by_the_seed_and_not_by_the_steps_before() -> None:
    model, x = Sampled(), torch.randn(8, 3)
    loss = (nn.functional.mse_loss, x[:4])
    plan = pipec.compile(model, x[:4], "1xcpu", loss=loss, schedule="1f1b", microbatches=2)
    batch, found = {"x": x, "target": x}, list[float | None]()
    for seed in (1, 2, 1):
        with pipec.Pipeline(
            plan, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), model=model, loss=loss[0],
            seed=seed,
        ) as pipeline:  # fmt: skip
            if found:
                pipeline.step(batch)
            found.append(pipeline.evaluate([batch]).loss)
    assert found[0] == found[2] != found[1]
