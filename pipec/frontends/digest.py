"""Digests of models, so that a plan can tell whether it still belongs to one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pipec.graph.tensor_type import has_data


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types and bytes of all weights, in hexadecimal.

    Weights without data count by name and type only.

    Example:
        >>> a, b = torch.zeros(2), torch.zeros(2, device="meta")
        >>> weights_digest({"w": a}) == weights_digest({"w": b})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if has_data(tensor) and tensor.numel():
            flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(flat.numpy().data)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
