"""Linting one emitted stage: kernel, configurations, engine headers."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.stagejson import read_record
from pipec.errors import BackendError
from tests.fpga.lint.arrays import check_arrays, members
from tests.fpga.lint.bounds import check_bounds
from tests.fpga.lint.interface import check_interface
from tests.fpga.lint.loops import check_loops
from tests.fpga.lint.pragmas import check_pragmas, words_of
from tests.fpga.lint.region import check_kernel
from tests.fpga.lint.source import Block, Finding, parse


def lint(stage: Path) -> list[Finding]:
    """Everything wrong with the pragmas of an emitted stage, in the order of its files.

    Args:
        stage: Its directory, ``stage.json`` included.

    Raises:
        BackendError: A file cannot be read.
    """
    return list(findings(stage))


def findings(stage: Path) -> Iterator[Finding]:
    """The same, one after the other: whoever wants to know only whether there is one stops."""
    kernel, types = (_read(stage / "src" / name) for name in ("stage_top.cpp", "types.h"))
    yield from _kernel(kernel, types, json.dumps(read_record(stage)))
    folders = (stage / name for name in ("src/engines", "mover", "link"))
    paths = [
        p for folder in folders for p in sorted(folder.glob("*")) if p.suffix in (".h", ".cpp")
    ]
    for path in paths:
        if path.suffix == ".h":
            yield from _library(path.relative_to(stage).as_posix(), _read(path))
    yield from _files({path.relative_to(stage).as_posix(): _read(path) for path in paths})


@lru_cache(maxsize=64)
def _kernel(kernel_text: str, types_text: str, record_text: str) -> tuple[Finding, ...]:
    """Findings in what is written for a stage alone."""
    kernel, types, record = parse(kernel_text), parse(types_text), json.loads(record_text)
    return (
        *check_pragmas("src/stage_top.cpp", kernel, words_of([kernel, types]) | {"lane"}),
        *check_kernel("src/stage_top.cpp", kernel, record),
        *check_interface("src/stage_top.cpp", kernel, record),
        *check_bounds("src/types.h", types, record),
    )


def _library(name: str, text: str) -> Iterator[Finding]:
    """A header is the library's own, line by line, whatever the other rules make of it."""
    try:
        own = own_header(name.removeprefix("src/"))
    except FileNotFoundError:
        yield Finding(name, 1, "library", "this version has no such header; emit the stage anew")
        return
    for number, (got, want) in enumerate(zip_longest(text.splitlines(), own.splitlines()), 1):
        if got != want:
            what = "differs from this version's; emit the stage anew if another one wrote it"
            yield Finding(name, number, "library", f"{what}: {got or 'no line'}")
            return


def _files(texts: Mapping[str, str]) -> Iterator[Finding]:
    """Findings in sources beside the kernel, name to text; stages have most of them in common."""
    roots = [_parsed(text) for text in texts.values()]
    words = words_of(roots)
    arrays = {name: of for text in texts.values() for name, of in _members(text).items()}
    for name, text in texts.items():
        yield from _file(name, text, words, tuple(arrays.items()))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Block:
    return parse(text)


@lru_cache(maxsize=256)
def _members(text: str) -> Mapping[str, tuple[str, ...]]:
    return members(_parsed(text))


@lru_cache(maxsize=256)
def _file(
    name: str, text: str, words: frozenset[str], arrays: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[Finding, ...]:
    root = _parsed(text)
    found = [*check_pragmas(name, root, words), *check_loops(name, root)]
    return (*found, *check_arrays(name, root, dict(arrays)))


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
