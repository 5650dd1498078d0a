"""Where commands print: tables to standard output, what they are doing to standard error."""

import os
import textwrap
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from pipec.escape import sanitize

_F = TypeVar("_F", bound=Callable[..., object])

_WIDE = 160
"""Columns of a file or a pipe: nobody turns its pages at 80."""


def output() -> Console:
    """Standard output: as wide as the terminal, or as ``COLUMNS`` says, or wide."""
    console = Console(emoji=False)
    if not has_width(console):
        console = Console(emoji=False, width=_WIDE)
    console.push_render_hook(_Escaping())
    return console


def indent_lines(text: str, indent: int) -> str:
    """A paragraph as wide as `output`; its later lines are indented."""
    return textwrap.fill(
        text, output().width, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def has_width(console: Console) -> bool:
    """Whether lines must not be longer than the console is wide."""
    return console.is_terminal or "COLUMNS" in os.environ


def progress_options(function: _F) -> _F:
    """Add ``-q`` and ``-v``: ``verbosity``, which `progress` reads; the last one counts."""
    for short, name, text in (
        ("-v", "--verbose", "Print every step with its time, to standard error."),
        ("-q", "--quiet", "Print results and errors only."),
    ):
        function = click.option(short, name, "verbosity", flag_value=name, help=text)(function)
    return function


def progress(option: str | None) -> Console:
    """Standard error, as ``-q`` and ``-v`` want it: `Console.status` says what is being done.

    Texts are printed as they are: a name in brackets is no markup.
    """
    kind = _Verbose if option == "--verbose" else _Progress
    console = kind(stderr=True, quiet=option == "--quiet", markup=False, emoji=False)
    console.push_render_hook(_Escaping())
    return console


class _Progress(Console):
    def status(self, status: RenderableType, **_: Any) -> Status:
        return _Spinner(_text(status), console=self)


class _Spinner(Status):
    def update(self, status: RenderableType | None = None, **_: Any) -> None:
        super().update(_text(status))


def _text(text: RenderableType | None) -> RenderableType:
    """A text for rich's spinners, which read markup in strings whatever the console says."""
    return Text(sanitize(text)) if isinstance(text, str) else text or ""


class _Verbose(Console):
    def status(self, status: RenderableType, **_: Any) -> Status:
        return _Steps(status, console=self)


class _Steps(Status):
    """A line per step, with the seconds since the first one, where others see a spinner."""

    def start(self) -> None:
        self._begun = time.monotonic()
        self.update(self.status)

    def update(self, status: RenderableType | None = None, **_: Any) -> None:
        passed = time.monotonic() - self._begun
        self.console.print(f"{passed:8.3f} s  {status}", highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """There is nothing on the screen to take away."""


class _Escaping(RenderHook):
    """Lets no name out of a model control the terminal; rich's own styles pass."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same things, escaped when they are drawn."""
        return [_Escaped(r) for r in renderables]


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for s in console.render(self._inner, options):
            yield s if s.control else Segment(sanitize(s.text), s.style)
