"""Whether an emitted stage is what its ``stage.json`` says, to the last character.

``stage.json`` says all that the kernel is made of, so both are made anew from it: the record, every
figure in it that follows from others, and the configurations, the kernel, its headers, and what
stands around it in ``mover/`` and ``link/``.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from msgspec import convert

from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.stage import tables_of, texts_of
from pipec.backends.fpga.stagejson import DAMAGE, design_of, read_record, stage_record
from pipec.errors import BackendError, PipecError

_CODE = ("src/", "mover/", "link/")
"""Folders of what boards are made of."""


def differences(stage: Path) -> Iterator[str]:
    """Differences from what was written: the first one of every file of an emitted stage.

    Raises:
        BackendError: A file cannot be read.
    """
    record = read_record(stage)
    design = design_of(record)
    rebuilt = json.loads(json.dumps(stage_record(design)))
    for key, want in rebuilt.items():
        if record.get(key) != want:
            yield f"stage.json: {key} is not what the rest of it gives"
    writers = {s: e.name for e in design.engines for s in e.outputs}
    readers = {s: e.name for e in design.engines for s in e.inputs}
    for stream in design.streams.values():
        ends = writers.get(stream.name), readers.get(stream.name)
        if ends != (stream.producer, stream.consumer):
            yield f"stage.json: {stream.name} is not between the engines that it says"
    files = {path.stem for path in (stage / "src/weights").glob("*.bin")}
    for name in tables_of(design):
        if name not in files:
            yield f"stage.json: the table {name} is in no file"
    yield from _texts(stage, texts_of(design, convert(record["site"], Site)))


def _texts(stage: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """Of the code that boards are made of."""
    code = {name: text for name, text in texts.items() if name.startswith(_CODE)}
    files = (path for folder in _CODE for path in (stage / folder).rglob("*.*"))
    for path in sorted(p for p in files if p.suffix in (".h", ".cpp")):
        if path.relative_to(stage).as_posix() not in code:
            yield f"{path.relative_to(stage)}: there is no such file in this stage"
    for name, text in code.items():
        lines = zip_longest(_read_text(stage / name).splitlines(), text.splitlines())
        for number, (got, want) in enumerate(lines, 1):
            if got != want:
                sides = ("no line" if line is None else line.strip() for line in (got, want))
                yield f"{name}:{number}: {', want '.join(sides)}"
                break


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BackendError("an emitted file cannot be read", where=path, got=error) from error


def check(stage: Path) -> None:
    """Refuse a stage that is not as it was written.

    Raises:
        BackendError: It is not; the first differences are listed.
    """
    try:
        found = list(differences(stage))
    except PipecError:
        raise
    except DAMAGE as error:
        raise BackendError("stage.json is damaged", where=stage, got=repr(error)) from error
    if found:
        raise BackendError(
            f"{len(found)} files of an emitted stage are not as they were written",
            where=stage.name,
            got="".join(f"\n    {difference}" for difference in found[:20]),
            hint="emit the stage anew if another version wrote it",
        )
