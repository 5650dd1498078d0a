"""What a graph's gradients must be where a model turns gradients off: those of eager autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.errors import FrontendError
from pipec.frontends.trace import trace
from pipec.graph.ir import Graph, InputKind, Source, op_name


class Model(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.body = nn.Parameter(torch.linspace(0.1, 1.6, 16).reshape(4, 4)), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, self.w)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    with torch.no_grad():
        g = y.exp()
    return (y * g).sum()


def in_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.no_grad():
            g = y.sin()
        return (y * g).float().sum()


def around_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return (y * w).sum()


def enabled_inside(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        y = x @ w
        with torch.enable_grad():
            z = y * w
        q = z.exp()
    return (z * q).sum()


@torch.no_grad()
def _statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.mean(), y.var()


def decorated(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    mean, variance = _statistics(y)
    return ((y - mean) / variance).square().sum()


def passed_through(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    with torch.no_grad():
        z, r = y, y.relu()
        r.mul_(2)
    return (z * r).sum()


def detached(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y * y.detach().exp()).sum()


def gradient(graph: Graph, module: nn.Module, x: Tensor) -> Tensor:
    w = graph.weights["w"].detach().requires_grad_()
    (out,) = graph.module(*[w if i.kind is InputKind.PARAMETER else x for i in graph.inputs])
    (found,) = torch.autograd.grad(out, w)
    return found


@pytest.mark.parametrize(
    "body",
    [scaled, in_autocast, around_autocast, enabled_inside, decorated, passed_through, detached],
)
def test_gradients_are_those_of_eager(body: Callable[[Tensor, Tensor], Tensor]) -> None:
    module, x = Model(body), torch.randn(4, 4)
    graph = trace(module, (x,), source=Source("memory", "Model"))
    (want,) = torch.autograd.grad(module(x), module.w)
    torch.testing.assert_close(gradient(graph, module, x), want)


def test_detach_goes_where_gradients_do_not_matter() -> None:
    module, x = Model(scaled), torch.randn(4, 4)
    graph = trace(module, (x,), source=Source("memory", "Model"), differentiable=False)
    assert "aten.detach.default" not in map(op_name, graph.calls)


def test_a_hidden_update_is_refused() -> None:
    def hidden(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        with torch.no_grad():
            y.mul_(2)
        return y.sum()

    with pytest.raises(FrontendError, match="changed in place under"):
        trace(Model(hidden), (torch.randn(4, 4),), source=Source("memory", "Model"))


def test_buffers_may_be_updated_without_gradients() -> None:
    class Average(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
            return x - self.mean

    graph = trace(Average(), (torch.randn(4, 4),), source=Source("memory", "Average"))
    assert [(o.kind, o.name) for o in graph.outputs] == [
        ("buffer_update", "mean"),
        ("output", "output"),
    ]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        taken: Tensor = torch.cond(h.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (h,))
        return taken


def test_control_flow_of_run_time_is_refused_by_its_name() -> None:
    with pytest.raises(FrontendError, match=r"torch\.cond"):
        trace(Branching(), (torch.ones(2, 4),), source=Source("memory", "B"), differentiable=False)


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * self.factor.item()


def test_a_number_out_of_a_tensor_is_refused_by_its_name() -> None:
    scaling, given = Scaling(), (torch.ones(2, 4),)
    with pytest.raises(FrontendError, match=r"factor\.item\(\)(?s:.*)--eager"):
        trace(scaling, given, source=Source("memory", "S"), differentiable=False)
    with pytest.raises(FrontendError, match=r"factor\.item\(\)") as told:
        pipec.compile(scaling, given, "1xcpu", eager=True)
    assert "eager" not in str(told.value)  # it is set
