"""The command ``pipec``: a group whose subcommands are imported only when they are asked for."""

import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from pipec.cli.project import apply_defaults, project_defaults, project_file
from pipec.errors import PipecError, did_you_mean
from pipec.escape import sanitize
from pipec.signals import interrupt_on

_COMMANDS = {
    "compile": "cut a model into stages and emit one artifact per stage",
    "run": "train or infer with emitted stages, one process per device",
    "verify": "run emitted stages against the original model",
    "inspect": "show stages, balance, cuts, heaviest nodes and memory of a plan",
    "report": "show a plan, or the difference of two, as one HTML page",
    "diff": "show what differs between two plans",
    "opt": "run passes on a plan that was written before",
    "passes": "list passes with their options",
    "profile": "measure the nodes of a model and write a cost file",
    "partition": "cut a cost graph optimally, with proof",
    "schedule": "generate, check, time and draw a pipeline schedule",
    "export": "write the best split between layers for another runtime",
    "explore": "predict every schedule, depth and microbatch size; choose the fastest",
    "examples": "list the examples, or copy one to the current folder",
    "devices": "list known devices with their figures and sources",
}


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Say on a terminal what is waited for: torch takes seconds to import."""
    shown = sys.stderr is not None and sys.stderr.isatty() and not {"-q", "--quiet"} & {*sys.argv}
    if shown:
        click.echo(f"loading pipec {name}", err=True, nl=False)
    try:
        yield
    finally:
        if shown:
            click.echo("\r\033[2K", err=True, nl=False)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand, its options by default those of the project file."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], _COMMANDS, "see `pipec --help`")
            ctx.fail(f"no such command {args[0]!r}: {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        file = project_file(Path.cwd())
        if file is not None and name is not None and command is not None:
            table = project_defaults(file, _COMMANDS).get(name, {})
            apply_defaults(ctx, name, command, file, table, rest)
        return name, command, rest

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a subcommand; None if there is none of that name."""
        del ctx
        if name not in _COMMANDS:
            return None
        with _loading(name):
            command: click.Command = importlib.import_module(f"pipec.cli.{name}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = _COMMANDS.items()
        return [CompletionItem(n, help=h) for n, h in found if n.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pipec")
def cli() -> None:
    """A compiler toolkit for pipeline-parallel DNN training and inference.

    Exit status: 0 done, 1 a mistake or a limit, reported in one message, 2 wrong usage.
    """


def main() -> None:
    """Entry point: run the command and turn a `PipecError` into one message and exit status 1."""
    gc.set_threshold(100_000, 50, 100)  # graphs are many objects that live long
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)  # rich prints nothing on 0 columns
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a name of bytes, or of other letters
    try:
        try:
            with interrupt_on(signal.SIGINT):
                cli(standalone_mode=True)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:  # the terminal is closed, or what it was sent to is full
        with suppress(OSError):
            click.echo(f"error: {error.filename or 'the output'}: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing else can be flushed
        sys.exit(1)
    except PipecError as error:
        click.echo(f"error: {sanitize(error)}", err=True)
        for note in getattr(error, "__notes__", []):
            click.echo(f"  note:  {sanitize(note)}", err=True)
        sys.exit(1)
