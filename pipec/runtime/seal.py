"""What makes a checkpoint safe to read: a digest of every file, and metadata that runs no code.

```text
round-20/sha256.json     {"round": 20, "model": "8d10...", "seal": "77e1...",
                          "files": {".metadata": "9f2c...", "0/__0_0.distcp": "51ab...", ...}}
```

The seal is a digest of all the rest of that file.
"""

import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from pipec.errors import PlanError
from pipec.graph.torch_private import CHECKPOINT_METADATA

_SEAL = "sha256.json"


@dataclass(frozen=True)
class Seal:
    """What is known of a checkpoint without reading it.

    Attributes:
        files: Path under the checkpoint to digest.
        round: The round before which it was made; None of what one rank alone wrote.
        model: Digest of the model that it belongs to.
    """

    files: Mapping[str, str]
    round: int | None = None
    model: str | None = None

    def check_belongs(self, place: Path, number: int, model: str) -> None:
        """Refuse a checkpoint that bears another round's name, or is of another model.

        Raises:
            PlanError: It is such a checkpoint.
        """
        for what, got, want in (("round", self.round, number), ("model", self.model, model)):
            if got != want:
                told = f"the checkpoint is of another {what}"
                raise PlanError(told, where=place, got=got, want=want)

    def write(self, place: Path) -> None:
        """Write it into a directory."""
        told = asdict(self)
        text = json.dumps({**told, "seal": _sealed(told)}, indent=1)
        (place / _SEAL).write_text(text, encoding="utf-8")


def digests(place: Path) -> dict[str, str]:
    """The digest of every file that lies in a directory, by name."""
    return {p.name: _digest(p) for p in sorted(place.iterdir()) if p.is_file() and p.name != _SEAL}


def read_seal(place: Path) -> Seal:
    """The seal of a directory.

    Raises:
        PlanError: There is none, or it is not as it was written.
    """
    try:
        told = json.loads((place / _SEAL).read_text(encoding="utf-8"))
        seal, found = told.pop("seal"), Seal(**told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError("a checkpoint has no digests", where=place / _SEAL, got=error) from error
    if seal != _sealed(told):
        raise PlanError("the checkpoint is damaged", where=place / _SEAL, got="another seal")
    return found


def check_files(place: Path, seal: Seal, files: Iterable[str]) -> None:
    """Compare files with their digests.

    Raises:
        PlanError: A file is missing, or not what was written.
    """
    for name in files:
        path = place / name
        got, want = _digest(path) if path.is_file() else "no such file", seal.files.get(name)
        if got != want:
            raise PlanError(
                "the checkpoint is damaged",
                where=path,
                got=got if want is None or len(got) != len(want) else f"sha256 {got[:12]}",
                want="a file that was sealed" if want is None else f"sha256 {want[:12]}",
            )


def _sealed(told: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class MetadataWriter(FileSystemWriter):
    """torch's writer, without the path in the metadata: checkpoints may be moved."""

    def storage_meta(self) -> StorageMeta | None:
        """Nothing."""
        return None


class MetadataReader(FileSystemReader):
    """torch's reader, but for the pickle of the metadata: it makes what describes tensors alone."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of a checkpoint.

        Raises:
            PlanError: It holds something else, such as code.
        """
        del args, kwargs
        with (Path(self.path) / ".metadata").open("rb") as file:
            found = _Plain(file).load()
        if not isinstance(found, Metadata):
            raise PlanError("this is no metadata", where=self.path, got=type(found).__name__)
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A class that metadata may name.

        Raises:
            PlanError: Any other.
        """
        found = getattr(torch, name, None) if module == "torch" else None
        if found is torch.Size or isinstance(found, torch.dtype):
            return found
        if (module, name) in CHECKPOINT_METADATA:
            return super().find_class(module, name)
        raise PlanError(
            "metadata of a checkpoint may only describe tensors", got=f"{module}.{name}"
        )
