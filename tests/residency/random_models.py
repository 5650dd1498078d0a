"""Models that draw random numbers in training, every kind of draw that people use."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.autodiff.chain import Case
from tests.autodiff.zoo import Logits, floats, next_token, tokens

WIDTH = 16


def repeated(block: Callable[[], nn.Module], count: int = 4) -> Callable[[], nn.Module]:
    """A classifier of ``count`` equal blocks."""
    return lambda: nn.Sequential(*[block() for _ in range(count)], nn.Linear(WIDTH, 3))


class Then(nn.Module):
    """A linear layer, its activation, and a random function behind them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.function(F.gelu(self.linear(x)))
        return result


class Between(nn.Module):
    """Dropout in front of an activation whose result a linear layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.second(F.gelu(F.dropout(self.first(x), 0.4)))
        return result


class DepthDropped(nn.Module):
    """Stochastic depth: whole examples skip a block."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.bernoulli(torch.full((x.shape[0], 1), 0.7))
        result: Tensor = x + self.body(x) * kept / 0.7
        return result


class Sampled(nn.Module):
    """A variational layer: mean plus noise times deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mean(x) + torch.randn_like(x) * F.softplus(self.deviation(x)))


class Attended(nn.Module):
    """Attention with dropout inside and behind, mean over positions."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.1, "gelu", batch_first=True)
                for _ in range(layers)
            ]
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(x).mean(1))
        return result


def convolutions() -> nn.Module:
    """Dropout before and behind convolutions, of elements and of whole channels."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout2d(0.3),
        nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Dropout(0.2),
        nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 3),
    )  # fmt: skip


class Recurrent(nn.Module):
    """Two LSTM layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(F.dropout(torch.tanh(self.lstm(x)[0][:, -1]), 0.2))
        return result


def gpt2() -> nn.Module:
    """GPT-2 with its usual three dropouts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=40, n_embd=WIDTH, n_layer=3, n_head=2, n_positions=16, resid_pdrop=0.1,
        embd_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config), use_cache=False)


def bert() -> nn.Module:
    """BERT with dropout of attention and of hidden values."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=40, hidden_size=WIDTH, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    return Logits(BertForMaskedLM(config))


_ROWS = floats(96, WIDTH)
_IMAGES = floats(8, 3, 8, 8)
_SEQUENCES = floats(8, 12, WIDTH)

MODELS: dict[str, Case] = {
    "dropout": Case(repeated(lambda: Then(nn.Dropout(0.3))), F.cross_entropy, _ROWS),
    "dropout of dropout": Case(
        repeated(lambda: Then(lambda x: F.dropout(F.silu(F.dropout(x, 0.3)), 0.2))),
        F.cross_entropy,
        _ROWS,
    ),
    "dropout between": Case(repeated(Between), F.cross_entropy, _ROWS),
    "alpha dropout": Case(repeated(lambda: Then(nn.AlphaDropout(0.2))), F.cross_entropy, _ROWS),
    "rrelu": Case(repeated(lambda: Then(nn.RReLU())), F.cross_entropy, _ROWS),
    "stochastic depth": Case(repeated(DepthDropped), F.cross_entropy, _ROWS),
    "variational": Case(repeated(Sampled), F.cross_entropy, _ROWS),
    "noise": Case(
        repeated(lambda: Then(lambda x: torch.sin(x * (1 + torch.rand_like(x))))),
        F.cross_entropy,
        _ROWS,
    ),
    "gumbel": Case(
        repeated(lambda: Then(lambda x: F.gumbel_softmax(x, tau=2.0))), F.cross_entropy, _ROWS
    ),
    "convolutions": Case(convolutions, F.cross_entropy, _IMAGES),
    "lstm": Case(Recurrent, F.cross_entropy, _SEQUENCES),
    "attention": Case(Attended, F.cross_entropy, _SEQUENCES),
    "gpt-2": Case(gpt2, next_token, tokens(8, 12, 40)),
    "bert": Case(bert, next_token, tokens(8, 12, 40)),
}
"""Name to model, with its loss and microbatches."""
