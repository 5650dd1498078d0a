"""A layer that is called twice: two gradients of its weights, more than slow engines wait for."""

import torch
from torch import nn

import pipec


class Twice(nn.Module):
    """One small layer, and the same again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(self.layer(x).relu()).tanh())
        return out


def test_memory_may_be_slower_than_the_slowest_engines() -> None:
    """Every gradient is read and written once per call; engines alone would be faster."""
    loss = (nn.MSELoss(reduction="sum"), torch.randn(4, 3))
    model = Twice()
    plan = pipec.compile(model, torch.randn(4, 5), devices="1xvcu118", target="fpga", loss=loss)
    (stage,) = plan.timing
    nbytes = 8 * sum(p.numel() for p in model.parameters())
    assert stage.interval_seconds > nbytes / plan.cluster.devices[0].memory_bandwidth
