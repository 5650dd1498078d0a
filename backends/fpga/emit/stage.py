"""Writing one stage's directory: sources, tables, test bench, scripts, golden data.

```text
stage0_xcvu9p/
  stage.json  README.md  Makefile  hls_*.cfg  run_hls.tcl  link.cfg or block_design.tcl
  link/                                        kernels that lead several values over one link
  mover/  host/  sim/                          where the board has a Vitis platform: kernels between
                                               memory and streams, host program, board in software
  src/   stage_top.cpp  stage_top.h  types.h  engines/*.h  weights/*.bin
  tb/    tb_stage.cpp  testbench.h  port_files.h  port_files.cpp  golden/*.bin
  csim/  hls_stream.h  dataflow.h ...          stand-ins, for plain g++ only
```
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import BENCH, STAND_INS, fill_template, own_header
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.scripts import scripts
from pipec.backends.fpga.emit.source import facts
from pipec.backends.fpga.engines.parts import Weight
from pipec.backends.fpga.stagejson import Json, stage_record, write_record
from pipec.backends.fpga.tables import off_chip, on_chip, table_name, table_of
from pipec.backends.fpga.wire import wires_of
from pipec.compiler.sizes import run_graph
from pipec.graph.ir import Graph

SEED = 20250117
"""Of the frame that test benches play."""
SOURCES = ("src/types.h", "src/stage_top.h", "src/stage_top.cpp", "tb/tb_stage.cpp")


@dataclass(frozen=True)
class Golden:
    """One frame of a stage: value of every input and output, by name."""

    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]


def golden_chain(graphs: Sequence[Graph], inputs: Mapping[str, torch.Tensor]) -> list[Golden]:
    """Golden data of every stage of a pipeline; what one stage yields, the next ones read."""
    known, found = dict(inputs), []
    for graph in graphs:
        outputs = run_graph(graph, known)
        read = [i.name for i in graph.inputs if not i.kind.is_weight]
        found.append(Golden({name: known[name] for name in read}, outputs))
        known = {**outputs, **known}  # an updated buffer is read as it was
    return found


TOLERANCE = 1e-4
"""Largest error of an output relative to its largest magnitude, in float32."""


def write_stage(
    design: StageDesign,
    directory: Path,
    golden: Golden | None,
    *,
    tolerance: float = TOLERANCE,
    own: Mapping[str, tuple[float, float]] | None = None,
    site: Site | None = None,
    facts: Json | None = None,
) -> None:
    """Write a stage.

    Args:
        design: The stage.
        directory: Folder to write; made if missing.
        golden: One frame of data for the test bench; None leaves the folder empty.
        tolerance: What the test bench accepts.
        own: Values of outputs to what it accepts of them, where that is less, and at few places.
        site: Place where the stage is to run; a board without a platform if not given.
        facts: What ``stage.json`` says besides.

    Raises:
        BackendError: An engine or type has no C++, or the model has no weights.
    """
    site = site or Site()
    for name, text in texts_of(design, site, tolerance, own).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = {**stage_record(design), "site": dataclasses.asdict(site), **(facts or {})}
    write_record(known, directory)
    write_tables(design, directory / "src/weights")
    if golden is not None:
        (directory / "tb/golden").mkdir(parents=True, exist_ok=True)
        for wire in wires_of(design):
            values = golden.inputs if wire.is_input else golden.outputs
            wire.tokens(values[wire.port.value]).tofile(directory / "tb/golden" / wire.file)


def texts_of(
    design: StageDesign,
    site: Site,
    tolerance: float = TOLERANCE,
    own: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, str]:
    """Every text of a stage but ``stage.json``, by the path of its file; as `write_stage`."""
    known = {**facts(design), "site": site, "tolerance": tolerance, "own": own or {}}
    return {
        **{name: fill_template(name.split("/")[1], **known) for name in SOURCES},
        **{f"tb/{name}": own_header(f"tb/{name}") for name in BENCH},
        **{f"src/engines/{name}": own_header(f"engines/{name}") for name in known["headers"]},
        **{f"csim/{name}": own_header(f"csim/{name}") for name in STAND_INS},
        **scripts(design, site, known),
    }


def tables_of(design: StageDesign) -> dict[str, Weight]:
    """The tables of a stage, by the names of their files in ``src/weights`` without the ending."""
    beside = {table_name(engine, w.role): w for _, engine, w in off_chip(design)}
    return {table.name: table.weight for table in on_chip(design)} | beside


def write_tables(design: StageDesign, directory: Path) -> None:
    """Write the images of all tables, as the model's weights are now."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, weight in tables_of(design).items():
        table_of(weight).tofile(directory / f"{name}.bin")
