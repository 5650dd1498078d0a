"""What would train with other gradients, or with a stale value, is refused and named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipec.errors import FrontendError
from pipec.frontends.lost import Watch
from pipec.frontends.torch_module import from_module


class Sign(torch.autograd.Function):
    """The straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Net(nn.Module):
    """Two layers with something between them, which may use the module."""

    def __init__(self, between: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between
        self.count, self.seen = 0, torch.zeros(4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.between(self, self.a(x)))
        return result


def own_backward(_: Net, y: Tensor) -> Tensor:
    result: Tensor = Sign.apply(y)  # type: ignore[no-untyped-call]
    return result


sign = Sign.apply  # bound before anything is traced


def own_backward_by_another_name(_: Net, y: Tensor) -> Tensor:
    found: Tensor = sign(y)  # type: ignore[no-untyped-call]
    return found


def halved(_: Net, y: Tensor) -> Tensor:
    y.register_hook(lambda g: g / 2)
    return y


def in_inference_mode(_: Net, y: Tensor) -> Tensor:
    with torch.inference_mode():
        g = y.exp()
    return y * g.clone()


def reentrant(net: Net, y: Tensor) -> Tensor:
    result: Tensor = checkpoint(net.b, y, use_reentrant=True)
    return result


def counted(net: Net, y: Tensor) -> Tensor:
    net.count += 1
    return y * net.count


def remembered(net: Net, y: Tensor) -> Tensor:
    net.seen = net.seen + y.detach().mean(0)
    return y * net.seen


def resized(net: Net, y: Tensor) -> Tensor:
    net.mean = y.detach()
    return y


def read(model: nn.Module) -> None:
    from_module(model, torch.randn(2, 4), lambda y: y.square().mean())


@pytest.mark.parametrize(
    ("between", "said"),
    [
        (own_backward, "Sign"),
        (own_backward_by_another_name, "test_lost_gradients.Sign"),
        (halved, "a hook on a gradient"),
        (lambda _, y: y.detach_(), "x = x.detach()"),
        (in_inference_mode, "torch.no_grad"),
        (reentrant, "use_reentrant=False"),
        (counted, "0, then 1"),
        (remembered, "seen"),
        (resized, "float32[2, 4]"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(
    between: Callable[[Net, Tensor], Tensor], said: str
) -> None:
    with pytest.raises(FrontendError) as refusal:
        read(Net(between))
    assert said in str(refusal.value).replace("torch.float32", "float32")


def test_hooks_that_are_there_already_are_named() -> None:
    model = Net(lambda _, y: y)
    model.b.register_full_backward_hook(lambda *_: None)
    model.a.weight.register_hook(lambda g: g / 2)
    with pytest.raises(FrontendError, match=r"b, model\.a\.weight"):
        read(model)


def test_torch_is_left_as_it_was() -> None:
    before = vars(torch.autograd.Function)["apply"]
    with pytest.raises(FrontendError):
        read(Net(own_backward))
    assert vars(torch.autograd.Function)["apply"] is before
    assert "apply" not in vars(torch.autograd.Function.__mro__[1])
    x = torch.ones(2, requires_grad=True)
    assert own_backward(Net(own_backward), x).requires_grad


def test_statistics_of_instances_are_refused_where_they_would_be_lost() -> None:
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), norm)
    with pytest.raises(FrontendError, match="track_running_stats=False"):
        read(model)


def test_a_shape_that_depends_on_data_is_refused() -> None:
    with pytest.raises(FrontendError, match="depends on data"):
        read(Net(lambda _, y: y[y[:, 0] > 0]))


def test_only_what_the_model_calls_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what torch itself asks a weight there are a hundred calls: a tenth of all the time."""
    seen, look = list[object](), Watch.__torch_function__

    def note(watch: Watch, func: object, *rest: Any) -> object:
        seen.append(func)
        return look(watch, func, *rest)

    monkeypatch.setattr(Watch, "__torch_function__", note)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    from_module(model, torch.zeros(1, 4), Tensor.sum)
    assert seen.count(torch.nn.functional.linear) == 2
    assert len(seen) < 10
