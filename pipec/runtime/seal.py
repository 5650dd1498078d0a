"""What makes a checkpoint safe to read: a digest of every file, and of what is said about them.

```text
round-20/sha256.json    {"round": 20, "model": "8d10...", "seal": "77e1...", "files":
                         {"0.safetensors": {"sha256": "51ab...", "entries": ["run", ...]}}}
```

The seal is a digest of all the rest of that file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from pipec.errors import PlanError

_SEAL = "sha256.json"


class Sealed(TypedDict):
    """What is known of a file: its digest, and the names of the tensors in it."""

    sha256: str
    entries: list[str]


@dataclass(frozen=True)
class Seal:
    """What is known of a checkpoint without reading it.

    Attributes:
        files: By their names in the checkpoint.
        round: The round before which it was made.
        model: Digest of the model that it belongs to.
    """

    files: Mapping[str, Sealed]
    round: int
    model: str

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


def read_seal(place: Path) -> Seal:
    """The seal of a directory.

    Raises:
        PlanError: There is none, or it is not as it was written.
    """
    try:
        told = json.loads((place / _SEAL).read_text(encoding="utf-8"))
        seal, found = told.pop("seal"), Seal(**told)
        _ = [(file["sha256"], file["entries"]) for file in found.files.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError("a checkpoint has no digests", where=place / _SEAL, got=error) from error
    if seal != _sealed(told):
        raise PlanError("the checkpoint is damaged", where=place / _SEAL, got="another seal")
    return found


def check_file(path: Path, want: str) -> None:
    """Compare a file with its digest.

    Raises:
        PlanError: It is missing, or not what was written.
    """
    got = file_digest(path) if path.is_file() else None
    if got != want:
        told = f"sha256 {got[:12]}" if got else "no such file"
        want = f"sha256 {want[:12]}"
        raise PlanError("the checkpoint is damaged", where=path, got=told, want=want)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sealed(told: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
