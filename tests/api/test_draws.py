"""Models that draw, cut where drawing is hard: other orders, layouts, and ops in other stages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pipec


class Decoder(nn.Module):
    """The dropout behind attention reads a transposed value, which a transfer makes contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        found: Tensor = self.last(self.layer(x, x, tgt_mask=mask, tgt_is_causal=True))
        return found


class Twice(nn.Module):
    """The second attention does not need the first: it may stand in an earlier stage."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.attention(x, x, x)[0])
        weights: Tensor = self.attention(x, x, x)[1]
        return found + weights.mean()


class DropPath(nn.Module):
    """Residual blocks that whole examples skip, as vision transformers train."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)
        )
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            kept = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.7) / 0.7
            x = x + block(x) * kept
        found: Tensor = self.last(x)
        return found


def squared(y: Tensor) -> Tensor:
    return y.square().mean()


@pytest.mark.parametrize(
    ("make", "schedule"),
    [(Decoder, "1f1b"), (Twice, "pipedream"), (DropPath, "gpipe"), (DropPath, "zb-h1")],
)
def test_stages_draw_what_the_model_draws(make: Callable[[], nn.Module], schedule: str) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.randn(4, 5, 16)
    plan = pipec.compile(module, x, "3xcpu", loss=squared, schedule=schedule, microbatches=6)
    report = pipec.verify(plan, module, x, loss=squared)
    assert [b.name for b in report.boundaries if not b.ok] == []
    gradients = {b.name for b in report.boundaries if b.kind == "gradient"}
    assert gradients == {name for name, _ in module.named_parameters()}
