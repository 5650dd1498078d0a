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
    """The result, mean and scale; None where all has one dtype."""
    del eps
    if not _mixed(x, weight, bias):
        return None
    inner = len(normalized_shape)
    kept = torch.Size([*x.shape[: x.dim() - inner], *[1] * inner])
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, [kept] * 2)


@fake_kernel(BATCH_NORMS[1])
def of_batches(
    mode: FakeTensorMode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    *others: object,
) -> tuple[Tensor, ...] | None:
    """The result, mean, scale, and both running statistics; None where all has one dtype."""
    del others
    if not _mixed(x, weight, bias, mean):
        return None
    return _results(mode, torch.empty_like(x, device="meta"), x, [x.shape[1:2]] * 4)


@fake_kernel(BATCH_NORMS[2])
def of_one_batch(
    mode: FakeTensorMode, x: Tensor, weight: Tensor | None, bias: Tensor | None, *others: object
) -> tuple[Tensor, ...] | None:
    """The same without running statistics."""
    del others
    if not _mixed(x, weight, bias):
        return None
    return _results(mode, torch.empty_like(x, device="meta"), x, [x.shape[1:2]] * 2)


def _mixed(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether a CPU normalises half precision by weights in float32."""
    full = {w.dtype for w in weights if w is not None} == {torch.float32}
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and full


def _results(
    mode: FakeTensorMode, out: Tensor, x: Tensor, shapes: list[torch.Size]
) -> tuple[Tensor, ...]:
    vectors = [torch.empty(shape, dtype=torch.float32, device="meta") for shape in shapes]
    return tuple(fake_like(t, x.device, mode) for t in (out, *vectors))
