"""Example tensors of other shapes than those that a model came with."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.graph.tensor_type import has_data


def resize_inputs(tensors: Mapping[str, Tensor], options: LoadOptions) -> dict[str, Tensor]:
    """The same tensors; random ones where ``options.shapes`` ask for another shape."""
    found = dict(tensors)
    for name in tensors.keys() & options.shapes.keys():
        if tensors[name].shape != options.shapes[name]:
            found[name] = random_like(tensors[name], options.shapes[name], options.seed)
    return found


def random_like(like: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random values: normal for floats; what stays in the range of ``like`` for integers.

    Raises:
        FrontendError: This machine has no memory for as many.
    """
    try:
        return _random(like, shape, seed)
    except RuntimeError as error:  # torch's own: it has no other for memory, or for sizes
        raise FrontendError(
            "an example of this shape cannot be made",
            got=f"{list(shape)} of {like.dtype}",
            want="what this machine's memory holds",
            hint="trace the model at a smaller batch or shape",
        ) from error


def _random(like: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    if not has_data(like):
        return torch.zeros(shape, dtype=like.dtype)
    generator = torch.Generator().manual_seed(seed)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, dtype=like.dtype, generator=generator)
    high = int(like.max()) + 1 if like.numel() else 1
    return torch.randint(0, max(high, 1), shape, generator=generator).to(like.dtype)
