"""Factories that tests name."""

import torch
from torch import nn


def seeded() -> object:
    return nn.Linear(4, 3), torch.randn(2, 4)


def classifier() -> object:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, (torch.randn(2, 4),), (nn.CrossEntropyLoss(), torch.randint(0, 3, (2,)))


def two_targets() -> object:
    def loss(out: torch.Tensor, *, wanted: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (weight * (out - wanted).square()).mean()

    target = {"wanted": torch.randn(2, 3), "weight": torch.rand(2, 3)}
    return nn.Linear(4, 3), {"input": torch.randn(2, 4)}, (loss, target)


def only_module() -> object:
    return nn.Conv2d(3, 4, 3)


def own_loss() -> object:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.inner(x)
            return {"logits": y, "loss": y.square().sum()}

    return Own(), torch.randn(2, 4)


def nonsense() -> object:
    return {"model": nn.Linear(2, 2)}


def raises() -> object:
    raise KeyError("no such checkpoint")


def untraceable() -> object:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x
            return x + 1

    return Branch(), torch.ones(3)


def returns_object() -> object:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, object]:
            return x + 1, object()

    return Odd(), torch.ones(3)


number = 3
