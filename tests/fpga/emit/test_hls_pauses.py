"""Pauses and depths from the code of engines, at several clocks."""

import dataclasses
import math
import shutil
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from benchmarks.hls_check import __main__ as table
from benchmarks.hls_check.compiled import intervals, loops_in, parse
from benchmarks.hls_check.found import Interval, names_in
from benchmarks.hls_check.ir import Loop
from benchmarks.hls_check.operators import CLOCKS, Delays
from benchmarks.hls_check.recurrence import Body
from benchmarks.hls_check.schedule import HAND_OVER as LEAST
from benchmarks.hls_check.stages import main, stages_in
from pipec.backends.fpga.arithmetic import operators, step_depth
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.emit.beside import files_beside, share
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.norm import ROW_OPS, Norm
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.steps import BINARY, UNARY
from pipec.backends.fpga.links import HAND_OVER
from pipec.backends.fpga.lowering.types import own_type, parse_types
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.file import load_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from tests.fpga.emit.harness import Case, design_of, row_unit, write_row_unit
from tests.fpga.emit.test_shared_link import ends
from tests.sampling import each, some, without

ENGINES = Path(__file__).resolve().parents[3] / "backends/fpga/hls/engines"
needs_clang = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")


def pauses(folder: Path, nest: Norm, clock: float) -> list[Interval]:
    """The pauses of a row unit between its own ports."""
    write_row_unit(nest, folder)
    return [i for i in loops_in(folder / "src", clock) if i.pause]


@needs_clang
@pytest.mark.parametrize(
    ("op", "shape"), each(ROW_OPS, [(1, 30, 300.0), (4, 40, 200.0), (3, 100, 200.0)])
)
def test_row_units_drain_as_long_as_they_say(
    tmp_path: Path, op: str, shape: tuple[int, int, float]
) -> None:
    """Operators on the longest path of a pass and behind it: no less is declared, and hardly more;
    ten cycles, or half of them where that is more, are too few."""
    lanes, channels, clock = shape
    nest = row_unit(op, lanes, channels, clock)
    found = pauses(tmp_path / "whole", nest, clock)
    assert sorted(i.declared for i in found) == sorted(nest.gaps)
    assert all(i.ok for i in found), found
    assert sum(nest.gaps) <= 1.5 * sum(i.least for i in found)
    short = dataclasses.replace(nest, gaps=tuple(max(10, gap // 2) for gap in nest.gaps))
    assert not all(i.ok for i in pauses(tmp_path / "short", short, clock))


@needs_clang
@pytest.mark.parametrize(
    ("sizes", "order", "ends"),
    [((4, 68), (1, 0), (272, 17, 272, 17)), ((4, 12, 4, 5), (3, 2, 1, 0), (240, 15, 60, 6)),
     ((64, 4, 3), (2, 1, 0), (12, 1, 256, 1)), ((512, 12), (1, 0), (12, 4, 512, 4))],
)  # fmt: skip
def test_a_place_takes_no_longer_than_estimated(
    tmp_path: Path, sizes: tuple[int, ...], order: tuple[int, ...], ends: tuple[int, int, int, int]
) -> None:
    """In registers, whole tokens and banks; three of the four take every cycle of it."""
    nest, total = Perm(1, sizes, order, *ends), math.prod(sizes)
    x, y = (np.zeros((total // c, c), np.float32) for c in ends[::2])
    case = Case("unit", nest, [(x, ends[1])], [(y, ends[3])])
    write_stage(design_of([case]), tmp_path, golden=None)
    (found,) = (i for i in loops_in(tmp_path / "src", 300.0) if i.engine == "unit")
    assert nest.depth - 3 <= found.depth <= nest.depth


@needs_clang
@pytest.mark.parametrize(("way", "clock"), [("tx", 200.0), ("tx", 300.0), ("rx", 300.0)])
def test_a_packet_follows_another_as_late_as_the_estimate_says(
    tmp_path: Path, way: str, clock: float
) -> None:
    """From the last beat of a packet to the first one of the next: the loop over the beats drains,
    and what stands around it takes cycles; a packet is counted as a header, its beats, `HAND_OVER`.
    """
    design = ends({"x": (16, 700), "y": (3, 41)})[way == "rx"]
    values = [f"{'out' if way == 'tx' else 'in'}_{v}" for v in "xy"]
    for name, text in files_beside(design, [share(design, values, way)], platform=True).items():
        path = tmp_path / Path(name).name
        (path if path.suffix != ".cpp" else path.with_name("stage_top.cpp")).write_text(text)
    found = parse(tmp_path)
    bodies = [
        Body(f, part, found.arrays, Delays(clock), found.sizes)
        for f in found.functions
        for outer in f.loops
        for loop in f.loops
        if {"send", "receive"} & set(names_in(f.name)) and loop.blocks < outer.blocks
        for part in (loop, Loop(outer.header, outer.blocks - loop.blocks))
    ]
    inner, around = (b.cycles for b in bodies)
    assert 3 < max(inner, 1) + around + LEAST <= 1 + 1 + HAND_OVER


GRADIENTS = ("relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")


STEP = """
void step_{op}(int n, hls::stream<float> &in, hls::stream<float> &out) {{
  for (int i = 0; i < n; ++i) {{
#pragma HLS PIPELINE II = 1
    FIRE(1, {depth});
    const float x = in.read();
    out.write(ops::{op}(x{operands}));
  }}
}}
"""


@needs_clang
@pytest.mark.parametrize("clock", [200.0, 300.0])
def test_elementwise_steps_take_no_longer_than_estimated(tmp_path: Path, clock: float) -> None:
    """Every step of a `Map`, alone; one that is a cycle shorter is seen among them."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    two = (*BINARY, "leaky_relu", "elu", *(f"{op}_grad" for op in GRADIENTS))
    operands = dict.fromkeys(UNARY, "") | dict.fromkeys(two, ", in.read()")
    depths = {op: step_depth(op, "float32", clock) + 1 for op in operands}
    steps = (STEP.format(op=op, depth=depths[op], operands=o) for op, o in operands.items())
    calls = "\n".join(f"  engine::step_{op}(n, a, b);" for op in operands)
    top = "void stage_top(int n, hls::stream<float> &a, hls::stream<float> &b)"
    includes = '#include "engines/base.h"\n#include "engines/ops.h"\nnamespace engine {'
    text = f"{includes}{''.join(steps)}}}\n{top} {{\n{calls}\n}}\n"
    (tmp_path / "stage_top.cpp").write_text(text)
    found = loops_in(tmp_path, clock)
    assert {i.kind for i in found} == {f"step_{op}" for op in operands}
    assert {i.kind: i.short for i in found if not i.ok} == {}


class Rows(nn.Module):
    """A linear layer, a norm of rows, and a softmax over lanes that do not divide its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(12, 30), nn.LayerNorm(30)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(torch.sigmoid(self.linear(x))), -1)


@needs_clang
@pytest.mark.parametrize("precision", some(1, ["float32", "bfloat16"]))
def test_a_board_with_a_fast_clock_has_deep_pipelines(tmp_path: Path, precision: str) -> None:
    """At 300 MHz all emitted loops and pauses hold; with the depths of 200 MHz they do not."""
    model, depths = Rows(), {}
    for clock in (200, 300):
        cluster = tmp_path / f"{clock}.toml"
        cluster.write_text(f'[[device]]\nkind = "vcu118"\nclock = "{clock} MHz"\n')
        graph = trace(model, (torch.randn(1, 16, 12),), source=Source("torch", "rows"))
        plan = make_plan(graph, load_cluster(cluster), "fpga", options={"precision": precision})
        emit(plan, tmp_path / str(clock))
        (stage,) = stages_in(tmp_path / str(clock))
        assert all(i.ok for i in intervals(stage))
        depths[clock] = sum(i.declared_depth or 0 for i in intervals(stage))
    assert depths[200] < depths[300]
    assert not all(i.ok for i in loops_in(stages_in(tmp_path / "200")[0] / "src", 300.0))


@needs_clang
def test_a_depth_written_by_hand_is_found(tmp_path: Path) -> None:
    """The line that differs from ``stage.json``, what is wrong with it, and exit code 1."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    graph = trace(model, (torch.randn(1, 4),), source=Source("torch", "two"))
    (design,) = designs_of(make_plan(graph, parse_cluster("1xvcu118"), "fpga"))
    write_stage(design, tmp_path, golden=None)
    assert CliRunner().invoke(main, [str(tmp_path)]).exit_code == 0
    types, depth = tmp_path / "src" / "types.h", f"DEPTH = {design.engine('sigmoid_map').depth};"
    text = types.read_text()
    assert text.count(depth) == 1
    for wrong, said in {
        -3: "impossible DEPTH\n  where: engine sigmoid_map\n  got:   -3\n  want:  a constant of 1",
        3_000_000_000: "got:   -1294967296",
        2: "deeper than declared",
    }.items():
        types.write_text(text.replace(depth, f"DEPTH = {wrong};"))
        red = CliRunner().invoke(main, [str(tmp_path)])
        assert red.exit_code == 1
        assert f"[bound] sigmoid_map::DEPTH is {wrong}, stage.json gives" in red.output
        assert said in red.output


TYPES = ("float32", "bfloat16", "float16", "ap_fixed<24,8>", "ap_fixed<8,4>")


@needs_clang
@pytest.mark.parametrize("clock", without([200, 300], [200]))
def test_types_of_single_layers_hold_what_they_declare(tmp_path: Path, clock: int) -> None:
    """Each type to each other one, and a row unit in each: loops, depths and pauses."""
    layers, types = list[nn.Module](), list[str]()
    for kind in islice(table.in_turn(TYPES), len(TYPES) * (len(TYPES) - 1) + 1):
        units = [nn.Linear(4, 4), *[nn.LayerNorm(4)] * (kind not in types)]
        layers += units
        types += [kind] * len(units)
    precision = "; ".join(["float32", *(f"{k} = {kind}" for k, kind in enumerate(types))])
    (tmp_path / "clock.toml").write_text(f'[[device]]\nkind = "vcu118"\nclock = "{clock} MHz"\n')
    graph = trace(nn.Sequential(*layers), (torch.randn(4, 4),), source=Source("torch", "tour"))
    cluster = load_cluster(tmp_path / "clock.toml")
    (design,) = designs_of(make_plan(graph, cluster, "fpga", options={"precision": precision}))
    write_stage(design, tmp_path / "stage", golden=None)
    found = intervals(tmp_path / "stage")
    assert sum("cast" in i.engine and i.kind.startswith("map") for i in found) >= 20
    assert {i.engine: (i.depth, i.declared_depth) for i in found if not i.ok} == {}


def test_layers_of_a_mixed_model_have_types_in_turn() -> None:
    """Each pair of types once in twenty steps, and each node its own of these."""
    for types in (TYPES, table.TYPES):
        assert len({*pairwise(islice(table.in_turn(types), 21))}) == 20
    graph = trace(Rows(), (torch.randn(1, 16, 12),), source=Source("torch", "rows"))
    own, calls = parse_types(table.mix(graph)).own, list(graph.calls)
    assert [own_type(n, own) for n in calls] == [*islice(table.in_turn(table.TYPES), len(calls))]


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_estimate_has_the_cores_of_the_reports(clock: float) -> None:
    """A core of latency L has L + 1 stages; at slow clocks the estimate may say more."""
    cores, delays = operators(clock), Delays(clock)
    stages = {"fadd": cores.add, "fmul": cores.mul, "fdiv": cores.div, "sqrt": cores.root,
              "exp": cores.exp}  # fmt: skip
    needed = {name: round(delays.core(name) / delays.usable) + 1 for name in stages}
    assert all(needed[name] <= stages[name] for name in needed), needed
    if clock > 100:
        assert needed == stages
