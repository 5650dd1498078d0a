"""Checkpoints between rounds: asynchronous, complete or not there, readable by any cut.

```text
<directory>/round-20/            written as round-20.part, then renamed
<directory>/round-20/.metadata   of all ranks together: one torch.distributed.checkpoint
<directory>/round-20/sha256.json a digest of every file
<directory>/round-20/1/          what rank 1 wrote
<directory>/round-40/
```

Between rounds no microbatch is under way and every stage has one version: all ranks together are
a consistent cut. In the background every rank writes to a folder of its own and waits for nobody,
so that no death can hold a survivor there; ranks meet in `Checkpoints.wait` alone. Reading checks
the digests, and runs no code (`pipec.runtime.seal`).
"""

import dataclasses
import pickle
import shutil
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from pipec.errors import PlanError
from pipec.runtime.executor import Executor
from pipec.runtime.process_group import answered, located, new_group
from pipec.runtime.seal import (
    MetadataReader,
    MetadataWriter,
    check_sealed,
    digests,
    read_seal,
    write_seal,
)
from pipec.runtime.state import restore, state_of, wanted

_PREFIX, _PART = "round-", ".part"


class Checkpoints:
    """Saves and finds checkpoints of the executors in this process.

    Args:
        directory: Where they are; it is made if it is not there.
        executors: One in each process of a group, or all of a plan in one process.
        keep: How many complete ones to keep.
        timeout: How long to wait for another rank.
    """

    def __init__(
        self,
        directory: Path,
        executors: list[Executor],
        keep: int = 2,
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        self._directory, self._executors, self._keep = directory, executors, keep
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = new_group(None, timeout) if self._distributed else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Future[None], Path] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        """Copy the state now and write it in the background; all ranks must call.

        Raises:
            BackendError: Another rank did not answer.
            PlanError: The checkpoint before cannot be written.
        """
        self.wait()
        entries = {
            name: t.detach().clone()
            for e in reversed(self._executors)
            for name, t in state_of(e).items()
        }
        place = self._directory / f"{_PREFIX}{self._executors[0].round}{_PART}"
        if self._leads and place.exists():
            shutil.rmtree(place)
        self._barrier()
        self._pending = self._writer.submit(_write, entries, place / str(self._rank)), place

    def wait(self) -> None:
        """Wait for the last `save` and give it its name; all ranks must call.

        Raises:
            BackendError: Another rank did not answer.
            PlanError: It cannot be written.
        """
        if self._pending is None:
            return
        future, place = self._pending
        self._pending = None
        future.result()
        self._barrier()
        if self._leads:
            self._complete(place)
        self._barrier()

    def _complete(self, place: Path) -> None:
        _merge(place)
        final = place.with_name(place.name.removesuffix(_PART))
        if final.exists():
            shutil.rmtree(final)
        place.rename(final)
        for old in self.complete()[: -self._keep]:
            shutil.rmtree(self._directory / f"{_PREFIX}{old}")

    def complete(self) -> list[int]:
        """Rounds of which there is a complete checkpoint, ascending."""
        names = [p.name.removeprefix(_PREFIX) for p in self._directory.glob(f"{_PREFIX}*")]
        return sorted(int(n) for n in names if n.isdigit())

    def resume(self) -> int:
        """Continue from the newest complete checkpoint; all ranks must call.

        Returns:
            The round to run next: 0 where there is no checkpoint.

        Raises:
            PlanError: The checkpoint is of another model, or damaged.
        """
        self._barrier()
        rounds = self.complete()
        if not rounds:
            return 0
        place = self._directory / f"{_PREFIX}{rounds[-1]}"
        entries = _read(place, self._executors)
        for e in self._executors:
            restore(e, entries)
        self._barrier()
        return rounds[-1]

    @property
    def _rank(self) -> int:
        return dist.get_rank() if self._distributed else 0

    @property
    def _leads(self) -> bool:
        return self._rank == 0

    def _barrier(self) -> None:
        if self._distributed:
            number = self._executors[0].round
            where = f"round {number}, at the checkpoint before it"
            with located(lambda: where), answered("all ranks at a checkpoint"):
                dist.barrier(self._group)


def _write(entries: dict[str, torch.Tensor], place: Path) -> None:
    """What `torch.distributed.checkpoint.save` does, of this process alone and without a warning.

    Filters of warnings belong to all threads: one in the background must not set them.
    """
    try:
        planner, writer = DefaultSavePlanner(), MetadataWriter(place)
        planner.set_up_planner(entries, is_coordinator=True)
        writer.set_up_storage_writer(is_coordinator=True)
        plans, metadata = planner.create_global_plan([planner.create_local_plan()])
        (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(plan) for plan in plans])
        results = writer.write_data(planner.finish_plan(plan), planner)
        results.wait()
        writer.finish(metadata, [results.value()])
        write_seal(place, digests(place))
    except (OSError, RuntimeError) as error:
        raise PlanError("a checkpoint cannot be written", where=place, got=error) from error


def _merge(place: Path) -> None:
    """Make what the ranks wrote, each into its folder, one checkpoint."""
    whole = Metadata({}, planner_data={}, storage_data={})
    sealed: dict[str, str] = {}
    for part in sorted(place.iterdir()):
        sealed |= {f"{part.name}/{file}": digest for file, digest in read_seal(part).items()}
        mine = MetadataReader(part).read_metadata()
        whole.version = mine.version
        whole.state_dict_metadata |= mine.state_dict_metadata
        whole.planner_data |= mine.planner_data
        whole.storage_data |= {
            index: dataclasses.replace(found, relative_path=f"{part.name}/{found.relative_path}")
            for index, found in mine.storage_data.items()
        }
    (place / ".metadata").write_bytes(pickle.dumps(whole))
    write_seal(place, sealed | digests(place))


def _read(place: Path, executors: list[Executor]) -> dict[str, torch.Tensor]:
    check_sealed(place, [".metadata"])
    try:
        reader = MetadataReader(place)
        metadata = reader.read_metadata()
        entries = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in metadata.state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata) and any(wanted(e, name) for e in executors)
        }
        stored = metadata.storage_data.items()
        check_sealed(place, {f.relative_path: None for index, f in stored if index.fqn in entries})
        with warnings.catch_warnings(action="ignore"):  # that one process reads alone is meant
            state_dict_loader.load(entries, storage_reader=reader, no_dist=True)
    except (OSError, RuntimeError, AttributeError, CheckpointException) as error:
        raise PlanError("the checkpoint cannot be read", where=place, got=error) from error
    return entries
