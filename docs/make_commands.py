"""Rewrites docs/commands.md: one section per command, what ``--help`` prints at 80 columns."""

import sys
from pathlib import Path

import click
from click.testing import CliRunner

from pipec.cli.main import cli

PAGE = Path(__file__).parent / "commands.md"
HEAD = """# Commands

What `pipec COMMAND --help` prints; `python docs/make_commands.py` rewrites this page. Every table
has `--json` beside it. Exit status: 0 done, 1 a mistake or a limit, reported in one message, 2
wrong usage.

`pipec.toml`, in the folder or in one above it, holds defaults of a project: one table per command,
with its long options as keys. What stands on the command line counts first; a key that the command
or the chosen target does not have is refused. The defaults in use are printed on standard error.

```toml
[compile]
target = "fpga"
devices = "4xvcu118"

[run]
timeout = 60
```

A shell completes commands, targets, devices, schedules and passes after
`eval "$(_PIPEC_COMPLETE=bash_source pipec)"` (or `zsh_source`; fish has a form of its own:
`_PIPEC_COMPLETE=fish_source pipec | source`).
"""


def text() -> str:
    """The whole page."""
    names = cli.list_commands(click.Context(cli))
    return "\n".join([HEAD, *(_section([name]) for name in names)])


def _section(words: list[str]) -> str:
    shown = CliRunner().invoke(cli, [*words, "--help"], prog_name="pipec", terminal_width=80)
    return f"## {' '.join(words)}\n\n```text\n{shown.output.strip()}\n```\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(text())
    else:
        PAGE.write_text(text(), encoding="utf-8")
