"""The training loop around rounds of a schedule: what is reported, and when."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist

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

    Args:
        pipeline: The pipeline whose schedule runs.
        numbers: Numbers of the rounds to run.
        observers: Called after every round.

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
    """What is reported of one round.

    Args:
        program: What ran.
        found: Figures of the round.
        number: Number of the round.
    """
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
