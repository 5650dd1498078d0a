"""Ops that rewritten training graphs use and ATen lacks."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.library.custom_op("pipec_fpga::one_hot", mutates_args=())
def one_hot(classes: Tensor, count: int, ignored: int = -1) -> Tensor:
    """One-hot rows ``[n, count]`` in float32 of class numbers ``[n]``.

    Zeros throughout where the number is ``ignored`` or no class.
    """
    columns = torch.arange(count, device=classes.device)
    return ((classes[:, None] == columns) & (columns != ignored)).to(torch.float32)


@one_hot.register_fake
def _(classes: Tensor, count: int, ignored: int = -1) -> Tensor:
    return torch.empty(classes.shape[0], count, device=classes.device)


@torch.library.custom_op("pipec_fpga::layer_norm_input_grad", mutates_args=())
def layer_norm_input_grad(
    dy: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float
) -> Tensor:
    """Input gradient of a layer normalisation over the last axes ``shape``, from x alone."""
    aten = torch.ops.aten
    _, mean, rstd = aten.native_layer_norm.default(x, shape, weight, None, eps)
    mask = [True, False, False]
    found: Tensor = aten.native_layer_norm_backward.default(
        dy, x, shape, mean, rstd, weight, None, mask
    )[0]
    return found


@layer_norm_input_grad.register_fake
def _(dy: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pipec_fpga::apart", mutates_args=())
def apart(x: Tensor, stride: Sequence[int], size: Sequence[int]) -> Tensor:
    """Maps of ``size`` with the pixels of x ``stride`` rows and columns apart, zeros in between.

    As many as there are places for: ``ceil(size / stride)``.
    """
    found = x.new_zeros(*x.shape[:2], *size)
    found[:, :, :: stride[0], :: stride[1]] = x
    return found


@apart.register_fake
def _(x: Tensor, stride: Sequence[int], size: Sequence[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], *size)
