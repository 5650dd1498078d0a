"""Linting one emitted stage: kernel, configurations, engine headers."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipec.backends.fpga.lint.bounds import check_bounds
from pipec.backends.fpga.lint.pragmas import check_pragmas
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
    yield from check_pragmas("src/stage_top.cpp", kernel)
    yield from check_kernel("src/stage_top.cpp", kernel, record)
    yield from check_bounds("src/types.h", types, record)
    for path in sorted((stage / "src/engines").glob("*.h")):
        yield from _header(f"src/engines/{path.name}", _read(path))


@cache
def _header(name: str, text: str) -> tuple[Finding, ...]:
    return tuple(check_pragmas(name, parse(text)))


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
