"""Factories for training examples: multilayer perceptrons of equal and unequal layers."""

import torch
from torch import nn

Factory = tuple[nn.Module, tuple[torch.Tensor, ...], tuple[nn.Module, torch.Tensor]]


def mlp() -> Factory:
    """Eight layers of width 1,024 and a mean squared error; a batch of 8."""
    layers = [m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(8, 1024),), (nn.MSELoss(), torch.zeros(8, 1024))


def lopsided() -> Factory:
    """One layer of twelve times the others' work: a cut between layers cannot balance it."""
    model = nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 12288), nn.ReLU(), nn.Linear(12288, 64)
    )
    return model, (torch.randn(64, 1024),), (nn.MSELoss(), torch.zeros(64, 64))
