"""What `FakeTensorMode` is told of a batch normalisation by fixed statistics.

torch has no meta function for it: its type is found by running some fifteen fake ops in its
place, which is most of the time that a convolutional network takes to trace.
"""

import torch
from torch import Tensor

from pipec.graph.torch_private import FakeTensorMode, fake_kernel, fake_like

by_fixed_statistics = torch.ops.aten._native_batch_norm_legit_no_training.default
"""Of ``(x, weight, bias, mean, var, momentum, eps)``: the result and two empty tensors."""


@fake_kernel(by_fixed_statistics)
def types(
    mode: FakeTensorMode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The result, like ``x``, and two empty statistics; None where the types are unusual."""
    del momentum, eps
    vectors = [v for v in (weight, bias, mean, var) if v is not None]
    if not _plain(x) or any(v.dtype != x.dtype or v.shape != x.shape[1:2] for v in vectors):
        return None

    def like(shape: torch.Size) -> Tensor:
        meta = torch.empty(shape, dtype=x.dtype, device="meta")
        return fake_like(meta, x.device, mode)

    none = torch.Size([0])  # on a CPU, statistics are saved in training only
    return like(x.shape), like(none), like(none)


def _plain(x: Tensor) -> bool:
    known = all(type(size) is int for size in x.shape)
    return known and x.dim() > 1 and x.device.type == "cpu" and _contiguous(x)


def _contiguous(x: Tensor) -> bool:
    """Whether the strides are those of a new tensor, of dimensions of size 1 too."""
    return x.stride() == torch.empty(x.shape, device="meta").stride()
