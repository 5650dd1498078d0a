"""The models that torch tests its own pipelines with, written anew from their equations.

They are those of torch's ``test/distributed/pipelining/model_registry.py``: values skip stages, two
names share one parameter or layer, an input has a default, a layer is an autograd function of its
own, or leaves the gradient of its weights to a call that comes later.
"""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, ROWS = 16, 8


def _matrix() -> nn.Parameter:
    return nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)


class Skips(nn.Module):
    """A buffer that needs no gradient is added behind the first half."""

    def __init__(self) -> None:
        super().__init__()
        self.mm_param0, self.mm_param1 = _matrix(), _matrix()
        self.cval: Tensor
        self.register_buffer("cval", torch.randn(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(torch.mm(x, self.mm_param0))
        constant = self.cval.clone()
        x = torch.mm(torch.relu(self.layers[0](x)) + constant, self.mm_param1)
        for layer in self.layers[1:]:
            x = torch.relu(layer(x))
        return x


class Defaulted(nn.Module):
    """A second input that has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.mm_param0, self.mm_param1 = _matrix(), _matrix()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor = torch.zeros(ROWS, WIDTH)) -> Tensor:  # noqa: B008
        x = torch.relu(self.layers[0](torch.mm(x, self.mm_param0) + y))
        x = torch.relu(self.layers[1](torch.mm(x, self.mm_param1)))
        for layer in self.layers[2:]:
            x = torch.relu(layer(x))
        return x


class Aliases(nn.Module):
    """Both halves have the same parameter and the same layer, under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.mm_param1 = self.mm_param0 = _matrix()
        self.lin1 = self.lin0 = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.relu(self.lin0(torch.mm(x, self.mm_param0) + y))
        return torch.relu(self.lin1(torch.mm(x, self.mm_param1)))


class Mlp(nn.Module):
    """Two layers; a second input is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.net1, self.net2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, unused: Tensor = torch.zeros(1)) -> Tensor:  # noqa: B008
        del unused
        found: Tensor = self.net2(torch.relu(self.net1(x)))
        return found


class Mlps(nn.Module):
    """Some of these, the second input passed to the model alone."""

    def __init__(self, part: type[nn.Module] = Mlp) -> None:
        super().__init__()
        self.layers = nn.ModuleList(part() for _ in range(4))

    def forward(self, x: Tensor, unused: Tensor = torch.zeros(1)) -> Tensor:  # noqa: B008
        del unused
        for layer in self.layers:
            x = layer(x)
        return x


class _Linear(torch.autograd.Function):
    """A linear layer with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient.mm(weight), gradient.t().mm(x), gradient.sum(0)


class _LinearLater(torch.autograd.Function):
    """The gradient of the input alone; what that of the weights needs is left in a list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, left: list[Any]) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.left = left
        return x.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.left.append((gradient.clone(), x.clone()))
        return gradient.mm(weight), None, None, None


class OwnBackward(nn.Module):
    """Two layers that are autograd functions; it keeps the value between them, as torch's does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1_weight, self.fc2_weight = _matrix(), _matrix()
        self.fc1_bias, self.fc2_bias = (nn.Parameter(torch.randn(WIDTH) / 4) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        self.hidden = torch.relu(_Linear.apply(x, self.fc1_weight, self.fc1_bias))  # type: ignore[no-untyped-call]
        return _Linear.apply(self.hidden, self.fc2_weight, self.fc2_bias)  # type: ignore[no-untyped-call]


class LaterBackward(OwnBackward):
    """Until somebody adds them, its weights have no gradients: only what is before it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        apply: Any = _LinearLater.apply
        self.hidden = torch.relu(apply(x, self.fc1_weight, self.fc1_bias, self.left))
        return apply(self.hidden, self.fc2_weight, self.fc2_bias, self.left)


class Between(nn.Module):
    """Plain layers around one that leaves its gradients for later."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp(), LaterBackward(), Mlp(), LaterBackward()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
