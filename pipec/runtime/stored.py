"""Weights that stay in their files until a stage asks for them: sharded or single safetensors."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pipec.errors import PlanError

_INDEX = "*.safetensors.index.json"


class Stored(Mapping[str, torch.Tensor]):
    """Tensors by name, each read when it is asked for: no rank holds the whole model.

    Args:
        path: A ``.safetensors`` file, or a directory of them, with the index that transformers
            writes beside shards or without.

    Raises:
        PlanError: There is no such file, or it cannot be read.

    Example:
        ``Pipeline(plan, optimizer=..., weights=Stored("checkpoint/"))``
    """

    def __init__(self, path: Path | str) -> None:
        self._files = _files(Path(path))

    def __getitem__(self, name: str) -> torch.Tensor:
        file = self._files[name]
        with _reading(file), safe_open(file, "pt") as found:
            tensor: torch.Tensor = found.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn what safetensors raises into words."""
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise PlanError("weights cannot be read", where=file, got=error) from error


def _files(path: Path) -> dict[str, Path]:
    """The file of every tensor."""
    if not path.is_dir():
        return dict.fromkeys(_names(path), path)
    indices = sorted(path.glob(_INDEX))
    if indices:
        with _reading(indices[0]):
            told = json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"]
        return {str(name): path / Path(str(file)).name for name, file in told.items()}
    found = {n: file for file in sorted(path.glob("*.safetensors")) for n in _names(file)}
    if not found:
        raise PlanError("a directory holds no weights", got=path, want="*.safetensors")
    return found


def _names(file: Path) -> list[str]:
    with _reading(file), safe_open(file, "pt") as found:
        return list(found.keys())
