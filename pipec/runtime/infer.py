"""Inference: the outputs of all microbatches, together."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import save_file

from pipec.errors import PipecError
from pipec.runtime.executor import Result
from pipec.runtime.metrics import Observer
from pipec.runtime.program import Program
from pipec.runtime.train import summary

Tensors = dict[str, torch.Tensor]


class Pipeline(Protocol):
    """What `LocalPipeline` and `DistributedPipeline` have in common."""

    program: Program

    def round(self) -> Result:
        """Run the schedule once."""

    def outputs(self, found: Tensors) -> Tensors | None:
        """What all ranks found, on the first; None elsewhere."""


def infer(pipeline: Pipeline, rounds: int, observers: Iterable[Observer] = ()) -> Tensors | None:
    """Run rounds of an inference schedule and keep the outputs.

    Args:
        pipeline: Whose schedule to run; every rank of a group must call with the same rounds.
        rounds: How many.
        observers: Called after every round.

    Returns:
        Output name to ``[microbatch, *shape]`` over all rounds, in host memory, on the first rank;
        None elsewhere.

    Raises:
        BackendError: Another rank did not answer.
    """
    observers = list(observers)
    found: dict[str, list[torch.Tensor]] = {}
    for number in range(rounds):
        begin = time.perf_counter()
        result = pipeline.round()
        for (_, name), value in sorted(result.outputs.items(), key=lambda item: item[0]):
            found.setdefault(name, []).append(value.cpu())
        step = summary(pipeline.program, result, number, time.perf_counter() - begin)
        for observe in observers:
            observe(step)
    return pipeline.outputs({name: torch.stack(values) for name, values in found.items()})


FORMATS = (".safetensors", ".npz", ".pth", ".pt")
"""Endings of files of tensors that can be written."""


def save_tensors(outputs: Tensors, path: Path) -> None:
    """Write tensors by name, as the ending says: safetensors, NumPy, or torch's state dict.

    Raises:
        PipecError: Another ending, or a dtype that NumPy does not know.
    """
    if path.suffix == ".safetensors":
        save_file({n: t.cpu().contiguous() for n, t in outputs.items()}, path)
        return
    if path.suffix in (".pth", ".pt"):
        torch.save({n: t.cpu() for n, t in outputs.items()}, path)
        return
    if path.suffix != ".npz":
        raise PipecError("no such format", got=path.name, want=" ".join(FORMATS))
    try:
        arrays = {n: t.cpu().numpy() for n, t in outputs.items()}
    except TypeError as error:
        raise PipecError(
            "NumPy has no such numbers", where=path, got=error, hint="write .safetensors"
        ) from error
    np.savez(path, **arrays)  # type: ignore[arg-type]
