"""Commands to which the target of a plan adds options of its own.

```text
pipec compile net.onnx --target torch --pt2      the target torch declares --pt2
pipec compile net.onnx --target onnx --pt2       refused: of the target torch, not of onnx
```
"""

import dataclasses
import json
import typing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command
from pipec.compiler.backend import Backend, load_backend
from pipec.compiler.declared import Options
from pipec.files import read_data
from pipec.plan.manifest import read_manifest
from pipec.registry import entries

Target = Callable[[list[str]], str | None]
"""The target that a command line means; None where it says none."""
Declared = Callable[[Backend], type[Options]]
"""Which options of a target a command takes."""


def find_target(words: list[str]) -> str | None:
    """What stands behind ``--target``; torch if nothing does.

    Example:
        >>> find_target(["net.onnx", "--target", "onnx"]), find_target(["--target=onnx"])
        ('onnx', 'onnx')
    """
    for word, after in pairwise([*words, ""]):
        if word == "--target":
            return after
        if word.startswith("--target="):
            return word.partition("=")[2]
    return None


def target_of_plan(words: list[str]) -> str | None:
    """The target of the first directory of a plan that is named.

    Raises:
        PlanError: The first word names no plan.
    """
    for word in words:
        file = Path(word) / "plan.json"
        if not word.startswith("-") and file.is_file():
            try:
                return str(json.loads(read_data(file))["target"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                return None  # what is wrong with it is reported when it is read
    if words and not words[0].startswith("-"):
        read_manifest(Path(words[0]))
    return None


def own_settings(ctx: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take the values of the target's options, by name, out of those of a command."""
    return {str(o.name): given.pop(o.name) for o in ctx.meta["own"]}


class TargetCommand(Command):
    """A command with the options of the target that its command line means."""

    def __init__(self, *, target: Target, declared: Declared, **given: Any) -> None:
        super().__init__(**given)
        self._target, self._declared = target, declared

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an option of another target is refused by its name."""
        usual = next((str(p.default) for p in self.params if p.name == "target"), None)
        name = self._target(args) or ctx.lookup_default("target") or usual
        backend = None if name is None else load_backend(name)
        ctx.meta["own"] = [] if backend is None else _options(self._declared(backend))
        taken = {p.name for p in self.get_params(ctx)}
        for key in set(ctx.default_map or {}) - taken:  # of a project file
            raise self._of_others(f"--{key.replace('_', '-')}", name, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not self._owners(error.option_name):
                raise
            raise self._of_others(error.option_name, name, ctx) from error

    def _owners(self, option: str) -> list[str]:
        return [n for n, options in self._every().items() if option in _names(options)]

    def _of_others(self, option: str, name: str | None, ctx: click.Context) -> click.UsageError:
        owners = ", ".join(self._owners(option))
        other = f"not of {name}" if name else "and what the plan is for cannot be read"
        return click.UsageError(f"{option} is of the target {owners}, {other}", ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own options, and the target's."""
        *own, last = super().get_params(ctx)  # help is the last one
        return [*own, *ctx.meta.get("own", ()), last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, then those of every target."""
        ctx.meta["own"] = []
        super().format_options(ctx, formatter)
        for name, options in self._every().items():
            rows = [row for o in options if (row := o.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(f"Options of the target {name}"):
                    formatter.write_dl(rows)

    def of_targets(self) -> list[click.Option]:
        """The options that any target declares for this command."""
        return [option for options in self._every().values() for option in options]

    def _every(self) -> dict[str, list[click.Option]]:
        names = entries("pipec.backends")
        return {name: _options(self._declared(load_backend(name))) for name in names}


def _names(options: list[click.Option]) -> set[str]:
    return {name for o in options for name in o.opts}


def _options(declared: type[Options]) -> list[click.Option]:
    return [_option(f) for f in dataclasses.fields(declared)]


def _option(field: "dataclasses.Field[Any]") -> click.Option:
    meta, name = field.metadata, f"--{field.name.replace('_', '-')}"
    if isinstance(field.default, bool):
        return click.Option([name], is_flag=True, default=field.default, help=meta["help"])
    bare = {} if meta["bare"] is None else {"is_flag": False, "flag_value": meta["bare"]}
    return click.Option(
        [name],
        type=_kind(field.type, meta["least"]),
        default=field.default,
        show_default=field.default not in (None, ""),
        help=meta["help"],
        **bare,
    )


def _kind(hint: object, least: Any) -> Any:
    """How click reads a value of a type."""
    if choices := typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ():
        return click.Choice(choices)
    if least is not None:
        return click.IntRange(least) if hint is int else click.FloatRange(least)
    kinds = {int: click.INT, float: click.FLOAT, str: click.STRING,
             Path: click.Path(path_type=Path)}  # fmt: skip
    inner: list[Any] = [t for t in getattr(hint, "__args__", (hint,)) if t is not type(None)]
    return kinds[inner[0]]
