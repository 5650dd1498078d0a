"""What `FakeTensorMode` is told of normalisations in mixed precision on a CPU.

Of a tensor in half precision with weights in float32, as under autocast, a CPU saves mean and scale
in float32; torch's own functions for fake tensors say half.
"""

import torch
from torch import Tensor

from pipec.graph.torch_private import BATCH_NORMS, FakeTensorMode, fake_kernel, fake_like


@fake_kernel(torch.ops.aten.native_layer_norm.default)
def of_layers(
    mode: FakeTensorMode,
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...] | None:
    """The result, mean and scale; None where all has one dtype, or shapes do not fit."""
    del eps
    inner = len(normalized_shape)
    if list(x.shape[-inner:]) != normalized_shape or not _mixed(x, x.shape[-inner:], weight, bias):
        return None
    kept = torch.Size([*x.shape[: x.dim() - inner], *[1] * inner])
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, [kept] * 2)


@fake_kernel(BATCH_NORMS[1])
def of_batches(
    mode: FakeTensorMode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    *others: object,
) -> tuple[Tensor, ...] | None:
    """The result, mean, scale, and both running statistics; else None."""
    del others
    if not _mixed(x, x.shape[1:2], weight, bias, mean, var):
        return None
    return _results(mode, torch.empty_like(x, device="meta"), x, [x.shape[1:2]] * 4)


@fake_kernel(BATCH_NORMS[2])
def of_one_batch(
    mode: FakeTensorMode, x: Tensor, weight: Tensor | None, bias: Tensor | None, *others: object
) -> tuple[Tensor, ...] | None:
    """The same without running statistics."""
    del others
    if not _mixed(x, x.shape[1:2], weight, bias):
        return None
    return _results(mode, torch.empty_like(x, device="meta"), x, [x.shape[1:2]] * 2)


def _mixed(x: Tensor, shape: torch.Size, *weights: Tensor | None) -> bool:
    """Whether a CPU normalises half precision by weights of a shape in float32."""
    kinds = {(w.dtype, w.shape) for w in weights if w is not None}
    full = kinds == {(torch.float32, shape)}
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and full


def _results(
    mode: FakeTensorMode, out: Tensor, x: Tensor, shapes: list[torch.Size]
) -> tuple[Tensor, ...]:
    vectors = [torch.empty(shape, dtype=torch.float32, device="meta") for shape in shapes]
    return tuple(fake_like(t, x.device, mode) for t in (out, *vectors))
