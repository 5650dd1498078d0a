"""``pipec verify``: do the emitted stages compute what the model computes?"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipec.cli.command import Command, refuse
from pipec.cli.console import output, progress, progress_options
from pipec.cli.options import allow_namespace_option, import_namespaces
from pipec.compiler.backend import lacking, load_backend
from pipec.compiler.capabilities import Cycles
from pipec.compiler.verify import Streams, verify_artifacts
from pipec.frontends.load import check_runnable, reload
from pipec.graph.opaque import ort_saturates
from pipec.plan.manifest import read_manifest, source_of
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.report.found import print_checks, print_report

_SATURATES = (
    "note: on this processor, which has no VNNI, onnxruntime adds products of uint8 and int8 in 16 "
    "bits, so that large sums saturate; pipec adds exactly. Verify on a processor with VNNI, or "
    "quantise with weights of 7 bits (reduce_range)"
)


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--model", help="Where the model is now, if not where it was.")
@click.option("--trust", is_flag=True, help="Let code run that the plan names or holds.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Relative error to allow, instead of the backend's.",
)
@click.option("--timed", is_flag=True, help="Compare the cycles of all handshakes, if any.")
@click.option(
    "--chain",
    type=click.IntRange(1),
    metavar="FRAMES",
    help="Run all stages at once, joined by pipes, on so many frames, where stages can stream.",
)
@progress_options
@allow_namespace_option
def command(directory: Path, **given: Any) -> None:
    """Run the stages in DIRECTORY in a chain against the original model, on random inputs.

    Of a training plan the gradients are compared too, and what updates add where they are emitted.
    Exit status 1 if a value is farther off than its dtype explains, or if that explains any
    value. The model's own code runs.
    With --chain, run all stages at the same time instead, frame after frame through pipes, and
    compare the model's outputs.
    With --timed, run each stage's golden data instead, streams as deep as declared, and compare
    the cycle of every handshake with the simulator's; exit status 1 if any differs.
    """
    model, trust, as_json = given["model"], given["trust"], given["as_json"]
    allowed = import_namespaces(given["allow_namespace"])
    if given["timed"]:
        others = ("model", "seed", "tolerance", "chain")
        refuse(others, "not with --timed, which compares cycles of each stage's golden data")
        plan = load_plan(directory, allowed=allowed, check_weights=False)
        check_runnable(directory, None, plan.target, None, trust=trust)
        _check_cycles(plan, directory, as_json=as_json)
        return
    console = progress(given["verbosity"])
    record = read_manifest(directory)
    source = source_of(record)
    check_runnable(directory, source, str(record.get("target")), model, trust=trust)
    reading = f"reading {model or source.location}"
    # Whatever the model's own code prints must not end up in our output.
    with console.status(reading) as status, contextlib.redirect_stdout(sys.stderr):
        keywords = {"progress": status.update, **{n: given[n] for n in ("seed", "tolerance")}}
        reference = reload(source, spec=model, trust=trust)
        if given["chain"] is None:
            report = verify_artifacts(directory, reference, allowed=allowed, **keywords)
        else:
            plan = load_plan(directory, allowed=allowed)
            target = load_backend(plan.target)
            if not isinstance(target, Streams):
                raise lacking(target, Streams, "--chain")
            report = target.verify_chain(plan, directory, reference, given["chain"], **keywords)
    _show(report.to_json(), lambda: print_report(report, output()), as_json=as_json)
    if not report.ok:
        if reference.inner is not None and ort_saturates():
            click.echo(_SATURATES, err=True)
        raise SystemExit(1)


def _check_cycles(plan: Plan, directory: Path, *, as_json: bool) -> None:
    target = load_backend(plan.target)
    if not isinstance(target, Cycles):
        raise lacking(target, Cycles, "--timed")
    found = target.check_cycles(plan, directory)
    rows = [c.to_json() for c in found]
    _show(rows, lambda: print_checks(found, output()), as_json=as_json)
    if not all(c.ok for c in found):
        raise SystemExit(1)


def _show(data: object, show: Callable[[], None], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        show()
