"""``python -m benchmarks.rtl.stage out/stage0_xcvu9p``: a stage's cycles in RTL.

Writes the stage's SystemVerilog from its ``stage.json``, runs it, and prints interval and latency
beside those of the cycle simulator. The exit status is 1 if they differ.
"""

import sys
import tempfile
from pathlib import Path

import click

from benchmarks.rtl.compare import compare
from benchmarks.rtl.generate import with_ports, write_reference
from benchmarks.rtl.simulate import Bench, Simulator, run_benches
from benchmarks.rtl.style import Style
from pipec.backends.fpga.stagejson import read_record
from pipec.errors import PipecError


@click.command()
@click.argument("stage", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--frames", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--simulator", type=click.Choice([s.value for s in Simulator]), default="verilator")
@click.option("--style", type=click.Choice([s.value for s in Style]), default="free",
              help="How pipelines stall.")  # fmt: skip
@click.option("--write", type=click.Path(path_type=Path), help="A new folder to keep it in.")
def main(stage: Path, frames: int, simulator: str, style: str, write: Path | None) -> None:
    """Run the SystemVerilog of STAGE, a stage directory that pipec wrote."""
    try:
        record = read_record(stage)
        if write is not None:
            write_reference(record, write)
        bench = Bench("stage", with_ports(record), frames, Style(style))
        with tempfile.TemporaryDirectory(prefix="pipec-rtl-") as folder:
            seen = run_benches([bench], Path(folder), Simulator(simulator))["stage"]
        found = compare(bench, seen)
    except PipecError as error:
        raise click.ClickException(str(error)) from error
    for name, pair in (("simulator", found.simulated), (simulator, found.measured)):
        click.echo(f"{name:10} " + ("deadlock" if pair is None else
                   f"interval {pair[0]:,}, latency {pair[1]:,} cycles"))  # fmt: skip
    click.echo(
        f"{found.different:,} of {found.handshakes:,} handshakes and {found.stall_difference:,} of "
        f"{found.stalls[0]:,} stalled cycles differ"
    )
    for miss in found.misses:
        click.echo(f"off: {miss}")
    sys.exit(bool(found.misses))


if __name__ == "__main__":
    main()
