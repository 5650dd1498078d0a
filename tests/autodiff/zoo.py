"""Small models of every kind that people train, with a loss and microbatches."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.autodiff.chain import Case, Chain, build

Batch = Callable[[int], tuple[tuple[Tensor, ...], object]]


def floats(*shape: int, classes: int = 3) -> Batch:
    """Random inputs and class targets."""

    def batch(k: int) -> tuple[tuple[Tensor, ...], object]:
        g = torch.Generator().manual_seed(k)
        return (torch.randn(*shape, generator=g),), torch.randint(
            0, classes, (shape[0],), generator=g
        )

    return batch


def tokens(rows: int, length: int, vocabulary: int) -> Batch:
    """Random tokens; the targets are the tokens that come next."""

    def batch(k: int) -> tuple[tuple[Tensor, ...], object]:
        g = torch.Generator().manual_seed(k)
        ids = torch.randint(0, vocabulary, (rows, length + 1), generator=g)
        return (ids[:, :-1].contiguous(),), ids[:, 1:].contiguous()

    return batch


def next_token(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


class Logits(nn.Module):
    """A transformers model that gives only its logits."""

    def __init__(self, model: nn.Module, **options: object) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, *args: Tensor) -> Any:
        return self.model(*args, **self.options).logits


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def cnn() -> nn.Module:
    blocks = [Residual(8) for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head)


def mlp() -> nn.Module:
    layers = [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 32), nn.Dropout(0.5),
        nn.Linear(32, 3),
    )  # fmt: skip


class LongSkip(nn.Module):
    """A value of the first stage that the last one reads, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = x = torch.tanh(self.layers[0](x))
        for layer in self.layers[1:-1]:
            x = torch.tanh(layer(x))
        result: Tensor = self.layers[-1](x * first + first)
        return result


class ManyInOut(nn.Module):
    """Two inputs (one of integers), a constant, two results of which both are in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.left = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.right, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        a = self.left(x) * self.scale
        b = self.right(self.table(ids)) + torch.tensor([1.0, -1.0] * 4)
        return self.head(a * b), a - b


def many_batch(k: int) -> tuple[tuple[Tensor, ...], object]:
    g = torch.Generator().manual_seed(k)
    inputs = torch.randn(4, 8, generator=g), torch.randint(0, 10, (4,), generator=g)
    return inputs, (torch.randint(0, 3, (4,), generator=g), torch.randn(4, 8, generator=g))


def many_loss(out: tuple[Tensor, Tensor], label: Tensor, goal: Tensor) -> Tensor:
    return F.cross_entropy(out[0], label) + F.mse_loss(out[1], goal)


class Gnmt(nn.Module):
    """The shape of GNMT: bidirectional first layer, stacked LSTMs with skips, attention."""

    def __init__(self, width: int = 8, vocabulary: int = 20) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.both = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, shifted: Tensor) -> Tensor:
        x = self.both(self.source(ids))[0]
        memory = x + self.encoder(x)[0]
        y = self.first(self.target(shifted))[0]
        context = self.attention(y, memory, memory, need_weights=False)[0]
        result: Tensor = self.head(y + self.second(torch.cat([y, context], -1))[0])
        return result


def pairs(rows: int, length: int, vocabulary: int) -> Batch:
    """Source tokens, shifted target tokens, and target tokens."""

    def batch(k: int) -> tuple[tuple[Tensor, ...], object]:
        g = torch.Generator().manual_seed(k)
        source = torch.randint(0, vocabulary, (rows, length), generator=g)
        goal = torch.randint(0, vocabulary, (rows, length + 1), generator=g)
        return (source, goal[:, :-1].contiguous()), goal[:, 1:].contiguous()

    return batch


_TINY = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return Logits(GPT2LMHeadModel(config), use_cache=False)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        **_TINY, num_hidden_layers=2, intermediate_size=32, max_position_embeddings=16
    )
    return Logits(BertForMaskedLM(config))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=8, patch_size=4, num_labels=3,
    )  # fmt: skip
    return Logits(ViTForImageClassification(config))


class Seq2Seq(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, shifted: Tensor) -> Any:
        return self.model(input_ids=ids, decoder_input_ids=shifted, use_cache=False).logits


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        tie_word_embeddings=True, decoder_start_token_id=0,
    )  # fmt: skip
    return Seq2Seq(T5ForConditionalGeneration(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **_TINY, num_hidden_layers=3, intermediate_size=32, num_key_value_heads=1,
        max_position_embeddings=32,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config), use_cache=False)


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **_TINY, num_hidden_layers=2, intermediate_size=32, num_key_value_heads=1,
        num_local_experts=4, max_position_embeddings=32,
    )  # fmt: skip
    return Logits(MixtralForCausalLM(config), use_cache=False)


def resnet50() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 16, 32, 32], num_labels=3)
    return Logits(ResNetForImageClassification(config))


CASES: dict[str, Case] = {
    "mlp": Case(mlp, F.cross_entropy, floats(4, 16), 3),
    "cnn": Case(cnn, F.cross_entropy, floats(4, 3, 8, 8)),
    "dropout": Case(dropout, F.cross_entropy, floats(4, 16)),
    "long skip": Case(LongSkip, F.cross_entropy, floats(4, 16, classes=16)),
    "many in and out": Case(ManyInOut, many_loss, many_batch),
    "resnet-50": Case(resnet50, F.cross_entropy, floats(2, 3, 32, 32)),
    "gpt-2": Case(gpt2, next_token, tokens(2, 8, 40)),
    "bert": Case(bert, next_token, tokens(2, 8, 40)),
    "vit": Case(vit, F.cross_entropy, floats(2, 3, 8, 8)),
    "t5": Case(t5, next_token, pairs(2, 6, 40)),
    "llama": Case(llama, next_token, tokens(2, 8, 40)),
    "mixtral": Case(mixtral, next_token, tokens(2, 8, 40)),
    "gnmt": Case(Gnmt, next_token, pairs(2, 4, 20)),
}
"""Name to model; microbatch 0 is what it is traced on."""


@cache
def chain_of(name: str) -> tuple[nn.Module, Chain]:
    """A model of `CASES` and its stages; neither is changed by running them."""
    module = seeded(CASES[name])
    return module, build(CASES[name], module)


def seeded(case: Case) -> nn.Module:
    """The model in training mode with fixed weights; normalisations away from their start."""
    torch.manual_seed(0)
    module = case.model().train()
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            noise = torch.Generator().manual_seed(k)
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise))
    return module
