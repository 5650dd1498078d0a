"""One process per device, under ``torchrun``."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Unpack

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from pipec.errors import BackendError
from pipec.plan.model import Plan
from pipec.runtime.agreement import agree, collect
from pipec.runtime.device import backend_for, device_of, local_device, split_gpu_blocks
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.host_memory import keep_freed_memory
from pipec.runtime.identity import digest_weights, identity, inputs_of, optimizers_of, weights_of
from pipec.runtime.placing import links
from pipec.runtime.process_group import ProcessGroupTransport
from pipec.runtime.program import Program
from pipec.runtime.rendezvous import join
from pipec.runtime.runner import LocalPipeline, Runner, RunnerArgs
from pipec.runtime.waiting import PATIENCE, Watch, call_within, locate_failure, waiting_for, within
from pipec.schedule.channels import ChannelKind
from pipec.schedule.dependencies import waits_for


@contextmanager
def process_group(timeout: timedelta = PATIENCE, device: str = "auto") -> Iterator[int]:
    """Join the group that ``torchrun`` has prepared; yields the rank, and leaves at the end.

    Args:
        timeout: In which a rank that does not answer is named, and this one ends.
        device: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` where there is one. GPUs are connected
            by NCCL where every rank has its own, and blocks of their memory are split
            (`pipec.runtime.device`). On the CPU the process keeps the memory that it frees
            (`pipec.runtime.host_memory`).

    Raises:
        BackendError: The process was not started by ``torchrun``.
    """
    if "RANK" not in os.environ:
        raise BackendError(
            "this process is no rank of a group",
            hint="start it with: torchrun --nproc-per-node <devices> ...",
        )
    local = local_device(device)
    if local == "cpu":
        keep_freed_memory()
    else:
        split_gpu_blocks()
        torch.cuda.set_device(local)
    _keep_to_one_host()
    with waiting_for("all ranks to start"):
        found = call_within(lambda: _meet(timeout), timeout.total_seconds())
        if found is None:
            raise BackendError(
                "the store where ranks meet does not answer",
                where=f"rank {os.environ['RANK']}, at the start",
                got="{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ),
                hint="check address and port of the master, and that it is running",
            )
        fresh, rank, world = found
        dist.init_process_group(
            backend_for(local), store=fresh, rank=rank, world_size=world, timeout=within(timeout)
        )
    try:
        with Watch(fresh, rank, world, timeout), locate_failure(lambda: "outside the rounds"):
            yield rank
            with waiting_for("all ranks to end"):
                dist.barrier()  # nobody leaves while another still sends
    finally:
        dist.destroy_process_group()


def _meet(timeout: timedelta) -> tuple[Store, int, int]:
    """The store of this attempt, the rank of this process and the number of ranks."""
    store, rank, world = next(iter(rendezvous("env://", timeout=timeout)))
    return join(store, rank, world, 0.9 * timeout), rank, world  # its message is the better one


def _keep_to_one_host() -> None:
    """Where all ranks are on this host, let gloo listen on the loopback device alone."""
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if alone and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


class DistributedPipeline(Runner):
    """This rank's part of a plan; batch and settings are the same on every rank.

    Raises:
        BackendError: The number of ranks does not fit, or their settings differ.
    """

    def __init__(
        self, plan: Plan, batch: Batch, settings: Settings | None = None, **more: Unpack[RunnerArgs]
    ) -> None:
        program, settings = Program.of(plan, more.get("schedule")), settings or Settings()
        weights = more.get("weights")
        agree(identity(program, settings) | digest_weights(weights))
        world = dist.get_world_size()
        if world != program.schedule.devices:
            raise BackendError(
                "the number of ranks is not the number of devices",
                got=f"{world} ranks",
                want=f"{program.schedule.devices} (one per row of the schedule)",
                hint=f"torchrun --nproc-per-node {program.schedule.devices} ...",
            )
        compute = device_of(local_device(more.get("device", "auto")))
        self._nccl = compute.torch.type != "cpu" and "nccl" in dist.get_backend_config()
        timeout = within(more.get("timeout", PATIENCE))
        self._transport = ProcessGroupTransport(compute.torch, (), timeout=timeout)
        super().__init__(
            program, [dist.get_rank()], self._transport, batch, settings, weights, compute
        )
        (executor,) = self.executors
        agree(weights_of(executor) | optimizers_of(executor) | inputs_of(executor))

    def connect(self) -> None:
        """Make the groups of ranks that the program wants; all ranks must call."""
        apart = links(self.program) if self._nccl else ()
        self._transport.connect(self.program.groups(), apart)

    @contextmanager
    def locate_failure(self) -> Iterator[None]:
        """What fails inside says where this rank was."""
        with locate_failure(lambda: f"round {self.executors[0].round}, at {self._place()}"):
            yield

    def _place(self) -> str:
        """The next action, and those of other ranks that it waits for."""
        (executor,), schedule = self.executors, self.program.schedule
        turn = executor.turn
        if turn is None:
            return "the end"
        index = int(schedule.device_ptr[executor.device]) + turn.place
        sends = {kind.send for kind in ChannelKind}
        awaited = [str(a) for a in waits_for(schedule, index) if a.kind in sends]
        return ", after ".join([str(turn.action), *awaited])

    def collect(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]] | None:
        """Tensors of every rank, on rank 0; None elsewhere. All ranks must call."""
        return collect(tensors)


def pipeline_of(
    plan: Plan, batch: Batch, settings: Settings | None = None, **more: Unpack[RunnerArgs]
) -> Runner:
    """This rank's part of a plan where there is a group of processes, else all of the plan."""
    if dist.is_initialized():
        return DistributedPipeline(plan, batch, settings, **more)
    return LocalPipeline(plan, batch, settings, **more)
