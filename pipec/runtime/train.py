"""The loops around rounds of a schedule, training and inference: what is reported, and when."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file

from pipec.errors import PipecError
from pipec.files import check_output, replacing, write_npz
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.figures import Figures, conclude, gather_figures
from pipec.runtime.metrics import Observer, Step
from pipec.runtime.program import Program
from pipec.runtime.result import Result
from pipec.runtime.runner import Runner
from pipec.runtime.shares import Shares


class Rounds(Protocol):
    """What runs a schedule round by round."""

    program: Program

    def round(self) -> Result:
        """Run the schedule once."""

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """What all ranks found, on the first; None elsewhere."""


def rounds_of(
    pipeline: Rounds, numbers: Iterable[int], observers: Iterable[Observer]
) -> Iterator[tuple[Result, Figures]]:
    """Run rounds, and tell observers of each one's figures.

    Every rank of a group must call it with the same numbers; the figures are the same on all of
    them, so that it is enough to observe on one.

    Raises:
        BackendError: Another rank did not answer.
    """
    observers = list(observers)
    for number in numbers:
        begin = time.perf_counter()
        result = pipeline.round()
        found = gather_figures(result, Shares(), number, time.perf_counter() - begin)
        for observe in observers:
            observe(summary(pipeline.program, found, number))
        yield result, found


def train(
    pipeline: Runner,
    rounds: int,
    observers: Iterable[Observer] = (),
    *,
    checkpoints: Checkpoints | None = None,
    every: int = 100,
) -> list[float]:
    """Run rounds and tell observers about each; then drain the pipeline.

    Args:
        pipeline: As for `rounds_of`.
        rounds: How many, those before the checkpoint included.
        observers: Called after every round.
        checkpoints: Where to continue from, and to save to.
        every: Rounds between checkpoints.

    Returns:
        The mean loss of every round that was run.

    Raises:
        PlanError: Gradients are not finite, and the settings say stop; or another run saves
            checkpoints in the same directory.
        BackendError: Another rank did not answer.
    """
    losses = []
    if checkpoints and rounds:
        checkpoints.claim()
    numbers = range(checkpoints.resume() if checkpoints else 0, rounds)
    for number, (_, found) in zip(numbers, rounds_of(pipeline, numbers, observers), strict=True):
        losses.append(math.nan if found.loss is None else found.loss)
        if error := conclude(found, pipeline.executors, number):
            if checkpoints:
                checkpoints.wait()
            raise error
        if checkpoints and ((number + 1) % every == 0 or number + 1 == rounds):
            checkpoints.save()
    if checkpoints:
        checkpoints.wait()
    pipeline.drain()
    return losses


def summary(program: Program, found: Figures, number: int) -> Step:
    """What is reported of one round."""
    schedule = program.schedule
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    devices = schedule.devices if world > 1 else 1
    rows = (program.plan.graph.rows or 1) * (schedule.microbatches - schedule.first)
    return Step(
        step=number,
        loss=found.loss,
        samples_per_second=rows / found.seconds,
        bubble=max(0.0, 1 - found.busy / (found.seconds * devices)),
        seconds=found.seconds,
        skipped=found.skipped,
    )


Tensors = dict[str, torch.Tensor]


def infer(pipeline: Rounds, rounds: int, observers: Iterable[Observer] = ()) -> Tensors | None:
    """Run rounds of an inference schedule and keep the outputs; all ranks must call alike.

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


def check_tensors(path: Path | None) -> None:
    """See that tensors may be written here, before there are any.

    Raises:
        PipecError: No file can be written here, or another ending (``/dev/null`` has none).
    """
    check_output(path)
    if path is not None and path.suffix not in FORMATS:
        raise PipecError("no such format", got=path, want=" ".join(FORMATS))


def save_tensors(outputs: Tensors, path: Path) -> None:
    """Write tensors by name, as the ending says: safetensors, NumPy, or torch's state dict.

    The file appears whole or not at all: one that was there stays if this one cannot be written.

    Raises:
        PipecError: Another ending, a dtype that NumPy does not know, or a full disk.
    """
    check_tensors(path)
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
