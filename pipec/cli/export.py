"""``pipec export``: a plan's split, for a runtime that people already have."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from pipec.cli import export_onnx
from pipec.cli.command import Command, refuse
from pipec.compiler.export import FORMATS, split_layers
from pipec.plan.store import load_plan


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "runtime",
    required=True,
    type=click.Choice(sorted({*FORMATS, *export_onnx.FORMATS})),
    help="Runtime.",
)
@click.option("--stages", type=click.IntRange(1), help="How many; as the plan has by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the text and the split as JSON.")
def command(directory: Path, runtime: str, stages: int | None, as_json: bool) -> None:
    """Cut the plan in DIRECTORY anew, between whole layers, and print it as RUNTIME wants it.

    onnxruntime-genai and openvino cut between any two operations: they get the plan's own cut.

    The text goes to the standard output, what it promises to the standard error.
    """
    plan = load_plan(directory, check_weights=False)
    if runtime in export_onnx.FORMATS:
        refuse(["stages"], f"not with {runtime}, which gets the plan's own cut")
        text = export_onnx.FORMATS[runtime](plan, directory)
        click.echo(json.dumps({"to": runtime, "text": text}, indent=2) if as_json else text)
        return
    split = split_layers(plan, stages)
    text = FORMATS[runtime](split)
    if as_json:
        click.echo(json.dumps({"to": runtime, "text": text, **asdict(split)}, indent=2))
        return
    click.echo(text)
    slowest = max(split.seconds)
    click.echo(
        f"# slowest stage {slowest:.4g} s, bound {split.lower_bound:.4g} s; with equal numbers of "
        f"layers {split.even:.4g} s, {split.even / slowest:.3g} times as long",
        err=True,
    )
