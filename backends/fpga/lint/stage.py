"""Linting one emitted stage: kernel, configurations, engine headers."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipec.backends.fpga.lint.arrays import check_arrays, members
from pipec.backends.fpga.lint.bounds import check_bounds
from pipec.backends.fpga.lint.interface import check_interface
from pipec.backends.fpga.lint.loops import check_loops
from pipec.backends.fpga.lint.pragmas import check_pragmas, words_of
from pipec.backends.fpga.lint.region import check_kernel
from pipec.backends.fpga.lint.source import Finding, parse
from pipec.backends.fpga.stagejson import Json, read_record
from pipec.errors import BackendError


def lint(stage: Path) -> list[Finding]:
    """Everything wrong with the pragmas of an emitted stage, in the order of its files.

    Args:
        stage: Its directory, ``stage.json`` included.

    Raises:
        BackendError: A file cannot be read.
    """
    record = read_record(stage)
    return list(_findings(stage, record))


def _findings(stage: Path, record: Json) -> Iterator[Finding]:
    kernel, types = parse(_read(stage / "src/stage_top.cpp")), parse(_read(stage / "src/types.h"))
    yield from check_pragmas("src/stage_top.cpp", kernel, words_of([kernel, types]) | {"lane"})
    yield from check_kernel("src/stage_top.cpp", kernel, record)
    yield from check_interface("src/stage_top.cpp", kernel, record)
    yield from check_bounds("src/types.h", types, record)
    for folder in ("src/engines", "mover", "link"):
        paths = sorted(path for path in (stage / folder).glob("*") if path.suffix in (".h", ".cpp"))
        yield from _folder(tuple((f"{folder}/{path.name}", _read(path)) for path in paths))


@cache
def _folder(files: tuple[tuple[str, str], ...]) -> tuple[Finding, ...]:
    """Findings in the files of a folder, name and text, which stages have in common."""
    roots = {name: parse(text) for name, text in files}
    words = words_of(roots.values())
    known = {struct: arrays for root in roots.values() for struct, arrays in members(root).items()}
    found: list[Finding] = []
    for name, root in roots.items():
        found += check_pragmas(name, root, words)
        found += check_loops(name, root)
        found += check_arrays(name, root, known)
    return tuple(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BackendError("an emitted file cannot be read", where=path, got=error) from error


def check(stage: Path) -> None:
    """Refuse a stage with findings.

    Raises:
        BackendError: There are some; the first ones are listed.
    """
    if found := lint(stage):
        raise BackendError(
            f"the emitted code has {len(found)} lint finding(s)",
            where=stage.name,
            got="".join(f"\n    {finding}" for finding in found[:20]),
        )
