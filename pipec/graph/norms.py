"""Rules of `FakeTensorMode` for normalisations on a CPU.

Of a tensor in half precision with weights in float32, as under autocast, a CPU saves mean and scale
in float32; torch's own functions for fake tensors say half. Of a batch normalisation by fixed
statistics torch has no such function: its type is found by running some fifteen fake ops in its
place, which is most of the time that a convolutional network takes to trace.
"""

import torch
from torch import Tensor

from pipec.graph.torch_private import BATCH_NORMS, FakeTensorMode, fake_kernel, fake_like

by_fixed_statistics = torch.ops.aten._native_batch_norm_legit_no_training.default
"""Of ``(x, weight, bias, mean, var, momentum, eps)``: the result and two empty tensors."""


@fake_kernel(by_fixed_statistics)
def of_fixed_statistics(
    mode: FakeTensorMode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...] | None:
    """The result, like ``x``, and two empty statistics; None where the types are unusual."""
    del momentum, eps
    vectors = [v for v in (weight, bias, mean, var) if v is not None]
    if not _plain(x) or any(v.dtype != x.dtype or v.shape != x.shape[1:2] for v in vectors):
        return None
    none = [torch.Size([0])] * 2  # on a CPU, statistics are saved in training only
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, none, x.dtype)


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
    if list(x.shape[-inner:]) != normalized_shape or not _mixes(x, x.shape[-inner:], weight, bias):
        return None
    kept = torch.Size([*x.shape[: x.dim() - inner], *[1] * inner])
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, [kept] * 2)


@fake_kernel(BATCH_NORMS[1])
@fake_kernel(BATCH_NORMS[2])
def of_batches(
    mode: FakeTensorMode, x: Tensor, weight: Tensor | None, bias: Tensor | None, *others: object
) -> tuple[Tensor, ...] | None:
    """The result, mean, scale, and the running statistics if there are any; else None."""
    running = [t for t in others if isinstance(t, Tensor)]
    if not _mixes(x, x.shape[1:2], weight, bias, *running):
        return None
    shapes = [x.shape[1:2]] * (2 + len(running))
    return _results(mode, torch.empty_like(x, device="meta"), x, shapes)


def _mixes(x: Tensor, shape: torch.Size, *weights: Tensor | None) -> bool:
    """Whether a CPU normalises half precision by weights of a shape in float32."""
    kinds = {(w.dtype, w.shape) for w in weights if w is not None}
    full = kinds == {(torch.float32, shape)}
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and full


def _plain(x: Tensor) -> bool:
    known = all(type(size) is int for size in x.shape)
    return known and x.dim() > 1 and x.device.type == "cpu" and _contiguous(x)


def _contiguous(x: Tensor) -> bool:
    """Whether the strides are those of a new tensor, of dimensions of size 1 too."""
    return x.stride() == torch.empty(x.shape, device="meta").stride()


def _results(
    mode: FakeTensorMode, out: Tensor, x: Tensor, shapes: list[torch.Size],
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:  # fmt: skip
    vectors = [torch.empty(shape, dtype=kind, device="meta") for shape in shapes]
    return tuple(fake_like(t, x.device, mode) for t in (out, *vectors))
