"""The SystemVerilog through yosys for UltraScale+: does it synthesise, and to what.

    python -m benchmarks.rtl.synthesis [NAME ...]

Products must take as many DSP48E2 as the estimate says, half of them where two have an operand in
common (those of address arithmetic are counted apart: products of counters), and no latch may be
inferred. This is not a vendor's result.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from benchmarks.rtl.cases import cases
from benchmarks.rtl.generate import Json, library, stage_verilog
from benchmarks.rtl.tile import Tile
from pipec.backends.fpga.memory import logic
from pipec.backends.fpga.stagejson import design_of

NAMES = ("mac07", "mac13", "window16", "norm02")


def estimate(record: Json) -> tuple[int, int]:
    """Multiply-accumulate units of a stage, and DSPs for them."""
    engines = [e for e in design_of(record).engines if e.nest.units]
    return sum(e.nest.units for e in engines), sum(round(logic(e).dsp) for e in engines)


def read_cells(record: Json, name: str) -> tuple[Mapping[str, int], int]:
    """Cells by type, and how many DSPs serve products."""
    texts = {k: v for k, v in library().items() if k != "probe.sv"}
    texts[f"{name}.sv"] = stage_verilog(record, name)
    with tempfile.TemporaryDirectory(prefix="pipec-yosys-") as folder:
        for file, text in texts.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        script = (
            f"read_verilog -sv {' '.join(texts)}; "
            f"synth_xilinx -family xcup -flatten -noiopad -top {name}; check -assert; "
            "tee -q -o stat.json stat -json; "
            "tee -q -o products.txt select -count t:DSP48E2 c:*u_dot.* %i"
        )
        subprocess.run(["yosys", "-q", "-p", script], cwd=folder, check=True, capture_output=True)
        found = json.loads((Path(folder) / "stat.json").read_text())
        products = (Path(folder) / "products.txt").read_text().split()[0]
    return dict(found["design"]["num_cells_by_type"]), int(products)


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Synthesise the configurations of that name, some by default."""
    chosen = {c.name: c for c in cases()}
    wrong = False
    for name in names or NAMES:
        record = chosen[name].make()
        assert not isinstance(record, Tile)
        units, dsps = estimate(record)
        cells, products = read_cells(record, name)
        latches = sum(n for cell, n in cells.items() if cell.startswith("LD"))
        wrong |= bool(latches) or products != dsps
        luts = sum(n for cell, n in cells.items() if cell.startswith("LUT"))
        flops = sum(n for cell, n in cells.items() if cell.startswith("FD"))
        click.echo(
            f"{name:9} {units:3} products, {dsps:3} DSPs estimated, {products:3} DSP48E2, and "
            f"{cells.get('DSP48E2', 0) - products:2} for addresses; {luts:5} LUT, {flops:5} FF, "
            f"{latches} latches  {chosen[name].what}"
        )
    sys.exit(wrong)


if __name__ == "__main__":
    main()
