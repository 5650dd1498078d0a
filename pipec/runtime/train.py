"""The training loop around rounds of a schedule: what is told, and when."""

import math
import time
from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist

from pipec.graph.ir import InputKind, tensor
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Result
from pipec.runtime.metrics import Observer, Step
from pipec.runtime.process_group import answered, located
from pipec.runtime.program import Program


class Pipeline(Protocol):
    """What `LocalPipeline` and `DistributedPipeline` have in common."""

    program: Program

    def round(self) -> Result:
        """Run the schedule once."""


def train(
    pipeline: Pipeline,
    rounds: int,
    observers: Iterable[Observer] = (),
    *,
    checkpoints: Checkpoints | None = None,
    every: int = 100,
) -> list[float]:
    """Run rounds and tell observers about each.

    Every rank of a group must call it with the same rounds; the figures are the same on all of
    them, so that it is enough to observe on one.

    Args:
        pipeline: Whose schedule to run.
        rounds: How many, those before the checkpoint included.
        observers: Called after every round.
        checkpoints: Where to continue from, and to save to.
        every: Rounds between checkpoints.

    Returns:
        The mean loss of every round that was run.
    """
    observers = list(observers)
    losses = []
    first = checkpoints.resume() if checkpoints else 0
    for number in range(first, rounds):
        begin = time.perf_counter()
        result = pipeline.round()
        step = summary(pipeline.program, result, number, time.perf_counter() - begin)
        losses.append(math.nan if step.loss is None else step.loss)
        for observe in observers:
            observe(step)
        if checkpoints and ((number + 1) % every == 0 or number + 1 == rounds):
            checkpoints.save()
    if checkpoints:
        checkpoints.wait()
    return losses


def summary(program: Program, result: Result, number: int, seconds: float) -> Step:
    """The figures of one round, over all ranks; all of them must call.

    Args:
        program: What ran.
        result: What this process has seen.
        number: Of the round.
        seconds: Wall time here.

    Raises:
        BackendError: Another rank did not answer.
    """
    schedule = program.schedule
    sums = [float(sum(result.losses.values())), float(len(result.losses)), result.busy, seconds]
    figures = torch.tensor(sums, dtype=torch.float64)
    ranks = 1
    if dist.is_available() and dist.is_initialized():
        where = f"round {number}, at its figures"
        with located(lambda: where), answered("the figures of all ranks"):
            dist.all_reduce(figures)
        ranks = dist.get_world_size()
    loss, count, busy, total = figures.tolist()
    seconds = total / ranks
    devices = schedule.devices if ranks > 1 else 1
    return Step(
        step=number,
        loss=loss / count if count else None,
        samples_per_second=_rows(program) * schedule.microbatches / seconds,
        bubble=max(0.0, 1 - busy / (seconds * devices)),
        seconds=seconds,
    )


def _rows(program: Program) -> int:
    """Samples per microbatch: the first dimension of the first input that has one."""
    graph = program.plan.graph
    shapes = [tensor(graph.node(i.node)).shape for i in graph.inputs_of(InputKind.INPUT)]
    return next((int(s[0]) for s in shapes if len(s)), 1)
