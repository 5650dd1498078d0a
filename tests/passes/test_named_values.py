"""Saved values that the user names are computed again or leave; the training stays the same."""

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.report.plan_data import memory_data


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(self.mlp(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


LOSS = (nn.functional.mse_loss, torch.zeros(64, 32))
X = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def compiled(schedule: str = "1f1b", **named: str) -> pipec.Plan:
    return pipec.compile(
        net(), X, "2xv100", loss=LOSS, schedule=schedule, microbatches=4,
        recompute=named.get("recompute", ()), offload=named.get("offload", ()),
    )  # fmt: skip


def peaks(plan: pipec.Plan) -> list[int]:
    return [row["needed_bytes"] for row in memory_data(plan)]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "pipedream"])
@pytest.mark.parametrize("how", ["recompute", "offload"])
def test_what_is_named_frees_memory_and_changes_no_bit(schedule: str, how: str) -> None:
    plain, plan = compiled(schedule), compiled(schedule, **{how: "layers.*.mlp"})
    assert peaks(plan)[0] < peaks(plain)[0]
    report = pipec.verify(plan, net(), X, loss=LOSS)
    assert report.ok
    assert max(b.relative_error for b in report.boundaries) == 0
    texts = [s.training.F.module.code for s in plan.stages if s.training is not None]
    assert all(("offload" in text) == (how == "offload") for text in texts)
    assert len(plan.slots) == (2 if how == "offload" else 0)


def test_only_what_is_named() -> None:
    plain, plan = compiled(), compiled(recompute="layers.0", offload="layers.3.mlp")
    first, last = (s.training for s in plan.stages)
    before, after = (s.training for s in plain.stages)
    assert first is not None
    assert last is not None
    assert before is not None
    assert after is not None
    assert first.saved_bytes < before.saved_bytes
    assert {slot.stage for slot in plan.slots} == {1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recompute": "layers.7"}, r"layers.7(.|\n)*such as layers"),
        ({"offload": "layer.0.mlp"}, r"layer.0.mlp(.|\n)*such as layers.0"),
        ({"recompute": "layers.0", "schedule": "auto"}, "auto chooses by itself"),
        ({"offload": "layers.0", "schedule": "pipefb"}, "leaves already"),
    ],
)
def test_what_names_nothing_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(pipec.PipecError, match=words):
        compiled(options.pop("schedule", "1f1b"), **options)


def test_a_backward_that_is_cut_differently_is_told_before_it_is_placed() -> None:
    with pytest.raises(pipec.PipecError, match=r"cut differently(.|\n)*leave out backward_stages"):
        pipec.compile(net(), X, "4xv100", loss=LOSS, schedule="pipefb{backward_stages=1}")
