"""Where commands print their tables."""

import os

from rich.console import Console

_WIDE = 160
"""Columns of a file or a pipe: nobody turns its pages at 80."""


def output() -> Console:
    """Standard output: as wide as the terminal, or as ``COLUMNS`` says, or wide."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=_WIDE)
