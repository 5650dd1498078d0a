"""Checkpoints between rounds: asynchronous, complete or not there, readable by any cut.

```text
<directory>/round-20/            written as round-20.part, then renamed
<directory>/round-20/.metadata   of all ranks together: one torch.distributed.checkpoint
<directory>/round-20/sha256.json a digest of every file, the round and the model
<directory>/round-20/1/          what rank 1 wrote
<directory>/round-40/
```

Between rounds no microbatch is under way and every stage has one version: all ranks together are
a consistent cut. In the background every rank writes to a folder of its own and waits for nobody,
so that no death can hold a survivor there; ranks meet in `Checkpoints.wait` alone. Reading checks
the digests, the round and the model, and runs no code (`pipec.runtime.seal`); what is not good is
passed over for the newest one that is.
"""

import dataclasses
import pickle
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from pipec.errors import PipecError, PlanError
from pipec.runtime.agreement import exchange
from pipec.runtime.executor import Executor
from pipec.runtime.identity import model_of
from pipec.runtime.metrics import tell
from pipec.runtime.process_group import new_group
from pipec.runtime.seal import (
    MetadataReader,
    MetadataWriter,
    Seal,
    check_files,
    digests,
    read_seal,
)
from pipec.runtime.state import first_unsound, restore, state_of, wanted
from pipec.runtime.waiting import located

_PREFIX, _PART = "round-", ".part"


class Checkpoints:
    """Saves and finds checkpoints of the executors in this process.

    What cannot be written, or read, is told in a line; training goes on.

    Args:
        directory: Where they are; it is made if it is not there.
        executors: One in each process of a group, or all of a plan in one process.
        keep: How many complete ones to keep.
        timeout: How long to wait for another rank.
        tell: Takes the lines, on the first rank.

    Attributes:
        failed: Whether the last one could not be written.
    """

    def __init__(
        self,
        directory: Path,
        executors: list[Executor],
        keep: int = 2,
        timeout: timedelta = timedelta(minutes=5),
        tell: Callable[[str], None] = tell,
    ) -> None:
        self._directory, self._executors, self._keep = directory, executors, keep
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = new_group(None, timeout) if self._distributed else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Future[None], Path, int] | None = None
        self._model = model_of(executors[0].program.plan.graph)
        self._tell, self.failed = tell, False
        directory.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        """Copy the state now and write it in the background; all ranks must call.

        A state that is not finite is not saved.

        Raises:
            BackendError: Another rank did not answer.
        """
        self.wait()
        entries: dict[str, torch.Tensor] = {}
        unsound = None
        for e in reversed(self._executors):
            state = state_of(e)
            unsound = unsound or first_unsound(e, state)
            entries |= {name: t.detach().clone() for name, t in state.items()}
        number = self._executors[0].round
        place = self._directory / f"{_PREFIX}{number}{_PART}"
        if self._leads:
            shutil.rmtree(place, ignore_errors=True)
        if bad := self._first(unsound):
            self._say(f"no checkpoint is made before round {number}: {bad} is not finite")
        else:
            future = self._writer.submit(_write, entries, place / str(self._rank))
            self._pending = future, place, number

    def wait(self) -> None:
        """Wait for the last `save` and give it its name; all ranks must call.

        Raises:
            BackendError: Another rank did not answer.
        """
        if self._pending is None:
            return
        future, place, number = self._pending
        self._pending = None
        bad = self._first(_attempt(future.result))
        if not bad:
            mine = _attempt(self._complete, place, number) if self._leads else None
            bad = self._first(mine)
        self.failed = bad is not None
        if bad:
            self._say(f"no checkpoint is made before round {number}: {bad}")
            if self._leads:
                shutil.rmtree(place, ignore_errors=True)

    def _complete(self, place: Path, number: int) -> None:
        _merge(place, number, self._model)
        final = place.with_name(place.name.removesuffix(_PART))
        if final.exists():
            shutil.rmtree(final)
        place.rename(final)
        before = [r for r in self.complete() if r <= number]
        good = [r for r in before if _attempt(self._seal, r) is None]
        for old in (r for r in before if r < good[-self._keep :][0]):
            shutil.rmtree(self._directory / f"{_PREFIX}{old}")

    def complete(self) -> list[int]:
        """Rounds of which there is a complete checkpoint, ascending."""
        names = [p.name.removeprefix(_PREFIX) for p in self._directory.glob(f"{_PREFIX}*")]
        return sorted(int(n) for n in names if n.isdigit())

    def resume(self) -> int:
        """Continue from the newest good checkpoint; all ranks must call.

        Returns:
            The round to run next: 0 where there is no checkpoint.

        Raises:
            PlanError: All are of another model, or damaged: the newest one's reason.
        """
        self._first(None)
        reasons: list[str] = []
        for number in reversed(self.complete()):
            entries: dict[str, torch.Tensor] = {}
            bad = self._first(_attempt(self._read, number, entries))
            if bad is None:
                if reasons:
                    self._say(f"going on from {_PREFIX}{number}: {reasons[0]}")
                for e in self._executors:
                    restore(e, entries)
                self._first(None)
                return number
            reasons.append(bad)
        if reasons:
            raise PlanError("there is no good checkpoint", where=self._directory, got=reasons[0])
        return 0

    def _seal(self, number: int) -> Seal:
        place = self._directory / f"{_PREFIX}{number}"
        seal = read_seal(place)
        seal.check_belongs(place, number, self._model)
        return seal

    def _read(self, number: int, entries: dict[str, torch.Tensor]) -> None:
        seal = self._seal(number)
        entries |= _read(self._directory / f"{_PREFIX}{number}", seal, self._executors)

    @property
    def _rank(self) -> int:
        return dist.get_rank() if self._distributed else 0

    @property
    def _leads(self) -> bool:
        return self._rank == 0

    def _say(self, line: str) -> None:
        if self._leads:
            self._tell(line)

    def _first(self, mine: str | None) -> str | None:
        """What the first rank said that said anything; all ranks meet here."""
        number = self._executors[0].round
        with located(lambda: f"round {number}, at the checkpoint before it"):
            return next((said for said in exchange(mine, self._group) if said is not None), None)


def _attempt(do: Callable[..., object], *args: object) -> str | None:
    """Do something with files; why it failed, in one line."""
    try:
        do(*args)
    except PipecError as error:
        facts = (error.what, error.where, error.got, error.want and f"want {error.want}")
        return ": ".join(" ".join(str(f).split()) for f in facts if f is not None)
    except OSError as error:
        return str(error)
    return None


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
        Seal(digests(place)).write(place)
    except (OSError, RuntimeError) as error:
        raise PlanError("a checkpoint cannot be written", where=place, got=error) from error


def _merge(place: Path, number: int, model: str) -> None:
    """Make what the ranks wrote, each into its folder, one checkpoint."""
    whole = Metadata({}, planner_data={}, storage_data={})
    sealed: dict[str, str] = {}
    for part in sorted(place.iterdir()):
        sealed |= {f"{part.name}/{file}": digest for file, digest in read_seal(part).files.items()}
        mine = MetadataReader(part).read_metadata()
        whole.version = mine.version
        whole.state_dict_metadata |= mine.state_dict_metadata
        whole.planner_data |= mine.planner_data
        whole.storage_data |= {
            index: dataclasses.replace(found, relative_path=f"{part.name}/{found.relative_path}")
            for index, found in mine.storage_data.items()
        }
    (place / ".metadata").write_bytes(pickle.dumps(whole))
    Seal(sealed | digests(place), number, model).write(place)


def _read(place: Path, seal: Seal, executors: list[Executor]) -> dict[str, torch.Tensor]:
    check_files(place, seal, [".metadata"])
    try:
        reader = MetadataReader(place)
        metadata = reader.read_metadata()
        entries = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in metadata.state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata) and any(wanted(e, name) for e in executors)
        }
        stored = metadata.storage_data.items()
        files = {f.relative_path: None for index, f in stored if index.fqn in entries}
        check_files(place, seal, files)
        with warnings.catch_warnings(action="ignore"):  # that one process reads alone is meant
            state_dict_loader.load(entries, storage_reader=reader, no_dist=True)
    except (OSError, RuntimeError, AttributeError, CheckpointException) as error:
        raise PlanError("the checkpoint cannot be read", where=place, got=error) from error
    return entries
