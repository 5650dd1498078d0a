"""Checkpoints between rounds: asynchronous, complete or not there, readable by any cut.

```text
<directory>/round-20/        written as round-20.part by torch.distributed.checkpoint, then renamed
<directory>/round-40/
```

Between rounds no microbatch is under way and every stage has one version: all ranks together are
a consistent cut. Reading goes through torch.distributed.checkpoint, which unpickles its metadata:
read only checkpoints that you trust.
"""

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from pipec.errors import PlanError
from pipec.runtime.executor import Executor
from pipec.runtime.process_group import answered, located, new_group
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
        self._pending: tuple[Future[Any], Path] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        """Copy the state now and write it in the background; all ranks must call.

        Raises:
            BackendError: Another rank did not answer.
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
        with _quiet(), self._answered("all ranks to begin a checkpoint"):
            if self._distributed:
                future: Any = state_dict_saver.async_save(
                    entries, checkpoint_id=place, process_group=self._group
                )
                self._pending = future, place
            else:
                state_dict_saver.save(entries, checkpoint_id=place, no_dist=True)
                self._complete(place)

    def wait(self) -> None:
        """Wait for the last `save` and give it its name; all ranks must call.

        Raises:
            BackendError: Another rank did not answer.
        """
        if self._pending is None:
            return
        future, place = self._pending
        self._pending = None
        with _quiet(), self._answered("the checkpoint of all ranks"):
            _result(future)
        self._barrier()
        if self._leads:
            self._complete(place)
        self._barrier()

    def _complete(self, place: Path) -> None:
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

    @contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        number = self._executors[0].round
        with located(lambda: f"round {number}, at the checkpoint before it"), answered(what):
            yield

    @property
    def _leads(self) -> bool:
        return not self._distributed or dist.get_rank() == 0

    def _barrier(self) -> None:
        if self._distributed:
            with self._answered("all ranks at a checkpoint"):
                dist.barrier(self._group)


def _result(future: Future[Any]) -> None:
    """Wait; torch tells the failure of any rank by an exception that is none of `Exception`."""
    try:
        future.result()
    except CheckpointException as error:
        raise RuntimeError(str(error)) from error


def _read(place: Path, executors: list[Executor]) -> dict[str, torch.Tensor]:
    try:
        listed = FileSystemReader(place).read_metadata().state_dict_metadata
        entries = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in listed.items()
            if isinstance(found, TensorStorageMetadata) and any(wanted(e, name) for e in executors)
        }
        with _quiet():
            state_dict_loader.load(entries, checkpoint_id=place, no_dist=True)
    except (OSError, RuntimeError, AttributeError, CheckpointException) as error:
        raise PlanError("the checkpoint cannot be read", where=place, got=error) from error
    return entries


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute that a checkpoint is written or read by one process alone, which is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
