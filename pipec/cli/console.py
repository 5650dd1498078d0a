"""Where commands print their tables."""

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from pipec.escape import terminal

_WIDE = 160
"""Columns of a file or a pipe: nobody turns its pages at 80."""


def output() -> Console:
    """Standard output: as wide as the terminal, or as ``COLUMNS`` says, or wide."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_WIDE)
    console.push_render_hook(_Escaping())
    return console


class _Escaping(RenderHook):
    """Lets no name out of a model control the terminal; rich's own styles pass."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same things, escaped when they are drawn."""
        return [_Escaped(r) for r in renderables]


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _plain(console.render(self._inner, options))


def _plain(segments: Iterable[Segment]) -> Iterable[Segment]:
    for s in segments:
        yield s if s.control else Segment(terminal(s.text), s.style)
