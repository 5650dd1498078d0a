"""Weights of a plan on disk: one safetensors file per stage, each tensor once.

A weight belongs to the first stage that reads it; a *tied* weight is read by later stages too and
lies in its owner's file alone. A weight that nothing reads lies with the first stage, so that the
files together are the model's state dict.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipec.errors import PlanError
from pipec.graph.ir import Graph, tensor
from pipec.graph.tensor_type import has_data
from pipec.plan.model import Plan

WEIGHTS = "weights.safetensors"


def stage_folder(stage: int) -> str:
    """Name of the folder with the artifacts of one stage."""
    return f"stage{stage}"


def owners(plan: Plan) -> dict[str, int]:
    """Weight name to the stage whose file holds it, in the order of the model."""
    first: dict[str, int] = {}
    for stage in plan.stages:
        for i in stage.graph.inputs:
            if i.kind.is_weight:
                first.setdefault(i.name, stage.index)
    return {i.name: first.get(i.name, 0) for i in plan.graph.inputs if i.kind.is_weight}


def all_have_data(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether every weight has numbers: neither a fake tensor nor one on ``meta``."""
    return all(map(has_data, weights.values()))


def write_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors to a safetensors file; the same tensors give the same bytes.

    Data is taken from where it lies, mapped files included; only tensors that are not contiguous,
    or overlap another one, are copied first.

    Raises:
        PlanError: The format has no such dtype.
        OSError: The file cannot be written.
    """
    dense = {name: w.detach().contiguous() for name, w in weights.items()}
    end = 0
    for name in sorted(dense, key=lambda name: dense[name].data_ptr()):
        start = dense[name].data_ptr()
        if start < end:
            dense[name] = dense[name].clone()
        else:
            end = start + dense[name].nbytes
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dense, path)
    except KeyError as error:
        raise PlanError("safetensors cannot hold this dtype", where=path.name, got=error) from error
    except SafetensorError as error:
        # the operating system's message, which safetensors quotes in its own
        match = re.search(r"os error (\d+)", str(error))
        raise OSError(*([int(match[1])] if match else []), str(error)) from error
    path.chmod(mode)  # safetensors leaves a file that only its owner may read


class Lazy(Mapping[str, torch.Tensor]):
    """Tensors by name."""

    def __init__(self, read: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


class StoredWeights(Lazy):
    """The weights of a saved plan by name; a tensor's pages are read when they are touched.

    ``files`` are the safetensors file of each weight; the values of ``graph`` say its strides.

    A tensor is the same object every time, so that graphs can be seen to share it.

    Raises:
        PlanError: A file is damaged, or lacks a weight (on access).
    """

    def __init__(self, files: Mapping[str, Path], graph: Graph) -> None:
        nodes = graph.nodes
        self._types = {i.name: tensor(nodes[i.node]) for i in graph.inputs if i.kind.is_weight}
        self._open: dict[Path, safe_open] = {}
        super().__init__({n: cache(partial(self._map, path, n)) for n, path in files.items()})

    def _map(self, path: Path, name: str) -> torch.Tensor:
        like = self._types[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            file: Any = self._open[path]
            found: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise PlanError(
                "a weight cannot be read",
                where=f"{path}: {name}",
                got=error,
                hint="compile the model again",
            ) from error
        if (found.dtype, found.shape) != (like.dtype, like.shape):
            raise PlanError("a weight has another type than the plan says", where=f"{path}: {name}")
        if like.stride() == found.stride() or 0 in like.stride():
            return found
        strided = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        return strided.copy_(found)
