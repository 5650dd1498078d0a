"""Defaults of a project: ``pipec.toml`` in the folder or in one above it.

```toml
[compile]
target = "fpga"
devices = "4xvcu118"

[run]
timeout = 60
```

One table per command; the keys are its long options. What stands on the command line counts first.
"""

import tomllib
from pathlib import Path
from typing import Any

import click

from pipec.errors import PipecError, did_you_mean

NAME = "pipec.toml"
_EXCLUDE = {"devices": "cluster", "cluster": "devices"}


def project_file(folder: Path) -> Path | None:
    """Return the nearest ``pipec.toml``, in `folder` or above it; None if there is none."""
    return next((f / NAME for f in (folder, *folder.parents) if (f / NAME).is_file()), None)


def project_defaults(file: Path, commands: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Read the tables of a ``pipec.toml``: command to option to value.

    Raises:
        PipecError: It cannot be read, or a table is not that of a command.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipecError("a project file cannot be read", where=file, got=error) from error
    for name, table in tables.items():
        if name not in commands or not isinstance(table, dict):
            raise PipecError(
                "not a table of a command",
                where=file,
                got=name,
                want=", ".join(f"[{c}]" for c in commands),
                hint=did_you_mean(name, commands),
            )
    return tables


def apply_defaults(
    ctx: click.Context,
    name: str,
    command: click.Command,
    file: Path,
    table: dict[str, Any],
    words: list[str],
) -> None:
    """Make a table the defaults of a command, and say so on standard error.

    Raises:
        PipecError: The command has no such option, or it takes another kind of value.
    """
    given = {word.partition("=")[0] for word in words}
    options = _options(command)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in options:
            what, hint = f"`pipec {name}` has no such option", did_you_mean(key, options)
            raise PipecError(what, where=file, got=key, hint=hint)
        option = options[key]
        kind = list if option.multiple else bool if option.is_flag else (str, int, float)
        other = not isinstance(value, kind) or (isinstance(value, bool) and not option.is_flag)
        if other or value == "":
            want = "a list" if option.multiple else "true or false" if option.is_flag else "a value"
            raise PipecError(f"--{key} wants {want}", where=file, got=value)
        if f"--{_EXCLUDE.get(key)}" not in given and not given & {*option.opts}:
            values[str(option.name)] = value
    if values:
        ctx.default_map = {name: values}
        pairs = ", ".join(f"{key} = {table[key]!r}" for key in table if options[key].name in values)
        click.echo(f"defaults of {file}: {pairs}", err=True)


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by their long names, those of all targets included."""
    every = [*command.params, *getattr(command, "of_targets", list)()]
    return {
        text.removeprefix("--"): option
        for option in every
        if isinstance(option, click.Option)
        for text in option.opts
        if text.startswith("--")
    }
