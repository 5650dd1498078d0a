"""Small networks trained on scikit-learn's digits: real weights for the FPGA benchmarks.

1797 images of 8 x 8 pixels; 360 of them are kept for the test (`examples.digits.data`).
"""

import itertools
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks._fpga_models import separable
from examples.digits import data
from examples.resnet import Block, ConvNorm

EPOCHS, ROWS, RATE = 20, 32, 3e-3


def mlp() -> nn.Sequential:
    """64 - 64 - 32 - 10."""
    sizes = (64, 64, 32)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def cnn() -> nn.Sequential:
    """Three convolutions, two poolings."""
    return nn.Sequential(
        ConvNorm(1, 16, 3), nn.ReLU(), ConvNorm(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        ConvNorm(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def residual() -> nn.Sequential:
    """Nine convolutions in residual blocks."""
    blocks = [Block(16, 16, 1, bottleneck=False), Block(16, 32, 2, bottleneck=False)]
    blocks += [Block(32, 64, 2, bottleneck=False)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(ConvNorm(1, 16, 3), nn.ReLU(), *blocks, *head)


def mobile() -> nn.Sequential:
    """Depthwise and pointwise convolutions."""
    body = [separable(16, 32, 1), separable(32, 32, 2), separable(32, 64, 1), separable(64, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(ConvNorm(1, 16, 3), nn.ReLU6(), *body, *head)


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": mlp, "cnn": cnn, "residual": residual, "mobile": mobile,
}  # fmt: skip


@lru_cache
def images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images ``[n, 1, 8, 8]`` (rows of 64 for ``mlp``) and labels for training, for the test."""
    x, y, test, labels = data()
    shape = (-1, 64) if name == "mlp" else (-1, 1, 8, 8)
    return x.reshape(shape), y, test.reshape(shape), labels


def train_network(name: str) -> nn.Module:
    """One of `NETWORKS` after `EPOCHS` epochs of Adam, in eval mode; always the same."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    x, y, _, _ = images(name)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(ROWS):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def write_onnx(name: str, path: Path) -> Path:
    """The trained network as an ONNX file for one image, its input ``x``."""
    torch.onnx.export(
        train_network(name), (images(name)[2][:1],), path, input_names=["x"], output_names=["y"],
        dynamo=False, opset_version=13,
    )  # fmt: skip
    return path
