"""ResNet-50, VGG-16 and AlexNet for 224 x 224 pixels, without weights; their training graphs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source

CLASSES = 1000
_VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class Bottleneck(nn.Module):
    """He et al. 2016, figure 5 right, the stride in the 3 x 3 convolution (version 1.5)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            _conv(before, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(),
            _conv(width, after, 1),
        )  # fmt: skip
        plain = stride == 1 and before == after
        self.shortcut = nn.Identity() if plain else _conv(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.path(x) + self.shortcut(x))


def _conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


def resnet50() -> nn.Module:
    """25.6 M parameters, 4.1 G multiply-accumulates per image."""
    blocks, before = list[nn.Module](), 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            blocks.append(Bottleneck(before, width, stride if k == 0 else 1))
            before = 4 * width
    stem = nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES))
    return nn.Sequential(stem, *blocks, head)


def vgg16() -> nn.Module:
    """Simonyan and Zisserman 2015, configuration D; 138 M parameters, 15.5 G multiply-accumulates.

    Without dropout.
    """
    layers, before = list[nn.Module](), 3
    for width in _VGG:
        if width:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *_head(512 * 7 * 7))


def alexnet() -> nn.Module:
    """Krizhevsky 2014 (one tower); 61 M parameters, 0.71 G multiply-accumulates; no dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), *_head(256 * 6 * 6),
    )  # fmt: skip


def _head(features: int) -> tuple[nn.Module, ...]:
    return (
        nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, CLASSES),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "alexnet": alexnet,
}


def training_graph(name: str, batch: int, device: str = "meta") -> Graph:
    """The network with its cross-entropy for a microbatch of images; without data unless on CPU."""
    with torch.device(device):
        model = NETWORKS[name]().train()
        images = torch.zeros(batch, 3, 224, 224)
        classes = torch.zeros(batch, dtype=torch.long)
    loss = Loss(functional.cross_entropy, classes)
    return trace(model, (images,), loss=loss, source=Source("memory", name))
