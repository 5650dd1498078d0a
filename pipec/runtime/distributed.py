"""One process per device, under ``torchrun``."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pipec.errors import BackendError
from pipec.plan.model import Plan
from pipec.runtime.device import backend_for, device_of, local_device
from pipec.runtime.executor import Batch, Executor, Result, Settings, deadlock
from pipec.runtime.host_memory import keep_freed_memory
from pipec.runtime.local import gather
from pipec.runtime.placing import links
from pipec.runtime.process_group import ProcessGroupTransport, answered, located
from pipec.runtime.program import Program
from pipec.schedule.schedule import Schedule


@contextmanager
def process_group(timeout: timedelta = timedelta(minutes=5), device: str = "auto") -> Iterator[int]:
    """Join the group that ``torchrun`` has prepared; yields the rank, and leaves at the end.

    Args:
        timeout: How long any rank waits for another.
        device: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` where there is one. GPUs are connected
            by NCCL where every rank has its own (`pipec.runtime.device`). On the CPU the process
            keeps the memory that it frees (`pipec.runtime.host_memory`).

    Raises:
        BackendError: The process was not started by ``torchrun``.
    """
    if "RANK" not in os.environ:
        raise BackendError(
            "this process is no rank of a group",
            hint="start it with: torchrun --nproc-per-node <devices> ...",
        )
    mine = local_device(device)
    if mine == "cpu":
        keep_freed_memory()
    else:
        torch.cuda.set_device(mine)
    with answered("all ranks to start"):
        store, rank, world = next(iter(rendezvous("env://", timeout=timeout)))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        fresh = PrefixStore(f"attempt {attempt}", store)  # no addresses of ranks that died
        dist.init_process_group(
            backend_for(mine), store=fresh, rank=rank, world_size=world, timeout=timeout
        )
    try:
        with located(lambda: "outside the rounds"):
            yield dist.get_rank()
            with answered("all ranks to end"):
                dist.barrier()  # nobody leaves while another still sends
    finally:
        dist.destroy_process_group()


class DistributedPipeline:
    """This rank's part of a plan.

    Args:
        plan: A plan with a schedule for as many devices as there are ranks.
        batch: Inputs of a microbatch by its number, the same on every rank.
        settings: Optimizer and so on, the same on every rank.
        schedule: Another schedule for the same stages.
        weights: Initial weights by name; those of the plan if absent.
        timeout: How long to wait for another rank.
        device: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` where there is one.

    Raises:
        BackendError: The number of ranks does not fit.
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        settings: Settings | None = None,
        *,
        schedule: Schedule | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        timeout: timedelta = timedelta(minutes=5),
        device: str = "auto",
    ) -> None:
        self.program = Program.of(plan, schedule)
        world = dist.get_world_size()
        if world != self.program.schedule.devices:
            raise BackendError(
                "the number of ranks is not the number of devices",
                got=f"{world} ranks",
                want=f"{self.program.schedule.devices} (one per row of the schedule)",
                hint=f"torchrun --nproc-per-node {self.program.schedule.devices} ...",
            )
        compute = device_of(local_device(device))
        self._nccl = compute.torch.type != "cpu" and "nccl" in dist.get_backend_config()
        self._transport = transport = ProcessGroupTransport(compute.torch, (), timeout=timeout)
        self._connect()
        source = plan.graph.weights if weights is None else weights
        self.executor = Executor(
            self.program, dist.get_rank(), transport, batch, settings or Settings(), source, compute
        )
        self.executors = [self.executor]

    def load(self, schedule: Schedule) -> None:
        """Continue with another schedule of the same devices; all ranks must call."""
        self.program = Program.of(self.program.plan, schedule)
        self._connect()
        self.executor.load(self.program)

    def _connect(self) -> None:
        apart = links(self.program) if self._nccl else ()
        self._transport.connect(self.program.groups(), apart)

    def round(self) -> Result:
        """Run this rank's row once.

        Raises:
            BackendError: Another rank did not answer in time.
        """
        mine = self.executor
        with located(lambda: f"round {mine.round}, at {mine.next_action or 'the end'}"):
            mine.start()
            while not mine.finished:
                if not mine.advance():
                    raise deadlock([mine])
            return mine.end()

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """All weights under their original names on rank 0, None elsewhere. All ranks must call."""
        parts = collected(self.executor.state_dict())
        return None if parts is None else gather(parts, self.program.plan)

    def outputs(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """What all ranks found on rank 0, None elsewhere. All ranks must call."""
        parts = collected(found)
        return None if parts is None else {n: t for part in parts for n, t in part.items()}


def collected(mine: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]] | None:
    """The tensors of every rank on rank 0, in host memory; None elsewhere.

    Raises:
        BackendError: Another rank did not answer.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    parts: list[dict[str, torch.Tensor]] | None = None if rank else [{} for _ in range(world)]
    with answered("the tensors of all ranks"):
        dist.gather_object({n: t.cpu() for n, t in mine.items()}, parts)
    return parts
