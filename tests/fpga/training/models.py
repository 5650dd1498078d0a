"""Small models with a loss that together use every training op with an engine."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source


class Residual(nn.Module):
    """A strided residual block with batch normalisation, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.down = nn.Conv2d(4, 6, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.conv2(y) + self.down(x))


class Block(nn.Module):
    """Layer normalisation, GELU, softmax: the row ops of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(functional.gelu(self.up(self.norm(x))))
        return x + torch.softmax(y, -1) * torch.sigmoid(y) + torch.tanh(x)


class Encoder(nn.Module):
    """Token embeddings and an encoder layer: attention of two heads, written by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.tokens(x))
        return found


class Halves(nn.Module):
    """A layer in two parts by output channels, as `split-layer` leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        parts = [functional.linear(x, w) for w in (self.weight[:2], self.weight[2:])]
        return torch.relu(torch.cat(parts, -1))


class Causal(nn.Module):
    """Attention with a causal mask behind an average pooling whose windows overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3)
        self.pool = nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.conv(x)).flatten(2).transpose(1, 2)
        q, k, v = y.chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def example(like: Tensor) -> Tensor:
    """A random tensor of the same kind: normal, or classes from 0 to 4."""
    if like.dtype.is_floating_point:
        return torch.randn(tuple(like.shape))
    return torch.randint(0, 5, tuple(like.shape))


def mlp() -> Graph:
    """Linear, ReLU, squared error."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return _traced(net, torch.randn(4, 8), functional.mse_loss, torch.randn(4, 4))


def cnn() -> Graph:
    """Convolutions, overlapping and tiling pools, linear, cross-entropy."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(6, 4, 3, padding=1, groups=2),
        nn.SiLU(),
        nn.AvgPool2d(3, 1, 1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 5),
    )
    classes = torch.tensor([1, 4, 0])
    return _traced(net, torch.randn(3, 3, 35, 35), functional.cross_entropy, classes)


def ignoring() -> Graph:
    """Cross-entropy of rows some of which are of a class that does not count."""
    loss = functools.partial(functional.cross_entropy, ignore_index=2)
    return _traced(nn.Linear(7, 5), torch.randn(6, 7), loss, LABELS["ignoring"])


def unlabelled() -> Graph:
    """Cross-entropy of rows some of which have no class."""
    loss = functools.partial(functional.cross_entropy, reduction="mean")
    return _traced(nn.Linear(7, 5), torch.randn(6, 7), loss, LABELS["unlabelled"])


def resnet() -> Graph:
    """Stem with max pooling of three pixels, a strided residual block, global pooling."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
    )
    classes = torch.tensor([3, 0])
    return _traced(net, torch.randn(2, 3, 13, 13), functional.cross_entropy, classes)


def rows() -> Graph:
    """A block of row ops with a squared error."""
    return _traced(Block(), torch.randn(2, 3, 6), functional.mse_loss, torch.randn(2, 3, 6))


def encoder() -> Graph:
    """An encoder layer over embedded tokens."""
    classes = torch.tensor([[1, 4, 0], [2, 2, 3]])
    return _traced(Encoder(), classes, functional.mse_loss, torch.randn(2, 3, 8))


def halves() -> Graph:
    """A layer in two parts."""
    return _traced(Halves(), torch.randn(4, 8), functional.mse_loss, torch.randn(4, 6))


def causal() -> Graph:
    """Causal attention over pooled maps."""
    return _traced(Causal(), torch.randn(2, 3, 7, 9), functional.mse_loss, torch.randn(2, 12, 4))


def deep() -> Graph:
    """Convolutions whose weights are larger than the maps that they read and yield."""
    net = nn.Sequential(
        nn.Conv2d(6, 10, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(10, 12, 3, padding=1)
    )
    x, target = torch.randn(1, 6, 7, 7), torch.randn(1, 12, 4, 4)
    return _traced(net, x, functional.mse_loss, target)


def dropout() -> Graph:
    """Dropout of maps and of rows."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Dropout(0.3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8),
        nn.Dropout(0.5), nn.Linear(8, 3),
    )  # fmt: skip
    x, target = torch.randn(2, 3, 6, 6), torch.randn(2, 3)
    return _traced(net, x, functional.mse_loss, target)


def corners() -> Graph:
    """Dropout of the input, activations and a loss that change their slope."""
    net = nn.Sequential(
        nn.Dropout(0.3), nn.Linear(6, 9), nn.LeakyReLU(0.1), nn.Linear(9, 8), nn.ELU(1.3),
        nn.Linear(8, 7), nn.Hardtanh(-0.2, 0.3), nn.Linear(7, 4), nn.ReLU6(),
    )  # fmt: skip
    loss = functools.partial(functional.smooth_l1_loss, beta=0.7)
    return _traced(net, torch.randn(4, 6), loss, torch.randn(4, 4))


class Last(nn.Module):
    """What a sequence ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.up(x))
        found: Tensor = self.down(y[:, -1] * y[:, 1])
        return found


def last() -> Graph:
    """Some positions of an axis, and a loss without a mean."""
    loss = functools.partial(functional.huber_loss, reduction="sum", delta=0.4)
    return _traced(Last(), torch.randn(2, 4, 5), loss, torch.randn(2, 3))


def dilated() -> Graph:
    """A strided convolution with a dilated kernel behind another."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 5, 3, 2, padding=2, dilation=2)
    )
    x, target = torch.randn(2, 3, 9, 8), torch.randn(2, 5, 5, 4)
    return _traced(net, x, functional.mse_loss, target)


def padded() -> Graph:
    """Embeddings with a padding row in the middle."""
    tokens = torch.tensor([[1, 2, 0], [2, 4, 2]])
    net = nn.Sequential(nn.Embedding(5, 6, padding_idx=2), nn.Linear(6, 4))
    return _traced(net, tokens, functional.mse_loss, torch.randn(2, 3, 4))


def quantile() -> Graph:
    """Losses of quantiles and of margins, whose gradients are chosen among numbers."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        off = target - y
        return torch.maximum(0.9 * off, -0.1 * off).mean() + functional.relu(1.0 - off).mean()

    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5))
    return _traced(net, torch.randn(12, 7), loss, torch.randn(12, 5))


def margin() -> Graph:
    """A loss that boards do not train with."""
    net, classes = nn.Linear(8, 4), torch.tensor([0, 1, 2])
    return _traced(net, torch.randn(3, 8), functional.multi_margin_loss, classes)


def masked() -> Graph:
    """A loss whose comparison the backward reads again."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        off = target - y
        return torch.where(target > y, 0.9 * off, -0.1 * off).mean()

    return _traced(nn.Linear(8, 4), torch.randn(3, 8), loss, torch.randn(3, 4))


def by_frequency() -> Graph:
    """What boards do not train with."""
    tokens = torch.tensor([[1, 2, 0], [2, 4, 2]])
    net = nn.Embedding(5, 6, scale_grad_by_freq=True)
    return _traced(net, tokens, functional.mse_loss, torch.randn(2, 3, 6))


class Forgetful(nn.Module):
    """Attention that drops weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2)


def forgetful() -> Graph:
    """What boards do not train with either."""
    x, target = torch.randn(2, 1, 3, 8), torch.randn(2, 1, 3, 8)
    return _traced(Forgetful(), x, functional.mse_loss, target)


LABELS = {
    "ignoring": torch.tensor([2, 4, 0, 2, 1, 3]),
    "unlabelled": torch.tensor([1, -100, 4, 0, -100, 2]),
}
"""Labels that random numbers would not show: of rows that do not count."""

MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "cnn": cnn,
    "ignoring": ignoring,
    "unlabelled": unlabelled,
    "resnet": resnet,
    "rows": rows,
    "encoder": encoder,
    "causal": causal,
    "halves": halves,
    "deep": deep,
    "dropout": dropout,
    "corners": corners,
    "quantile": quantile,
    "last": last,
    "dilated": dilated,
    "padded": padded,
}


def _traced(
    net: nn.Module, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor], target: Tensor
) -> Graph:
    return trace(net.train(), (x,), loss=Loss(loss, target), source=Source("memory", "model"))
