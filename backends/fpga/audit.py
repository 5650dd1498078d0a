"""Whether an emitted stage is what its ``stage.json`` says, to the last character.

``stage.json`` says all that the kernel is made of, so both are made anew from it: the record, every
figure in it that follows from others, and the configurations, the kernel, and what stands around it
in ``mover/`` and ``link/``. Headers are the library's own.
"""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit import mover, share
from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.emit.source import port_names, stage_top_cpp, stage_top_h, types_h
from pipec.backends.fpga.emit.stage import table_names
from pipec.backends.fpga.stagejson import DAMAGE, design_of, read_record, stage_record
from pipec.errors import BackendError, PipecError


def differences(stage: Path) -> Iterator[str]:
    """What is not as it was written, the first place of every file.

    Args:
        stage: An emitted directory, ``stage.json`` included.

    Raises:
        BackendError: A file cannot be read.
    """
    record = read_record(stage)
    design = design_of(record)
    made = json.loads(json.dumps(stage_record(design)))
    for key, want in made.items():
        if record.get(key) != want:
            yield f"stage.json: {key} is not what the rest of it gives"
    writers = {s: e.name for e in design.engines for s in e.outputs}
    readers = {s: e.name for e in design.engines for s in e.inputs}
    for stream in design.streams.values():
        ends = writers.get(stream.name), readers.get(stream.name)
        if ends != (stream.producer, stream.consumer):
            yield f"stage.json: {stream.name} is not between the engines that it says"
    held = {path.stem for path in (stage / "src/weights").glob("*.bin")}
    for name in table_names(design):
        if name not in held:
            yield f"stage.json: the table {name} is in no file"
    for name, text in _code(stage, design).items():
        lines = zip_longest(_read(stage / name).splitlines(), text.splitlines())
        for number, (got, want) in enumerate(lines, 1):
            if got != want:
                yield f"{name}:{number}: {_said(got)}, want {_said(want)}"
                break


def _said(line: str | None) -> str:
    return "no line" if line is None else line.strip()


def _code(stage: Path, design: StageDesign) -> dict[str, str]:
    """File to what it must be."""
    found = {
        "src/types.h": types_h(design),
        "src/stage_top.h": stage_top_h(design),
        "src/stage_top.cpp": stage_top_cpp(design),
    }
    folders = (stage / name for name in ("src/engines", "mover", "link"))
    for path in sorted(p for folder in folders for p in folder.glob("*")):
        name = path.relative_to(stage).as_posix()
        if path.suffix == ".h":
            found[name] = _header(name)
        elif path.suffix == ".cpp":
            found[name] = _around(path, design)
    return found


def _header(name: str) -> str:
    try:
        return own_header(name.removeprefix("src/"))
    except FileNotFoundError:
        return "// this version has no such header"


def _around(path: Path, design: StageDesign) -> str:
    """The kernel of a file in ``mover/`` or ``link/``."""
    names = port_names(design)
    if path.parent.name == "mover":
        (kernel,) = mover.movers(design, [path.stem], [""])
        return mover.source(design, kernel) if path.stem in names else "// there is no such port"
    led = [name for name in names if re.search(rf"\b{name}\b", _read(path))]
    return share.source(design, share.shared(design, led, path.stem.removeprefix("link_")))


def _read(path: Path) -> str:
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
