"""What every command refuses: an option without a value, a number that is none, no effect."""

import math
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import click
from click.core import ParameterSource

_BITS = 62
"""What a number in a graph, a file or a random generator may have, beside its sign and one more to
count on from it."""


class Command(click.Command):
    """A command whose options take no empty text, no infinite number and no contradiction."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line.

        Raises:
            click.UsageError: Naming the option.
        """
        for before, word in pairwise(["", *args]):
            if (word == "" and before.startswith("-")) or re.fullmatch("--[a-z0-9-]+=", word):
                raise click.UsageError(f"{word.rstrip('=') or before} wants a value", ctx)
        words = [word.partition("=")[0] for word in args]
        left = super().parse_args(ctx, args)
        for option in self.get_params(ctx):
            names = {*option.opts, *option.secondary_opts}
            given = [word for word in words if word in names]
            once = isinstance(option, click.Option) and not (option.multiple or option.count)
            if once and len(given) > 1:
                both = " and ".join(dict.fromkeys(given))
                raise click.UsageError(f"{both}: given {len(given)} times, only one can count", ctx)
            found = ctx.params.get(str(option.name))
            for value in found if isinstance(found, tuple) else (found,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise click.BadParameter(f"{value} is no number that can be meant", ctx, option)
                if isinstance(value, int) and value.bit_length() > _BITS:
                    raise click.BadParameter(f"more than {_BITS} bits", ctx, option)
        self._check_files(ctx)
        return left

    def _check_files(self, ctx: click.Context) -> None:
        """No two options may mean one file: the later one would replace what the earlier wrote."""
        named: dict[Path, str] = {}
        for option in self.get_params(ctx):
            value = ctx.params.get(str(option.name))
            if not isinstance(value, Path) or not isinstance(option, click.Option):
                continue
            other = named.setdefault(value.resolve(), option.opts[-1])
            if other != option.opts[-1] and str(value) != "-":
                both = f"{other} and {option.opts[-1]}"
                raise click.UsageError(f"{both} name one file, {value}: give each its own", ctx)


def refuse(options: Iterable[str], why: str, *, unless: bool = False) -> None:
    """Refuse options that stand on the command line and would have no effect.

    Raises:
        click.UsageError: Naming those that were given.
    """
    ctx = click.get_current_context()
    typed = {n for n in options if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    given = [
        (p.secondary_opts if ctx.params.get(str(p.name)) is False else p.opts)[-1]
        for p in ctx.command.get_params(ctx)
        if p.name in typed
    ]
    if given and not unless:
        raise click.UsageError(f"{', '.join(given)}: {why}", ctx)
