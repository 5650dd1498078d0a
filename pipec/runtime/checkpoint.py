"""Checkpoints between rounds: asynchronous, complete or not there, readable by any cut.

```text
<directory>/round-20/               written as round-20.part, then renamed
<directory>/round-20/1.safetensors  what rank 1 wrote (`pipec.runtime.state`)
<directory>/round-20/sha256.json    {"round": 20, "model": "8d10...", "seal": "77e1...", "files":
                                     {"1.safetensors": {"sha256": "51ab...", "entries": [...]}}}
<directory>/round-40/
```

The seal is a digest of all the rest of its file. Between rounds nothing is on its way from one
device to another: all ranks together are a consistent cut. In the background every rank writes a
file of its own and waits for nobody, so that no death can hold a survivor there; ranks meet in
`Checkpoints.wait` alone. Reading checks the digests, the round and the model, and runs no code;
what is not good is passed over for the newest one that is.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipec.errors import PipecError, PlanError
from pipec.files import Lock, text_digest, unwritten
from pipec.plan.manifest import sha256_of
from pipec.runtime.agreement import exchange
from pipec.runtime.executor import Executor
from pipec.runtime.identity import model_of
from pipec.runtime.metrics import tell
from pipec.runtime.process_group import new_group
from pipec.runtime.state import first_unsound, is_wanted, list_changed, restore, state_of
from pipec.runtime.waiting import PATIENCE, locate_failure, within

_SEAL = "sha256.json"


class Sealed(TypedDict):
    """What is known of a file: its digest, and the names of the tensors in it."""

    sha256: str
    entries: list[str]


def write_seal(place: Path, files: Mapping[str, Sealed], number: int, model: str) -> None:
    """Seal a directory."""
    data = {"files": files, "round": number, "model": model}
    text = json.dumps({**data, "seal": _digest(data)}, indent=1)
    (place / _SEAL).write_text(text, encoding="utf-8")


def read_seal(place: Path, number: int, model: str) -> dict[str, Sealed]:
    """The files of a checkpoint.

    Raises:
        PlanError: They are not as they were written, bear another round's name, or are of another
            model.
    """
    try:
        data = json.loads((place / _SEAL).read_text(encoding="utf-8"))
        seal, files = data.pop("seal"), dict(data["files"])
        _ = [(file["sha256"], file["entries"]) for file in files.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError("a checkpoint has no digests", where=place / _SEAL, got=error) from error
    if seal != _digest(data):
        raise PlanError("the checkpoint is damaged", where=place / _SEAL, got="another seal")
    for what, want in (("round", number), ("model", model)):
        if (got := data.get(what)) != want:
            raise PlanError(f"the checkpoint is of another {what}", where=place, got=got, want=want)
    return files


def check_file(path: Path, want: str) -> None:
    """Compare a file with its digest.

    Raises:
        PlanError: It is missing, or not what was written.
    """
    got = sha256_of(path) if path.is_file() else "no such file"
    if got != want:
        raise PlanError("the checkpoint is damaged", where=path, got=got[:12], want=want[:12])


def _digest(data: Mapping[str, object]) -> str:
    return text_digest(json.dumps(data, sort_keys=True))


_PREFIX, _PART = "round-", ".part"


class Checkpoints:
    """Saves and finds checkpoints of the executors here: of all devices, or of one rank each.

    What cannot be written, or read, is reported in a line; training goes on.

    Attributes:
        failed: Whether the last one could not be written.
    """

    def __init__(
        self,
        directory: Path,
        executors: list[Executor],
        keep: int = 2,
        timeout: timedelta = PATIENCE,
        tell: Callable[[str], None] = tell,
    ) -> None:
        self._directory, self._executors, self._keep = directory, executors, keep
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = new_group(None, within(timeout)) if self._distributed else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Future[dict[str, Sealed]], Path, int] | None = None
        self._model = model_of(executors[0].program.plan.graph)
        self._tell, self.failed = tell, False
        self._claimed, self._passed = False, set[int]()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(directory, error, "no checkpoint can be made") from error

    def claim(self) -> None:
        """Keep other runs from saving here until this one ends; all ranks must call.

        Raises:
            PlanError: Another run saves here.
            BackendError: Another rank did not answer.
        """
        if self._claimed:
            return
        hint = "one run at a time saves in a directory: wait for it, or name another one"
        self._refuse_if(self._lock_directory, hint)
        self._claimed = True

    def _refuse_if(self, fails: Callable[[], None], hint: str) -> None:
        if bad := self._first(_attempt(fails) if self._leads else None):
            raise PlanError("no checkpoint can be made", got=bad, hint=hint)

    def _lock_directory(self) -> None:
        self._lock = Lock(self._directory)

    def _check_newest(self) -> None:
        """Refuse a directory whose newest good checkpoint would stay another run's."""
        number = self._executors[0].round
        newer = [r for r in self.complete() if r > number and r not in self._passed]
        if good := [r for r in newer if _attempt(self._seal, r) is None]:
            place, want = self._directory / f"{_PREFIX}{good[-1]}", f"none behind round {number}"
            raise PlanError("another run has saved a newer one here", where=place, want=want)

    def save(self) -> None:
        """Copy the state now and write it in the background; all ranks must call.

        A state that is not finite is not saved.

        Raises:
            PlanError: Another run saves here, or has saved a newer checkpoint.
            BackendError: Another rank did not answer.
        """
        self.wait()
        self.claim()
        self._refuse_if(self._check_newest, "resume from it, or name another directory")
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
            future = self._writer.submit(_write, entries, place / f"{self._rank}.safetensors")
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
        written: dict[str, Sealed] = {}
        bad = self._first(_attempt(lambda: written.update(future.result())))
        if not bad:
            files = {file: entry for part in self._all(written) for file, entry in part.items()}
            done = partial(self._complete, place, files, number)
            bad = self._first(_attempt(done) if self._leads else None)
        self.failed = bad is not None
        if bad:
            self._say(f"no checkpoint is made before round {number}: {bad}")
            if self._leads:
                shutil.rmtree(place, ignore_errors=True)

    def _complete(self, place: Path, files: dict[str, Sealed], number: int) -> None:
        write_seal(place, files, number, self._model)
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
                others = [restore(e, entries) for e in self._executors]
                self._first(None)
                if anew := list_changed(self._executors[0], entries):
                    self._say(f"going on with settings of this run: {'; '.join(anew)}")
                if texts := sorted({other for each in others for other in each}):
                    self._say(f"the optimizer's settings are the checkpoint's: {'; '.join(texts)}")
                return number
            reasons.append(bad)
            self._passed.add(number)
        if reasons:
            raise PlanError("there is no good checkpoint", where=self._directory, got=reasons[0])
        return 0

    def _seal(self, number: int) -> dict[str, Sealed]:
        return read_seal(self._directory / f"{_PREFIX}{number}", number, self._model)

    def _read(self, number: int, entries: dict[str, torch.Tensor]) -> None:
        for file, entry in self._seal(number).items():
            names = [n for n in entry["entries"] if any(is_wanted(e, n) for e in self._executors)]
            path = self._directory / f"{_PREFIX}{number}" / file
            if names:
                check_file(path, entry["sha256"])
                entries |= _read(path, names)

    @property
    def _rank(self) -> int:
        return dist.get_rank() if self._distributed else 0

    @property
    def _leads(self) -> bool:
        return self._rank == 0

    def _say(self, line: str) -> None:
        if self._leads:
            self._tell(line)

    def _first(self, value: str | None) -> str | None:
        """The text of the first rank that has one; all ranks meet here."""
        return next((text for text in self._all(value) if text is not None), None)

    def _all(self, value: Any) -> list[Any]:
        number = self._executors[0].round
        with locate_failure(lambda: f"round {number}, at the checkpoint before it"):
            return exchange(value, self._group)


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


def _write(entries: dict[str, torch.Tensor], file: Path) -> dict[str, Sealed]:
    """Write a file; its name to what seals it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        plain = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in entries.items()}
        pairs = {n: "pairs" for n, t in entries.items() if t.is_complex()}
        save_file({n: t.cpu().contiguous() for n, t in plain.items()}, file, pairs)
        return {file.name: {"sha256": sha256_of(file), "entries": list(entries)}}
    except (OSError, SafetensorError) as error:
        raise PlanError("a checkpoint cannot be written", where=file, got=error) from error


def _read(file: Path, names: list[str]) -> dict[str, torch.Tensor]:
    """Some tensors of a file; complex ones lie in it as pairs of real ones."""
    try:
        with safe_open(file, "pt") as found:
            pairs = found.metadata() or {}
            held = {n: found.get_tensor(n) for n in names}
    except (OSError, SafetensorError) as error:
        raise PlanError("the checkpoint cannot be read", where=file, got=error) from error
    return {n: torch.view_as_complex(t) if n in pairs else t for n, t in held.items()}
