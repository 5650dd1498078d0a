"""Inference: the outputs of all microbatches, together."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from pipec.errors import PipecError
from pipec.files import replacing, write_npz
from pipec.runtime.metrics import Observer
from pipec.runtime.train import Rounds, rounds_of

Tensors = dict[str, torch.Tensor]


def infer(pipeline: Rounds, rounds: int, observers: Iterable[Observer] = ()) -> Tensors | None:
    """Run rounds of an inference schedule and keep the outputs.

    Args:
        pipeline: Whose schedule to run; every rank of a group must call with the same rounds.
        rounds: Number of rounds.
        observers: Called after every round.

    Returns:
        Output name to ``[microbatch, *shape]`` over all rounds, in host memory, on the first rank;
        None elsewhere. Where microbatches differ in size, each is called ``name.microbatch``.

    Raises:
        BackendError: Another rank did not answer.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for result, _ in rounds_of(pipeline, range(rounds), observers):
        for (_, name), value in sorted(result.outputs.items(), key=lambda item: item[0]):
            found.setdefault(name, []).append(value.cpu())
    return pipeline.outputs({n: t for o, values in found.items() for n, t in _join(o, values)})


def _join(name: str, values: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    if len({t.shape for t in values}) == 1:
        yield name, torch.stack(values)
    else:
        yield from ((f"{name}.{k}", t) for k, t in enumerate(values))


FORMATS = (".safetensors", ".npz", ".pth", ".pt")
"""Endings of files of tensors that can be written."""


def save_tensors(outputs: Tensors, path: Path) -> None:
    """Write tensors by name, as the ending says: safetensors, NumPy, or torch's state dict.

    The file appears whole or not at all: one that was there stays if this one cannot be written.

    Raises:
        PipecError: Another ending, a dtype that NumPy does not know, or a full disk.
    """
    if path.suffix not in FORMATS:
        raise PipecError("no such format", got=path.name, want=" ".join(FORMATS))
    try:
        with replacing(path) as place:
            _write({n: t.cpu().contiguous() for n, t in outputs.items()}, place)
    except (RuntimeError, SafetensorError) as error:
        raise PipecError("the file cannot be written", where=path, got=error) from error


def _write(outputs: Tensors, path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(outputs, path)
    elif path.suffix == ".npz":
        try:
            arrays = {n: t.numpy() for n, t in outputs.items()}
        except TypeError as error:
            raise PipecError(
                "NumPy has no such numbers", where=path, got=error, hint="write .safetensors"
            ) from error
        write_npz(path, arrays)
    else:
        torch.save(outputs, path)
