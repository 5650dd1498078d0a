"""A small training graph."""

import torch
from torch import nn

from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source


def trained_mlp(layers: int, width: int = 64, batch: int = 8) -> Graph:
    """``layers`` times (linear, relu) with a mean squared error behind."""
    stack = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]
    return trace(
        nn.Sequential(*stack),
        (torch.zeros(batch, width),),
        loss=Loss(nn.functional.mse_loss, torch.zeros(batch, width)),
        source=Source("memory", "mlp"),
    )
