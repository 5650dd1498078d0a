"""The SystemVerilog through yosys for UltraScale+: does it synthesise, and to what.

    python -m benchmarks.rtl.synthesis [NAME ...]

Multipliers must become one DSP48E2 each (plus those of address arithmetic, which are counted
apart: products of counters), and no latch may be inferred. This is not a vendor's result.
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

NAMES = ("mac07", "window11", "norm02")


def multipliers(record: Json) -> int:
    """Multiply-accumulate units of a stage."""
    nests = [e["nest"] for e in record["engines"] if e["kind"] in ("mvu", "matmul")]
    depthwise = [e["nest"] for e in record["engines"] if e["kind"] == "vvu"]
    products = [n["pe"] * n["simd"] for n in nests] + [n["kp"] * n["lanes"] for n in depthwise]
    return sum(map(int, products))


def synthesised(record: Json, name: str) -> Mapping[str, int]:
    """Cells by type."""
    texts = {k: v for k, v in library().items() if k != "probe.sv"}
    texts[f"{name}.sv"] = stage_verilog(record, name)
    with tempfile.TemporaryDirectory(prefix="pipec-yosys-") as folder:
        for file, text in texts.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        script = (
            f"read_verilog -sv {' '.join(texts)}; "
            f"synth_xilinx -family xcup -flatten -noiopad -top {name}; check -assert; "
            "tee -q -o stat.json stat -json"
        )
        subprocess.run(["yosys", "-q", "-p", script], cwd=folder, check=True, capture_output=True)
        found = json.loads((Path(folder) / "stat.json").read_text())
    return dict(found["design"]["num_cells_by_type"])


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Synthesise the configurations of that name, some by default."""
    chosen = {c.name: c for c in cases()}
    latches = 0
    for name in names or NAMES:
        record = chosen[name].make()
        assert not isinstance(record, Tile)
        cells = synthesised(record, name)
        latches += sum(n for cell, n in cells.items() if cell.startswith("LD"))
        luts = sum(n for cell, n in cells.items() if cell.startswith("LUT"))
        flops = sum(n for cell, n in cells.items() if cell.startswith("FD"))
        click.echo(
            f"{name:9} {multipliers(record):3} MAC units, {cells.get('DSP48E2', 0):3} DSP48E2, "
            f"{luts:5} LUT, {flops:5} FF, {latches} latches  {chosen[name].what}"
        )
    sys.exit(bool(latches))


if __name__ == "__main__":
    main()
