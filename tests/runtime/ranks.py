"""What ranks of tests do; imported once by the server that they are forked from."""

import gc
import itertools
import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file

from pipec.compiler.endless import endless
from pipec.errors import PipecError
from pipec.graph.ir import InputKind, tensor
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.metrics import Step
from pipec.runtime.train import train
from tests.runtime.processes import Death

PATIENCE = timedelta(minutes=10)
"""What ranks wait for others where none is expected to die: longer than any machine is busy."""
STARTED = timedelta(seconds=12)
"""In which all ranks start, however short they wait afterwards."""

torch.set_num_threads(1)


def settings() -> Settings:
    return Settings(
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=100),
        seed=3,
    )


def data(plan: Plan) -> Batch:
    """Random numbers for the inputs of a plan, small integers for targets."""
    graph = plan.graph
    types = {i.name: tensor(graph.node(i.node)) for i in graph.inputs_of(InputKind.INPUT)}

    def batch(number: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(number)
        return {
            n: torch.randn(t.shape, generator=g)
            if t.is_floating_point()
            else torch.randint(0, 2, t.shape, generator=g)
            for n, t in types.items()
        }

    return batch


def trained(
    directory: Path,
    rounds: int,
    timeout: timedelta = PATIENCE,
    death: Death | None = None,
    living: int = 0,
) -> dict[str, torch.Tensor] | None:
    """Train with a checkpoint after every round; all weights on rank 0.

    Args:
        directory: Holds the plan and gets the checkpoints.
        rounds: How many.
        timeout: How long to wait for another rank once all have started.
        death: Armed once the group stands, or later.
        living: Rounds before it is armed.
    """
    plan, lived = load_plan(directory / "out"), itertools.count()

    def arm(_: Step | None = None) -> None:
        if next(lived) == living and death is not None:
            death.arm()

    with process_group(max(timeout, STARTED)):
        arm()
        pipeline = DistributedPipeline(
            plan, data(plan), settings(), schedule=endless(plan), timeout=timeout
        )
        saved = Checkpoints(directory / "saved", pipeline.executors, timeout=timeout)
        train(pipeline, rounds, [arm], checkpoints=saved, every=1)
        return pipeline.state_dict()


def survives(directory: Path, rounds: int, kills: list[tuple[int, int | None, int]]) -> None:
    """Attempt k dies where ``kills[k]`` says; the last one writes ``end.safetensors``.

    Args:
        directory: Holds the plan and gets checkpoints and a log of deaths.
        rounds: How many.
        kills: Per attempt the rank that dies, the rounds that this attempt lives (None: its calls
            count from the start of the process), and the number of calls until it dies.
    """
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    death, living = None, 0
    if attempt < len(kills) and kills[attempt][0] == int(os.environ["RANK"]):
        _, lives, calls = kills[attempt]
        death = Death(calls, directory / "deaths")
        if lives is None:
            death.arm()
            death = None
        living = lives or 0
    weights = trained(directory, rounds, death=death, living=living)
    if weights is not None:
        save_file({n: w.clone() for n, w in weights.items()}, directory / "end.safetensors")


def soaked(directory: Path, rounds: int) -> list[dict[str, int]]:
    """What this process holds after a third of the rounds and after all, none of it being saved."""
    plan, found = load_plan(directory / "out"), list[dict[str, int]]()
    with process_group(PATIENCE):
        pipeline = DistributedPipeline(plan, data(plan), settings(), schedule=endless(plan))
        saved = Checkpoints(directory / "saved", pipeline.executors)

        def note(step: Step) -> None:
            if step.step + 1 in (rounds // 3, rounds):
                saved.wait()
                gc.collect()
                held = gc.get_objects()
                tensors = sum(t.nbytes for t in held if type(t) is torch.Tensor)
                found.append({
                    "tasks": len([*Path("/proc/self/task").iterdir()]),
                    "descriptors": len([*Path("/proc/self/fd").iterdir()]),
                    "tensors": tensors,
                    "objects": len(held),
                })  # fmt: skip

        train(pipeline, rounds, [note], checkpoints=saved, every=10)
    return found


def left_alone(
    directory: Path, victim: int, living: int, calls: int, number: int, timeout: timedelta
) -> None:
    """One rank gets a signal; the others write what they say to ``says<rank>``.

    Args:
        directory: Holds the plan.
        victim: The rank.
        living: Rounds that it lives; 0 for none.
        calls: Python calls that it makes after these.
        number: The signal.
        timeout: How long the others wait for it.
    """
    rank = int(os.environ["RANK"])
    death = Death(calls, directory / "deaths", number) if rank == victim else None
    try:
        trained(directory, 10_000, timeout, death, living)
    except PipecError as error:
        (directory / f"says{rank}").write_text(str(error))
        raise SystemExit(1) from error


def stopped(directory: Path, victim: int, number: int, timeout: timedelta) -> None:
    """One rank stops where it reads a microbatch; the others write what they say."""
    rank, plan = int(os.environ["RANK"]), load_plan(directory / "out")
    given = data(plan)

    def batch(k: int) -> Mapping[str, torch.Tensor]:
        if rank == victim and k == number:
            os.kill(os.getpid(), signal.SIGSTOP)
        return given(k)

    try:
        with process_group(max(timeout, STARTED)):
            train(DistributedPipeline(plan, batch, settings(), timeout=timeout), 10)
    except PipecError as error:
        (directory / f"says{rank}").write_text(str(error))
