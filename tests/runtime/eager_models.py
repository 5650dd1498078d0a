"""Models that no graph can hold, each a chain with a part that autograd alone can train."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 8, 4


class Sign(torch.autograd.Function):
    """A step whose gradient is that of a slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


class Reversed(torch.autograd.Function):
    """The identity that turns gradients round, as domain-adversarial training does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Any:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


class Part(nn.Module):
    """A linear layer in a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)


class Signs(Part):
    def forward(self, x: Tensor) -> Any:
        return x + 0.3 * Sign.apply(self.inner(x))  # type: ignore[no-untyped-call]


class Adversary(Part):
    def forward(self, x: Tensor) -> Any:
        return Reversed.apply(torch.tanh(self.inner(x)), 0.5)  # type: ignore[no-untyped-call]


class Checkpointed(Part):
    def forward(self, x: Tensor) -> Any:
        return x + checkpoint(lambda y: torch.tanh(self.inner(y)), x, use_reentrant=True)


class CheckpointedTwice(Part):
    """One checkpoint in another."""

    def forward(self, x: Tensor) -> Any:
        def twice(y: Tensor) -> Any:
            with warnings.catch_warnings():  # the outer one runs this without gradients first
                warnings.simplefilter("ignore")
                return checkpoint(self.inner, torch.tanh(self.inner(y)), use_reentrant=True)

        return x + checkpoint(twice, x, use_reentrant=True)


class Clamped(Part):
    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        y.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return torch.tanh(y)


class Detached(Part):
    def forward(self, x: Tensor) -> Any:
        scale = self.inner(x).mean()
        scale.detach_()
        return torch.tanh(self.inner(x)) * scale.cos()


class Branch(Part):
    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        return torch.tanh(y) if float(y.detach().sum()) > 0 else y.sin() - x


class Sometimes(Part):
    """Its weights are used where the first number of a microbatch is above 0."""

    def forward(self, x: Tensor) -> Any:
        return x + self.inner(x) if float(x.detach()[0, 0]) > 0 else x.cos()


class Loop(Part):
    """As often as its values say."""

    def forward(self, x: Tensor) -> Any:
        for _ in range(int(x.detach().abs().sum()) % 3 + 1):
            x = torch.tanh(self.inner(x))
        return x


class Chosen(Part):
    """As many rows as pass a test are computed."""

    def forward(self, x: Tensor) -> Any:
        rows = torch.nonzero(x[:, 0] > 0).flatten()
        return x.index_add(0, rows, torch.tanh(self.inner(x[rows])))


class Numpy(Part):
    """What numpy says is a constant of the step."""

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        return torch.tanh(y) * float(y.detach().numpy().std())


class Flex(Part):
    """Frozen attention to near rows beside what is trained: on CPUs torch has no backward of it."""

    def forward(self, x: Tensor) -> Any:
        q = x.detach().view(1, 2, ROWS, WIDTH // 2)
        far = lambda score, b, h, i, j: score - 0.1 * (i - j).abs()  # noqa: E731
        seen = flex_attention(q, q, q, score_mod=far).reshape(ROWS, WIDTH)
        return x + self.inner(seen)


class Routed(nn.Module):
    """Each row goes to one expert; some experts have no rows, all of them statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.load: Tensor
        self.register_buffer("load", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        share, expert = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for k in expert.unique().tolist():
            rows = expert == k
            out[rows] = self.experts[k](x[rows]) * share[rows, None]
            with torch.no_grad():
                self.load[k] += rows.sum()
        return x + out


class Ctc(nn.Module):
    """The loss of a sequence of scores; lengths are values."""

    def forward(self, y: Tensor, target: Tensor, lengths: Tensor) -> Any:
        scores = y.view(ROWS, 2, WIDTH // 2).transpose(0, 1).repeat(4, 1, 1).log_softmax(-1)
        steps = torch.full((ROWS,), len(scores))
        return F.ctc_loss(scores, target, steps, lengths)


def chain(*middle: nn.Module) -> nn.Sequential:
    """Four plain layers with parts between them."""
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    for part in middle:
        layers += [part, nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


class Hooked(Part):
    """A hook on the gradients of a layer."""

    def __init__(self) -> None:
        super().__init__()
        halved: Any = lambda module, given, gave: (given[0] * 0.5,)  # noqa: E731
        self.inner.register_full_backward_hook(halved)

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.inner(x))


class Watched(Part):
    """A hook on the gradient of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.weight.register_hook(lambda g: g.clamp(-0.005, 0.005))

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.inner(x))


def lazy() -> nn.Module:
    """Lazy layers that a first batch has made, with a part that counts in numpy."""
    model = chain(nn.Sequential(nn.LazyLinear(WIDTH), nn.LazyBatchNorm1d(), Numpy()))
    model(torch.randn(ROWS, WIDTH))
    return model


@dataclass(frozen=True)
class Case:
    """A model, its loss, and the parts that a graph cannot hold.

    Attributes:
        make: The model.
        loss: Of its outputs and the target.
        batch: The model's arguments and the target of a microbatch.
        eager: Paths.
    """

    make: Callable[[], nn.Module]
    loss: Callable[..., Any]
    batch: Callable[[torch.Generator], tuple[dict[str, Tensor], Any]]
    eager: tuple[str, ...]


def _rows(g: torch.Generator) -> tuple[dict[str, Tensor], Any]:
    return {"input": torch.randn(ROWS, WIDTH, generator=g)}, torch.randn(ROWS, WIDTH, generator=g)


def _labelled(g: torch.Generator) -> tuple[dict[str, Tensor], Any]:
    target = torch.randint(1, 4, (ROWS, 3), generator=g), torch.randint(1, 4, (ROWS,), generator=g)
    return _rows(g)[0], target


def _case(make: Callable[[], nn.Module], *eager: str) -> Case:
    return Case(make, F.mse_loss, _rows, eager)


CASES = {
    "straight-through sign": _case(lambda: chain(Signs(), Signs()), "2", "5"),
    "reversed gradients": _case(lambda: chain(Adversary()), "2"),
    "reentrant checkpoint": _case(lambda: chain(Checkpointed(), Checkpointed()), "2", "5"),
    "checkpoint in checkpoint": _case(lambda: chain(CheckpointedTwice()), "2"),
    "hook on a layer": _case(lambda: chain(Hooked()), "2.inner"),
    "hook on a weight": _case(lambda: chain(Watched()), "2.inner"),
    "hook on a value": _case(lambda: chain(Clamped(), Clamped()), "2", "5"),
    "detached in place": _case(lambda: chain(Detached()), "2"),
    "branch on values": _case(lambda: chain(Branch(), Branch()), "2", "5"),
    "loop on values": _case(lambda: chain(Loop()), "2"),
    "rows by values": _case(lambda: chain(Chosen()), "2"),
    "experts by values": _case(lambda: chain(Routed()), "2"),
    "numpy": _case(lambda: chain(Numpy()), "2"),
    "flex attention": _case(lambda: chain(Flex(), Flex()), "2", "5"),
    "lazy layers": _case(lazy, "2.2"),
    "ctc loss": Case(chain, Ctc(), _labelled, ("loss",)),
}


def _own_loss(outputs: Any) -> Any:
    return outputs.loss


def _swin() -> Any:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4,
        num_labels=5, drop_path_rate=0.0,
    )  # fmt: skip
    return SwinForImageClassification(config)


def _pictures(g: torch.Generator) -> tuple[dict[str, Tensor], Any]:
    labels = torch.randint(0, 5, (2,), generator=g)
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=g), "labels": labels}, None


def _switch() -> Any:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2, num_decoder_layers=2,
        num_experts=4, vocab_size=50, dropout_rate=0.0, router_jitter_noise=0.0,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return SwitchTransformersForConditionalGeneration(config)


def _ibert() -> Any:
    from transformers import IBertConfig, IBertForSequenceClassification

    config = IBertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=32, quant_mode=True, num_labels=5,
    )  # fmt: skip
    return IBertForSequenceClassification(config)


def _texts(labels: tuple[int, ...]) -> Callable[[torch.Generator], tuple[dict[str, Tensor], Any]]:
    def batch(g: torch.Generator) -> tuple[dict[str, Tensor], Any]:
        ids = torch.randint(2, 50, (2, 8), generator=g)
        return {"input_ids": ids, "labels": torch.randint(2, 5, labels, generator=g)}, None

    return batch


PUBLISHED = {
    "swin": Case(_swin, _own_loss, _pictures, ("swin.encoder.layers.*.blocks.*",)),
    "switch transformer": Case(
        _switch,
        _own_loss,
        _texts((2, 8)),
        ("encoder", "decoder.block.*.layer.2"),
    ),
    "i-bert": Case(
        _ibert,
        _own_loss,
        _texts((2,)),
        ("ibert.embeddings", "ibert.encoder.layer.*"),
    ),
}
"""Of transformers; of these `torch.export` refuses the last two."""
