"""Rules of `FakeTensorMode` for normalisations on a CPU.

Of a tensor in half precision with weights in float32, as under autocast, a CPU saves mean and scale
in float32; torch's own functions for fake tensors say half. Of a batch normalisation by fixed
statistics torch has no such function: its type is found by running some fifteen fake ops in its
place, which is most of the time that a convolutional network takes to trace.
"""

from typing import Any

import torch
from torch import Tensor

from pipec.graph.torch_private import BATCH_NORMS, FakeTensorMode, fake_kernel, fake_like

by_fixed_statistics = torch.ops.aten._native_batch_norm_legit_no_training.default
"""Of ``(x, weight, bias, mean, var, momentum, eps)``: the result and two empty tensors."""


@fake_kernel(by_fixed_statistics)
def of_fixed_statistics(
    mode: FakeTensorMode, x: Tensor, *others: Tensor | float | None
) -> tuple[Tensor, ...] | None:
    """The result, like ``x``, and two empty statistics; None where the types are unusual."""
    vectors = [v for v in others if isinstance(v, Tensor)]
    plain = all(type(size) is int for size in x.shape) and x.dim() > 1 and x.device.type == "cpu"
    if any(v.dtype != x.dtype or v.shape != x.shape[1:2] for v in vectors) or not plain:
        return None
    if x.stride() != torch.empty(x.shape, device="meta").stride():  # of dimensions of size 1 too
        return None
    none = [torch.Size([0])] * 2  # on a CPU, statistics are saved in training only
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, none, x.dtype)


@fake_kernel(torch.ops.aten.native_layer_norm.default)
def of_layers(
    mode: FakeTensorMode, x: Tensor, normalized_shape: list[int], *others: Any
) -> tuple[Tensor, ...] | None:
    """The result, mean and scale; None where all has one dtype, or shapes do not fit."""
    inner = len(normalized_shape)
    if list(x.shape[-inner:]) != normalized_shape or not _mixes(x, x.shape[-inner:], *others[:2]):
        return None
    kept = torch.Size([*x.shape[: x.dim() - inner], *[1] * inner])
    return _results(mode, torch.empty(x.shape, dtype=x.dtype, device="meta"), x, [kept] * 2)


@fake_kernel(torch.ops.aten.native_group_norm.default)
def of_groups(
    mode: FakeTensorMode, x: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: int
) -> tuple[Tensor, ...] | None:
    """The result, mean and scale; None where all has one dtype."""
    batch, channels, _, groups, _ = sizes
    if not _mixes(x, torch.Size([channels]), weight, bias):
        return None
    return _results(mode, torch.empty_like(x, device="meta"), x, [torch.Size([batch, groups])] * 2)


@fake_kernel(torch.ops.aten.native_group_norm_backward.default)
def of_groups_backward(
    mode: FakeTensorMode, dy: Tensor, x: Tensor, *others: Any
) -> tuple[Tensor | None, ...] | None:
    """The gradients of ``x`` and of weight and bias that are wanted; None as above."""
    _, _, weight, *_, wanted = others
    if weight is None or not _mixes(x, weight.shape, weight):
        return None
    found = _results(mode, torch.empty_like(x, device="meta"), dy, [weight.shape] * 2)
    return tuple(t if want else None for t, want in zip(found, wanted, strict=True))


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


@fake_kernel(BATCH_NORMS[0])
def of_instances(mode: FakeTensorMode, *args: Any) -> tuple[Tensor, ...] | None:
    """The same of an instance normalisation, which keeps no statistics."""
    return of_batches(mode, *args) if args[3] is None else None


def _mixes(x: Tensor, shape: torch.Size, *weights: Tensor | None) -> bool:
    """Whether a CPU normalises half precision by weights of a shape in float32."""
    kinds = {(w.dtype, w.shape) for w in weights if w is not None}
    full = kinds == {(torch.float32, shape)}
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and full


def _results(
    mode: FakeTensorMode, out: Tensor, x: Tensor, shapes: list[torch.Size],
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:  # fmt: skip
    vectors = [torch.empty(shape, dtype=kind, device="meta") for shape in shapes]
    return tuple(fake_like(t, x.device, mode) for t in (out, *vectors))
