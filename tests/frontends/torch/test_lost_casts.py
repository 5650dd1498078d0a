"""Autocast of a device that a model is not traced on is refused; else a graph casts as it does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.errors import FrontendError
from pipec.frontends.torch_module import from_module


class Mixed(nn.Module):
    """A linear layer under autocast."""

    def __init__(self, region: Callable[[Tensor], torch.autocast]) -> None:
        super().__init__()
        self.layer, self.region = nn.Linear(8, 4), region

    def forward(self, x: Tensor) -> Tensor:
        with self.region(x):
            found: Tensor = self.layer(x)
        return found


LOST: dict[str, Callable[[Tensor], torch.autocast]] = {
    "cuda": lambda _: torch.autocast("cuda", dtype=torch.bfloat16),
    "xpu": lambda _: torch.autocast("xpu"),
    "in cuda's own name": lambda _: torch.amp.autocast("cuda"),
}
KEPT: dict[str, tuple[Callable[[Tensor], torch.autocast], torch.dtype]] = {
    "cpu": (lambda x: torch.autocast(x.device.type, torch.bfloat16), torch.bfloat16),
    "disabled": (lambda _: torch.autocast("cuda", enabled=False), torch.float32),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LOST)
def test_casts_that_would_be_lost_are_refused(name: str, training: bool) -> None:
    before = torch.autocast.__init__
    with pytest.raises(FrontendError, match=r"would be lost(.|\n)*weights on cpu(.|\n)*x\.device"):
        from_module(Mixed(LOST[name]), torch.randn(2, 8), torch.sum if training else None)
    assert torch.autocast.__init__ is before


@pytest.mark.filterwarnings("ignore:User provided device_type:UserWarning")
@pytest.mark.parametrize("name", KEPT)
def test_what_casts_eagerly_casts_in_the_graph(name: str) -> None:
    region, dtype = KEPT[name]
    model, x = Mixed(region), torch.randn(2, 8)
    loaded = from_module(model, x)
    values = {**model.state_dict(), "x": x}
    (found,) = loaded.graph.module(*[values[i.name] for i in loaded.graph.inputs])
    assert found.dtype == model(x).dtype == dtype
    assert torch.equal(found, model(x))


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.vmap(lambda row: row.outer(row).sum(0))(self.layer(x))
        return found


def test_what_vmap_hides_from_casts_is_one_error() -> None:
    with pytest.raises(FrontendError, match="cannot be cast by autocast"):
        pipec.compile(Mapped(), torch.ones(4, 6), "1xcpu", autocast="bfloat16")
