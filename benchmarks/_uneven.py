"""Models whose layers cost unlike much, in the proportions of their papers, small enough for a CPU.

```text
gpt2        12 layers, width 96, 6282 words        the head weighs 5.5 layers, as GPT-2's of 50257
distilgpt2  6 layers, else the same                half of GPT-2's layers before the same head
edsr        16 residual blocks, 64 channels, x4    last layers see up to 16 times the pixels
tiny_yolo   9 convolutions of 16 to 1024 channels  two of them do most of the work
densenet    6 + 12 + 24 + 16 layers, growth 16     pixels quarter from one block to the next
unet        4 levels down, 4 up, 16 channels       ways up read twice the channels of ways down
vgg16       13 convolutions, 3 linear layers       time in the first layers, weights in the last
```

GPT-2: Radford et al. 2019. DistilGPT-2: Sanh et al., arXiv:1910.01108. EDSR's baseline: Lim et al.,
arXiv:1707.02921. Tiny YOLO: the one of Redmon and Farhadi, arXiv:1612.08242. DenseNet-121 at half
its width: Huang et al., arXiv:1608.06993. U-Net: Ronneberger et al., arXiv:1505.04597, with padding
and BatchNorm. VGG-16: Simonyan and Zisserman, arXiv:1409.1556, for pictures of 64x64.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks._models import WORKLOADS, Transformer, Workload, tokens

GPT2_WORDS = 6282
"""50257 words at a width of 768 weigh as many layers as this many at 96."""
YOLO = (16, 32, 64, 128, 256, 512, 1024, 1024)
"""Channels; the first five convolutions halve the pixels."""
VGG = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and layers of them; the last one of each halves the pixels."""


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(x)))
        return x + change


class Edsr(nn.Module):
    """A picture at four times its size."""

    def __init__(self, blocks: int = 16, width: int = 64) -> None:
        super().__init__()

        def larger() -> nn.Module:
            return nn.Sequential(nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))

        body = [*(Residual(width) for _ in range(blocks)), nn.Conv2d(width, width, 3, padding=1)]
        tail = [larger(), larger(), nn.Conv2d(width, 3, 3, padding=1)]
        self.layers = nn.ModuleList([nn.Conv2d(3, width, 3, padding=1), *body, *tail])

    def forward(self, x: Tensor) -> Tensor:
        x = start = self.layers[0](x)
        for layer in self.layers[1:-3]:
            x = layer(x)
        x = x + start
        for layer in self.layers[-3:]:
            x = layer(x)
        return x


class TinyYolo(nn.Module):
    def __init__(self, outputs: int = 125) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for k, channels in enumerate(YOLO):
            conv = nn.Conv2d(width, channels, 3, padding=1, bias=False)
            pool = [nn.MaxPool2d(2)] if k < 5 else []
            norm = nn.BatchNorm2d(channels), nn.LeakyReLU(0.1)
            layers.append(nn.Sequential(conv, *norm, *pool))
            width = channels
        self.layers = nn.ModuleList([*layers, nn.Conv2d(width, outputs, 1)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Vgg(nn.Module):
    """VGG-16 for pictures of 64x64: time is in the first layers, weights are in the last ones."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for channels, count in VGG:
            for k in range(count):
                pool = [nn.MaxPool2d(2)] if k == count - 1 else []
                conv = nn.Conv2d(width, channels, 3, padding=1)
                layers.append(nn.Sequential(conv, nn.ReLU(), *pool))
                width = channels
        first = nn.Sequential(nn.Flatten(), nn.Linear(4 * width, 4096), nn.ReLU())
        second = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU())
        self.layers = nn.ModuleList([*layers, first, second, nn.Linear(4096, classes)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Dense(nn.Module):
    """Adds ``growth`` channels to those that it reads."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class DenseNet(nn.Module):
    def __init__(self, blocks: Sequence[int] = (6, 12, 24, 16), growth: int = 16) -> None:
        super().__init__()
        width = 2 * growth
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        layers: list[nn.Module] = [nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))]
        for number, count in enumerate(blocks):
            if number:
                halved = nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1)
                layers.append(nn.Sequential(*halved, nn.AvgPool2d(2)))
                width //= 2
            for _ in range(count):
                layers.append(Dense(width, growth))
                width += growth
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(torch.relu(self.norm(x)).mean((2, 3)))
        return out


def _twice(inputs: int, outputs: int) -> nn.Module:
    parts: list[nn.Module] = []
    for width in (inputs, outputs):
        conv = nn.Conv2d(width, outputs, 3, padding=1, bias=False)
        parts += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*parts)


class Up(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.larger = nn.ConvTranspose2d(inputs, outputs, 2, 2)
        self.both = _twice(2 * outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        out: Tensor = self.both(torch.cat([skip, self.larger(x)], 1))
        return out


class Unet(nn.Module):
    """A class per pixel, channels last."""

    def __init__(self, levels: int = 4, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        widths = [width << k for k in range(levels + 1)]
        down = [_twice(3, width)]
        down += [nn.Sequential(nn.MaxPool2d(2), _twice(w // 2, w)) for w in widths[1:]]
        up = [Up(2 * w, w) for w in reversed(widths[:-1])]
        self.layers = nn.ModuleList([*down, *up, nn.Conv2d(width, classes, 1)])
        self.levels = levels

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for k in range(self.levels + 1):
            x = self.layers[k](x)
            skips.append(x)
        for k in range(self.levels):
            x = self.layers[self.levels + 1 + k](x, skips[self.levels - 1 - k])
        out: Tensor = self.layers[-1](x).permute(0, 2, 3, 1)
        return out


def _small_and_large(rows: int) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, 3, 24, 24), torch.rand(rows, 3, 96, 96)


def _pictures(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 96, 96), torch.randint(0, 10, (rows,))


def _small_pictures(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 64, 64), torch.randint(0, 10, (rows,))


def _boxes(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 192, 192), torch.randn(rows, 125, 6, 6)


def _masks(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, 64, 64), torch.randint(0, 4, (rows, 64, 64))


UNEVEN = {
    "gpt2": Workload(partial(Transformer, 12, 96, GPT2_WORDS), partial(tokens, words=GPT2_WORDS)),
    "distilgpt2": Workload(
        partial(Transformer, 6, 96, GPT2_WORDS), partial(tokens, words=GPT2_WORDS)
    ),
    "edsr": Workload(Edsr, _small_and_large, 1, F.l1_loss),
    "tiny_yolo": Workload(TinyYolo, _boxes, 1, F.mse_loss),
    "densenet": Workload(DenseNet, _pictures),
    "unet": Workload(Unet, _masks),
    "vgg16": Workload(Vgg, _small_pictures),
}


def workload(name: str) -> Workload:
    """A model of any benchmark by name."""
    return {**WORKLOADS, **UNEVEN}[name]
