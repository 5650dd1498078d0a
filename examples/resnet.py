"""Factories for residual networks: ``pipec compile resnet.py:resnet18 --target fpga``.

``python resnet.py resnet50.onnx`` writes ResNet-50 as an ONNX file.
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

Factory = tuple[nn.Module, tuple[Tensor, ...]]


class ConvNorm(nn.Sequential):
    """Convolution and batch normalisation."""

    def __init__(self, cin: int, cout: int, k: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout))


class Block(nn.Module):
    """Residual block: two 3x3 convolutions, or 1x1, 3x3 (with the stride) and 1x1."""

    def __init__(self, cin: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        cout = width * (4 if bottleneck else 1)
        if bottleneck:
            layers = [ConvNorm(cin, width, 1), ConvNorm(width, width, 3, stride)]
            layers.append(ConvNorm(width, cout, 1))
        else:
            layers = [ConvNorm(cin, width, 3, stride), ConvNorm(width, width, 3)]
        between = [m for layer in layers for m in (layer, nn.ReLU())]
        self.body = nn.Sequential(*between[:-1])
        same = stride == 1 and cin == cout
        self.skip = nn.Identity() if same else ConvNorm(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet(depths: tuple[int, ...], *, bottleneck: bool) -> nn.Module:
    """A residual network for 3 x 224 x 224 and 1000 classes (He et al., CVPR 2016)."""
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for k, depth in enumerate(depths):
        width = 64 << k
        for n in range(depth):
            stride = 2 if k and not n else 1
            layers.append(Block(channels, width, stride, bottleneck=bottleneck))
            channels = width * (4 if bottleneck else 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def resnet18() -> Factory:
    """ResNet-18 for inference: 1.8 billion multiply-accumulates, 11.7 M parameters."""
    return resnet((2, 2, 2, 2), bottleneck=False).eval(), (torch.randn(1, 3, 224, 224),)


def resnet50() -> Factory:
    """ResNet-50 for inference: 4.1 billion multiply-accumulates, 25.6 M parameters."""
    return resnet((3, 4, 6, 3), bottleneck=True).eval(), (torch.randn(1, 3, 224, 224),)


def calibrate(model: nn.Module, images: int = 8) -> nn.Module:
    """The model with the statistics of random images in its normalisations, so that what it
    computes stays in range although nobody trained it; every channel has weights of its own.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain mean of what is seen
    with torch.no_grad():
        model.train()(torch.randn(images, 3, 224, 224))
    return model.eval()


def write(path: Path) -> None:
    """Write ResNet-50 with seeded random weights and calibrated statistics as ONNX."""
    torch.manual_seed(0)
    model, example = resnet50()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.onnx.export(
            calibrate(model), example, str(path), dynamo=False,
            input_names=["image"], output_names=["scores"],
        )  # fmt: skip


if __name__ == "__main__":
    write(Path(sys.argv[1]))
