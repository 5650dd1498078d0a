"""Gradients that are not finite, against a plain loop."""

import copy

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.pipeline.pipeline import Pipeline


def sgd(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_what_is_not_finite_stays_in_the_weights_whose_gradient_it_is(schedule: str) -> None:
    """With on_nan="continue", as in a plain loop without clipping."""

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.root = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(self.first(x).tanh() + 0 * self.root.sqrt())
            return found

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    model, x = Rooted(), torch.randn(8, 4, generator=torch.Generator().manual_seed(2))
    plan = pipec.compile(model, x[:2], "2xcpu", loss=loss, schedule=schedule, microbatches=4)
    with Pipeline(plan, optimizer=sgd, on_nan="continue") as pipeline:
        pipeline.step({"x": x})
        trained = pipeline.state_dict() or {}
    plain = copy.deepcopy(model)
    loss(plain(x)).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert trained["root"].isnan().all()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(trained[name], weight, equal_nan=True)
