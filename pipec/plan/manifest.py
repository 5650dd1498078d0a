"""The file ``plan.json`` itself: its text, its digest, and the hashes of all files beside it."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import ValidationError, convert

from pipec.errors import PlanError, find_near, list_lines
from pipec.files import check_regular, read_data, text_digest
from pipec.graph.ir import Source
from pipec.graph.serialize import dumps

PLAN = "plan.json"
EDITABLE = ("train.py",)
"""Files that are for the user to change: they are not hashed."""
FORMAT, VERSION = "pipec.plan", 2
Record = dict[str, Any]


def write_manifest(record: Record, directory: Path) -> None:
    """Write ``plan.json``: the record, hashes of the files in ``directory``, and its own digest.

    Raises:
        PlanError: The record holds something that JSON cannot say.
        OSError: The file cannot be written.
    """
    files = {name: sha256_of(directory / name) for name in _files(directory)}
    whole = {"format": FORMAT, "version": VERSION, **record, "files": files}
    try:
        text = dumps({**whole, "digest": _digest(whole)}).encode()
    except (TypeError, ValueError) as error:
        raise PlanError("a part of the plan cannot be saved", got=error) from error
    (directory / PLAN).write_bytes(text)


def read_manifest(directory: Path) -> Record:
    """The record of ``plan.json``, after its digest was checked.

    Raises:
        PlanError: There is none, it is of another version, or it was changed.
    """
    path = directory / PLAN
    try:
        record = json.loads(read_data(path), parse_constant=_refuse)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_plan(directory) from error
    except (OSError, ValueError, RecursionError) as error:
        hint = "compile the model again"
        raise PlanError("the plan cannot be read", where=path, got=error, hint=hint) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise PlanError("not a plan", where=path, want=f'"format": "{FORMAT}"')
    if record.get("version") != VERSION:
        raise PlanError(
            "the plan was written by another version of pipec",
            where=path,
            got=f"schema {record.get('version')}",
            want=f"schema {VERSION}",
            hint="compile the model again",
        )
    found = record.pop("digest", None)
    changed = True
    with suppress(ValueError):  # 1e999, which is read as infinite
        changed = found != _digest(record)
    if changed or not isinstance(record.get("files"), dict):
        raise PlanError(
            "the plan was changed after it was written", where=path, hint="compile the model again"
        )
    return record


def _no_plan(path: Path) -> PlanError:
    inside = next((p for p in path.parents if (p / PLAN).is_file()), None)
    got, hint = None, find_near(path, "compile a model first: pipec compile MODEL -o out")
    if path.is_dir():
        got, hint = f"no {PLAN} in it", "name the directory that was given to -o"
    hint = f"did you mean {inside}?" if inside else hint
    want = "a directory that `pipec compile -o` wrote"
    return PlanError("no plan here", where=path, got=got, want=want, hint=hint)


def source_of(record: Mapping[str, Any]) -> Source:
    """What the plan of a record was made of.

    Raises:
        PlanError: The record does not say it, or not in words.
    """
    data = record.get("source")
    try:
        return convert(data, Source)
    except ValidationError as error:
        raise PlanError("the plan does not say what it was made of", got=data) from error


def check_files(directory: Path, files: Mapping[str, str], *, skip: tuple[str, ...] = ()) -> None:
    """Compare files with their recorded hashes; those of the names in ``skip`` are not read.

    Raises:
        PlanError: A file is missing or differs; all that do are named.
    """
    wrong = []
    for name, want in files.items():
        pure = PurePosixPath(name)
        inside = (directory / name).resolve().is_relative_to(directory.resolve())
        if pure.is_absolute() or ".." in pure.parts or not inside:
            raise PlanError("the plan names a file outside its directory", got=name)
        try:
            if pure.name in skip:
                if (directory / name).exists():
                    check_regular(directory / name)  # opening a pipe would wait for ever
                continue
            found = sha256_of(directory / name)
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
            continue
        if found != want:
            wrong.append(f"{name}: changed, or from another plan")
    if wrong:
        raise PlanError(
            f"{len(wrong)} file(s) are not those that were compiled",
            where=directory,
            got=list_lines(wrong),
            hint="compile the model again",
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse(number: str) -> float:
    raise ValueError(f"{number} is no number of JSON")


def _files(directory: Path) -> list[str]:
    found = (p for p in directory.rglob("*") if p.is_file() and p.name not in EDITABLE)
    return sorted(p.relative_to(directory).as_posix() for p in found)


def _digest(record: Record) -> str:
    return text_digest(json.dumps(record, separators=(",", ":"), allow_nan=False))
