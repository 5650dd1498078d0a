"""The models that benchmarks train: small enough for a CPU, of the shapes that matter.

```text
transformer   8 causal layers, width 256, 64 tokens, 1000 words     equal layers and a heavy head
cnn           8 residual blocks with BatchNorm, 32 channels, 32 x 32 pixels         equal layers
mlp           6 layers of 1024                                      weights outweigh activations
vgg           9 convolutions, pixels halve as channels double       layers unlike each other
vit           patches of 4 x 4, 6 layers of width 192               no loss per token, one per image
llama         6 layers: RMSNorm, rotary positions, SwiGLU           many small nodes
```
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Layer(nn.Module):
    def __init__(self, width: int, heads: int = 4, *, causal: bool = True) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.heads
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        out: Tensor = x + self.down(F.gelu(self.up(self.n2(x))))
        return out


class Transformer(nn.Module):
    def __init__(self, layers: int = 8, width: int = 256, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Cnn(nn.Module):
    def __init__(self, blocks: int = 8, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Mlp(nn.Module):
    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class Vgg(nn.Module):
    """Plain convolutions; the numbers are channels."""

    def __init__(self, plan: Sequence[int | str]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for entry in plan:
            if isinstance(entry, int):
                conv = nn.Conv2d(width, entry, 3, padding=1)
                layers.append(nn.Sequential(conv, nn.ReLU()))
                width = entry
            else:
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Vit(nn.Module):
    def __init__(self, layers: int = 6, width: int = 192, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.ModuleList(Layer(width, causal=False) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean(1))
        return out


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.heads = heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (
            part(y).view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Llama(nn.Module):
    def __init__(self, layers: int = 6, width: int = 192, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(64), 1e4 ** -torch.linspace(0, 1, width // 8))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        out: Tensor = self.head(self.norm(x))
        return out


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


def tokens(rows: int, words: int = 1000) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, words, (rows, 65))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _images(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))


def _vectors(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 1024), torch.randint(0, 10, (rows,))


@dataclass(frozen=True)
class Workload:
    """A model with data.

    Attributes:
        make: The model.
        data: Number of samples to inputs and targets.
        rows: Samples of one microbatch.
        loss: Loss of its output and the targets.
    """

    make: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    rows: int = 4
    loss: Callable[[Tensor, Tensor], Tensor] = loss_of

    def make_seeded(self, microbatches: int) -> tuple[nn.Module, Tensor, Tensor]:
        """The model, and the inputs and targets of a whole step; always the same."""
        torch.manual_seed(0)
        model = self.make()
        return model, *self.data(self.rows * microbatches)


DOUBLING = (16, 16, "pool", 32, 32, "pool", 64, 64, "pool", 128, 128, 128)

WORKLOADS = {
    "transformer": Workload(Transformer, tokens),
    "cnn": Workload(Cnn, _images),
    "mlp": Workload(Mlp, _vectors, 64),
    "vgg": Workload(lambda: Vgg(DOUBLING), _images, 16),
    "vit": Workload(Vit, _images),
    "llama": Workload(Llama, tokens),
}
"""What is predicted."""
