"""What makes a checkpoint safe to read: a digest of every file, and of the record about them.

```text
round-20/sha256.json    {"round": 20, "model": "8d10...", "seal": "77e1...", "files":
                         {"0.safetensors": {"sha256": "51ab...", "entries": ["run", ...]}}}
```

The seal is a digest of all the rest of that file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from pipec.errors import PlanError
from pipec.plan.manifest import sha256_of

_SEAL = "sha256.json"


class Sealed(TypedDict):
    """What is known of a file: its digest, and the names of the tensors in it."""

    sha256: str
    entries: list[str]


def write_seal(place: Path, files: Mapping[str, Sealed], number: int, model: str) -> None:
    """Seal a directory.

    Args:
        place: The directory.
        files: What is in it.
        number: The round before which it was made.
        model: Digest of the model that it belongs to.
    """
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
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
