"""A factory for ``pipec explore vgg16.py:vgg16``: VGG-16 with its loss."""

import torch
from torch import nn

CHANNELS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Output channels of every convolution; 0 is a max pool (Simonyan & Zisserman, configuration D)."""


def vgg16() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[nn.Module, torch.Tensor]]:
    """VGG-16 (138 M parameters), a batch of 8 x 3 x 224 x 224, and cross entropy."""
    layers: list[nn.Module] = []
    before = 3
    for channels in CHANNELS:
        if channels:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        else:
            layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000)]
    target = torch.randint(1000, (8,))
    return nn.Sequential(*layers), (torch.randn(8, 3, 224, 224),), (nn.CrossEntropyLoss(), target)
