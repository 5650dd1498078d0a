"""Training under autocast as an option: as a plain loop under `torch.autocast` does, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.errors import PipecError
from pipec.graph.ir import origin

ROUNDS, MICROBATCHES, ROWS = 3, 4, 4
TOKENS, TARGETS = torch.randint(50, (ROWS, 6)), torch.randint(50, (ROWS, 6))


class Small(nn.Module):
    """Ops of all lists of autocast: cast down, cast up, left alone, promoted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.conv, self.out = nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 50)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block(self.norm(self.embed(x)))
        h = h + self.conv(h.transpose(1, 2)).transpose(1, 2)
        found: Tensor = self.out(torch.softmax(h, -1) + h)
        return found


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)  # type: ignore[arg-type]


def rounds() -> list[tuple[Tensor, Tensor]]:
    g, shape = torch.Generator().manual_seed(1), (ROWS * MICROBATCHES, 6)
    return [
        (torch.randint(50, shape, generator=g), torch.randint(50, shape, generator=g))
        for _ in range(ROUNDS)
    ]


def seeded() -> nn.Module:
    torch.manual_seed(0)
    return Small()


def eager(dtype: torch.dtype, scale: float | None) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses of a plain loop."""
    model, losses = seeded(), []
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    for x, target in rounds():
        optimizer.zero_grad()
        total = 0.0
        for part, wanted in zip(x.split(ROWS), target.split(ROWS), strict=True):
            with torch.autocast("cpu", dtype=dtype):
                found = loss(model(part), wanted)
            scaler.scale(found / MICROBATCHES).backward()
            total += float(found.detach()) / MICROBATCHES
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
    return {n: w.detach() for n, w in model.state_dict().items()}, losses


@pytest.mark.parametrize(
    ("name", "scale", "devices", "schedule"),
    [
        ("bfloat16", None, "2xcpu", "1f1b"),
        ("bfloat16", None, "2xcpu", "interleaved{chunks=2}"),
        ("bfloat16", None, "2xcpu", "zb-h1"),
        ("float16", 2.0**10, "3xcpu", "1f1b"),
    ],
)
def test_autocast_is_that_of_a_plain_loop(
    name: str, scale: float | None, devices: str, schedule: str
) -> None:
    model = seeded()
    plan = pipec.compile(
        model, TOKENS, devices, loss=(loss, TARGETS), schedule=schedule,
        microbatches=MICROBATCHES, autocast=name,
    )  # fmt: skip
    weights, losses = eager(getattr(torch, name), scale)
    with pipec.Pipeline(plan, optimizer=sgd, loss_scale=scale, model=model, loss=loss) as pipeline:
        assert [pipeline.step(batch).loss for batch in rounds()] == pytest.approx(losses, rel=1e-6)
        found = pipeline.state_dict()
        last = rounds()[-1]
        scores = pipeline.evaluate([last], outputs=True).outputs["output"]
    assert found is not None
    assert all(torch.allclose(found[n], w, rtol=1e-6, atol=1e-7) for n, w in weights.items())
    assert scores.dtype == getattr(torch, name)
    other, _ = eager(torch.float16 if name == "bfloat16" else torch.bfloat16, scale)
    assert not all(torch.allclose(found[n], w, rtol=1e-6, atol=1e-7) for n, w in other.items())


def compiled(
    model: nn.Module | None = None, schedule: str = "1f1b", autocast: str = ""
) -> pipec.Plan:
    return pipec.compile(
        model or seeded(), TOKENS, "2xcpu", loss=(loss, TARGETS), schedule=schedule,
        microbatches=MICROBATCHES, autocast=autocast,
    )  # fmt: skip


def step(plan: pipec.Plan, scale: float | None = None) -> None:
    with pipec.Pipeline(plan, optimizer=sgd, loss_scale=scale) as pipeline:
        pipeline.step(rounds()[0])


def compile_inside() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled()


def step_inside() -> None:
    plan = compiled()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(plan)


class Decorated(Small):
    """Autocast of another device, made when the class was."""

    forward = torch.autocast("xpu", dtype=torch.bfloat16)(Small.forward)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "compiled inside": (compile_inside, r"on around pipec(.|\n)*autocast='bfloat16'"),
    "stepped inside": (step_inside, r"on around pipec(.|\n)*autocast='bfloat16'"),
    "decorated for another device": (lambda: compiled(Decorated()), "would be lost"),
    "float16 without a scale": (
        lambda: step(compiled(autocast="float16")),
        r"vanish in float16(.|\n)*loss_scale=65536",
    ),
    "float16 without a flush": (
        lambda: step(compiled(autocast="float16", schedule="pipedream"), 8.0),
        "schedule pipedream",
    ),
    "no dtype of autocast": (lambda: compiled(autocast="int8"), "bfloat16 or float16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_is_refused(name: str) -> None:
    do, said = REFUSED[name]
    with pytest.raises(PipecError, match=said):
        do()


def test_a_decorator_of_the_device_at_hand_casts() -> None:
    class Mixed(Small):
        forward = torch.autocast("cpu", dtype=torch.bfloat16)(Small.forward)

    types = {n.meta["val"].dtype for n in compiled(Mixed()).graph.calls if n.name == "linear"}
    assert types == {torch.bfloat16}


class Composites(nn.Module):
    """One composite op that autocast knows only the parts of."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.weight: Tensor = nn.Parameter(torch.randn(8, 8) / 3)
        self.cell, self.lstm = nn.GRUCell(8, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = COMPOSITES[self.name](self, torch.tanh(x * self.weight[3]))
        return found


def contracted(model: Composites, x: Tensor) -> Tensor:
    return torch.einsum("bti,io->bto", x, model.weight).float()  # an op on the dtype


def looped(model: Composites, x: Tensor) -> Tensor:
    found: Tensor = model.lstm(x)[0]
    return found.float()


def kept(model: Composites, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.einsum("bti,io->bto", x, model.weight)


COMPOSITES: dict[str, Callable[[Composites, Tensor], Tensor]] = {
    "einsum": contracted,
    "tensordot": lambda m, x: torch.tensordot(x, m.weight, 1),
    "matrix power": lambda m, x: x @ torch.linalg.matrix_power(m.weight, 3),
    "cell": lambda m, x: m.cell(x[:, 0], x[:, 1]),
    "lstm": looped,
    "einsum without autocast": kept,
}


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("name", COMPOSITES)
def test_composite_ops_compute_in_what_autocast_casts_their_parts_to(name: str) -> None:
    torch.manual_seed(0)
    model, x = Composites(name), torch.randn(4, 3, 8)

    def mean(y: Tensor) -> Tensor:
        return y.square().mean()

    with (
        torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        want = mean(model(x))
    want.backward()
    plan = pipec.compile(
        model, x, "1xcpu", loss=mean, schedule="1f1b", microbatches=1, autocast="bfloat16"
    )
    before = {n: w.clone() for n, w in model.state_dict().items()}
    with pipec.Pipeline(plan, optimizer=lambda p: torch.optim.SGD(p, lr=1.0)) as pipeline:
        assert pipeline.step({"x": x}).loss == float(want.detach())
        found = pipeline.state_dict()
    assert found is not None
    for n, w in model.named_parameters():
        if w.grad is not None:
            torch.testing.assert_close(before[n] - found[n], w.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inside", [False, True])
def test_modules_under_autocast_keep_their_names(inside: bool) -> None:
    """So that what they save can be computed again by name, and a cut be shown in layers."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.GELU()) for _ in range(3)]
    model, cast = nn.Sequential(*layers), "" if inside else "bfloat16"
    if inside:
        model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)  # type: ignore[method-assign]
    plan = pipec.compile(
        model, torch.randn(4, 8), "2xcpu", loss=lambda y: y.float().square().mean(),
        schedule="1f1b", autocast=cast, recompute="1",
    )  # fmt: skip
    places = {n.name: origin(n) for n in plan.graph.calls}
    assert [places[f"gelu{k}"].name for k in ("", "_1", "_2")] == ["0.2", "1.2", "2.2"]
    assert {places[n.name].name for n in plan.graph.calls if n.name.startswith("linear")} == {
        f"{k}.{part}" for k in range(3) for part in range(2)
    }
