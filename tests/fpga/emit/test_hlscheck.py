"""Intervals from the code: loops of vendor reports, forms that differ by one fault, engines."""

import dataclasses
import math
import re
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hls_check.compiled import intervals, loops_in, parse
from benchmarks.hls_check.found import Interval, last_name, names_in
from benchmarks.hls_check.ir import Loop, functions
from benchmarks.hls_check.operators import CLOCKS, Delays
from benchmarks.hls_check.recurrence import Body
from benchmarks.hls_check.schedule import HAND_OVER as LEAST
from benchmarks.hls_check.stages import stages_in
from pipec.backends.fpga.arithmetic import arithmetic, operators, step_depth, sums_depth
from pipec.backends.fpga.emit.beside import files_beside, share
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.norm import ROW_OPS, Norm
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.poolgrad import Scatter
from pipec.backends.fpga.engines.steps import BINARY, UNARY
from pipec.backends.fpga.links import HAND_OVER
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.file import load_cluster
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from tests.fpga.emit.harness import Case, design_of
from tests.fpga.emit.test_shared_link import ends
from tests.fpga.training.models import cnn

ENGINES = Path(__file__).resolve().parents[3] / "backends/fpga/hls/engines"
needs_clang = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")

KERNEL = """
#include "hls_stream.h"
namespace engine {{
void work(int n, hls::stream<float> &in, hls::stream<float> &out) {{
{before}
  for (int i = 0; i < n; ++i) {{
    for (int k = 0; k < {trip}; ++k) {{
#pragma HLS PIPELINE II = 1
      FIRE(1, {depth});
{body}
    }}
  }}
}}
}}
void stage_top(int n, hls::stream<float> &a, hls::stream<float> &b) {{ engine::work(n, a, b); }}
"""


def least(
    folder: Path, clock: float, body: str, before: str = "", trip: int = 64, depth: int = 30
) -> Interval:
    folder.mkdir(exist_ok=True)
    text = KERNEL.format(body=body, before=before, trip=trip, depth=depth)
    (folder / "stage_top.cpp").write_text(text)
    (found,) = loops_in(folder, clock)
    good = found.least == 1 and found.depth <= depth
    assert (found.kind, found.declared, found.ok) == ("work", 1, good)
    return found


@needs_clang
@pytest.mark.parametrize(("clock", "ii"), [(220.0, 3), (250.0, 3), (300.0, 4)])
def test_a_naive_sum_takes_what_vitis_reports(tmp_path: Path, clock: float, ii: int) -> None:
    """67 loops at 300 MHz and 8 at 250 MHz of Stream-HLS and Prometheus."""
    body = "sum += in.read(); out.write(sum);"
    assert least(tmp_path / "s", clock, body, "float sum = 0;").recurrence == ii


@needs_clang
def test_a_guarded_sum_in_memory_takes_what_vitis_reports(tmp_path: Path) -> None:
    """2 loops at 250 MHz: load, adder, store."""
    body = "float x = in.read(); if (x > 0) { at = int(x); } sum[at] += x;"
    assert least(tmp_path / "s", 250.0, body, "static float sum[64]; int at = 0;").recurrence == 5


RAM = "sum[k] = (i ? sum[k] : 0.0f) + in.read(); out.write(sum[k]);"


@needs_clang
@pytest.mark.parametrize(("trip", "ii"), [(3, 2), (5, 2), (6, 1), (8, 1), (64, 1)])
def test_the_distance_of_a_word_is_the_loop_around_it(tmp_path: Path, trip: int, ii: int) -> None:
    """A fabric adder at 300 MHz and a RAM: six iterations, one less is too few."""
    found = least(tmp_path / "s", 300.0, RAM, f"static float sum[{trip + 2}];", trip)
    assert found.recurrence == ii


RING = """
      const float now = (k < {n} ? 0.0f : sum[{n} - 1]) + in.read();
      for (int j = {n} - 1; j > 0; --j) {{
#pragma HLS UNROLL
        sum[j] = sum[j - 1];
      }}
      sum[0] = now;
      out.write(now);
"""


@needs_clang
def test_mutations_are_seen(tmp_path: Path) -> None:
    """A turning ring a register shorter, a computed index, a port fewer, a pragma less."""
    ring = {n: least(tmp_path / f"r{n}", 300.0, RING.format(n=n), f"float sum[{n}] = {{}};")
            for n in (4, 5)}  # fmt: skip
    assert {n: found.recurrence for n, found in ring.items()} == {4: 2, 5: 1}
    partition = "#pragma HLS ARRAY_PARTITION variable = sum complete\n"
    computed = "sum[at] += in.read(); at = at == 4 ? 0 : at + 1; out.write(sum[at]);"
    found = least(tmp_path / "c", 300.0, computed, f"float sum[5] = {{}}; int at = 0;\n{partition}")
    assert found.recurrence >= 4
    bind = "#pragma HLS BIND_STORAGE variable = line type = ram_2p\n"
    line = "static float line[64];\n"
    read = "out.write(line[k] + line[k ^ 1]); line[(k + 9) & 63] = in.read();"
    assert least(tmp_path / "p", 300.0, read, line + bind).ports == 2
    assert least(tmp_path / "q", 300.0, "out.write(line[k]); line[(k + 9) & 63] = in.read();",
                 line + bind).ports == 1  # fmt: skip
    rom = "static const float line[8] = {3, 1, 4, 1, 5, 9, 2, 6};\n"
    thrice = "out.write(line[k & 7] + line[k >> 3] + line[(k + i) & 7]);"
    for kind, ii in (("rom_2p", 2), ("rom_np", 1)):
        bind = f"#pragma HLS BIND_STORAGE variable = line type = {kind}\n"
        assert least(tmp_path / kind, 300.0, thrice, rom + bind).ports == ii
    far = "sum[at & 63] += in.read(); at += 5; out.write(0);"
    said = "#pragma HLS DEPENDENCE variable = sum type = inter direction = RAW distance = {} true\n"
    ram = "static float sum[64]; int at = 0;\n"
    distances = {d: least(tmp_path / f"d{d}", 300.0, far, ram + said.format(d)) for d in (3, 8)}
    assert {d: f.recurrence for d, f in distances.items()} == {3: 2, 8: 1}
    assert least(tmp_path / "n", 300.0, far, ram).recurrence >= 5


CHAIN = "const float x = in.read(); out.write((x * 3.5f + 1.25f) * x);"
LAST = "sum = (k ? sum : 0.0f) + in.read(); if (k == 63) out.write(sum * 3.5f);"
EARLIER = "y[k] = in.read() * 3.5f; out.write(y[k ^ 32]);"
WHOLE = "const int x = int(in.read()); out.write(float({}));"


@needs_clang
@pytest.mark.parametrize(
    ("body", "before", "depth"),
    [(CHAIN, "", 4 + 7 + 4 + 1), (LAST, "float sum = 0;", 1 + 5 + 4 + 1),
     (EARLIER, "static float y[64];", 4 + 2)],
)  # fmt: skip
def test_a_depth_that_is_one_short_is_seen(
    tmp_path: Path, body: str, before: str, depth: int
) -> None:
    """Operators in series at 300 MHz; behind the last iteration; of a word of one before."""
    for declared in (depth, depth - 1):
        found = least(tmp_path / "s", 300.0, body, before, depth=declared)
        assert (found.depth, found.short) == (depth, depth - declared)


@needs_clang
def test_sums_of_integers_are_trees_whatever_the_compiler_makes_of_them(tmp_path: Path) -> None:
    """Two additions of 32 bits fit into a cycle at 300 MHz: four levels take two."""
    depths = {}
    for terms in (2, 16):
        sums = " + ".join(f"(x ^ {7 * k + 1})" for k in range(terms))
        depths[terms] = least(tmp_path / f"s{terms}", 300.0, WHOLE.format(sums)).depth
    assert depths[16] - depths[2] in (1, 2)


def test_loops_and_blocks_of_ir() -> None:
    text = """
define void @f(i32 %n) {
entry:
  br label %head

head:                                             ; preds = %body, %entry
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %done = icmp eq i32 %i, %n
  br i1 %done, label %out, label %body

body:                                             ; preds = %head
  %next = add nuw nsw i32 %i, 1
  br label %head

out:                                              ; preds = %head
  ret void
}
"""
    (f,) = functions(text)
    (loop,) = f.loops
    assert (loop.header, set(loop.blocks)) == ("%head", {"%head", "%body"})
    assert f.defined["%i"].incoming == [("0", "%entry"), ("%next", "%body")]
    assert f.innermost("%out") is None


UNIT = """
#include "engines/{header}.h"
namespace cfg {{
struct unit {{
  using T = float;
  static constexpr int N = 4, GROUPS = 1, NF = {nf}, SF = 12, PE = 2, SIMD = 2, PARTIAL = {partial};
  static constexpr int II = 1, DEPTH = 9;
}};
}}
static vec<float, 4> weight[{nf} * 12];
void stage_top(int frames, hls::stream<vec<float, 2>> &a, hls::stream<vec<float, 2>> &b) {{
  engine::{engine}<cfg::unit, float>(frames, a, b, weight, engine::no_bias{{}});
}}
"""


def unit(folder: Path, engine: str, *, nf: int = 3, partial: int = 1) -> Interval:
    shutil.copytree(ENGINES, folder / "engines")
    text = UNIT.format(header="mvu", engine=engine, nf=nf, partial=partial)
    (folder / "stage_top.cpp").write_text(text)
    (found,) = loops_in(folder, 300.0)
    assert (found.kind, found.engine) == (engine, "unit")
    return found


@needs_clang
def test_matrix_units_reach_their_interval(tmp_path: Path) -> None:
    """Order A by its ring of partial sums, order B by its outputs; one fewer is too few."""
    ring = {p: unit(tmp_path / f"a{p}", "mvu_a", partial=p).recurrence for p in (4, 5)}
    words = {n: unit(tmp_path / f"b{n}", "mvu_b", nf=n).recurrence for n in (5, 6)}
    assert ring == {4: 2, 5: 1}
    assert words == {5: 2, 6: 1}
    assert all(arithmetic(dtype, 300.0).add_latency == 6 for dtype in ("float32", "bfloat16"))


@needs_clang
def test_an_adder_less_than_estimated_is_too_few(tmp_path: Path) -> None:
    """The estimated depth holds at 300 MHz, where it is no longer by as much as an adder."""
    found = unit(tmp_path / "unit", "mvu_a")
    estimate = sums_depth("float32", 2, 1, 2, clock_mhz=300.0)
    assert estimate - operators(300.0).add < found.depth <= estimate
    assert found.short == found.depth - 9


@pytest.mark.parametrize(
    ("mangled", "names"),
    [
        ("_ZN6engine3swgIN3cfg8conv_swgEEEvi", ("engine", "swg", "cfg", "conv_swg")),
        ("_ZZN6engine4workEiRN3hls6streamIfLi0EEES3_E3sum",
         ("engine", "work", "hls", "stream", "sum")),
        ("_ZZN3cfg5leaky2opE9quantisedILi12246598ELin29ELi10EEE6result",  # its zero point is 10
         ("cfg", "leaky", "op", "quantised", "result")),
        ("_ZN6engineL3dwcI3cfgEEvRNS_4gearIXsrT_5LANESELi4EEET2_S10_2ab",
         ("engine", "dwc", "cfg", "gear", "LANES", "ab")),
    ],
)  # fmt: skip
def test_names_are_read_from_mangled_ones(mangled: str, names: tuple[str, ...]) -> None:
    """A number given to a template is no length, whatever follows it."""
    assert names_in(mangled)[: len(names)] == names
    assert (last_name(mangled), last_name("acc")) == (names[-1], "acc")


PRODUCT = """
#include "engines/matmul.h"
namespace cfg {{
struct unit {{
  using T = float;
  static constexpr int BLOCKS = 2, OUTER = 8, GROUPS = 2, INNER = 1, NF = 4, TAPS = 1, C = 32;
  static constexpr int SF = 4, PE = 8, SIMD = 8, PARTIAL = 5, LOAD = 512, B_LANES = 4, B_C = 32;
  static constexpr int BY_ROW = {by_row}, II = 1, DEPTH = 20;
  static float finish(float sum) {{ return sum; }}
  static engine::b_place place(int i) {{
    const int c = i % 32, j = i / 32 % 32, g = i / 1024;
    return {{g, {by_row} ? c : j, {by_row} ? j : c}};
  }}
}};
}}
void stage_top(int frames, hls::stream<vec<float, 8>> &a, hls::stream<vec<float, 4>> &b,
               hls::stream<vec<float, 8>> &y) {{
  engine::matmul<cfg::unit>(frames, a, b, y);
}}
"""


@needs_clang
@pytest.mark.parametrize("by_row", [0, 1])
def test_a_token_of_the_operand_that_is_held_is_one_write(tmp_path: Path, by_row: int) -> None:
    """Elements of several words would be several writes."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    (tmp_path / "stage_top.cpp").write_text(PRODUCT.format(by_row=by_row))
    assert [i.least for i in loops_in(tmp_path, 200.0)] == [1]
    header = tmp_path / "engines" / "matmul.h"
    at_once = "matmul_store<G>(b, at, token, "
    apart = "for (int p = 0; p < G::B_LANES; ++p) {\n#pragma HLS UNROLL\n"
    apart += "matmul_store<G>(b, G::place(row * G::B_C + 32 * p), token, 1); }  (void)("
    assert at_once in header.read_text()
    header.write_text(header.read_text().replace(at_once, apart))
    assert max(i.ports for i in loops_in(tmp_path, 200.0)) > 1


WINDOWS = """
#include "engines/swg.h"
namespace cfg {{
struct unit {{
  using T = float;
  static constexpr int BATCH = 1, H = 9, W = 9, CF = {cf}, LANES = 2, KH = 3, KW = 3, SH = 1;
  static constexpr int SW = 1, DH = 1, DW = 1, PT = 1, PL = 1, OH = 9, OW = 9, GROUPS = {cf};
  static constexpr int KP = {kp}, II = 1, DEPTH = 3;
  static constexpr int FIRINGS = 500, LEAD = 20, START = 9, SLOTS = 40;
  static float pad() {{ return 0; }}
}};
}}
void stage_top(int frames, hls::stream<vec<float, 2>> &a, hls::stream<vec<float, 2 * {kp}>> &b) {{
  engine::swg_{form}<cfg::unit>(frames, a, b);
}}
"""


@needs_clang
@pytest.mark.parametrize(
    ("form", "cf", "kp", "clock"),
    [("line", 1, 9, 300.0), ("line", 8, 9, 300.0), ("line", 8, 3, 200.0), ("ring", 1, 1, 200.0),
     ("ring", 8, 1, 200.0)],
)  # fmt: skip
def test_window_generators_reach_their_interval(
    tmp_path: Path, form: str, cf: int, kp: int, clock: float
) -> None:
    """No memory is met twice in a firing, nor again in the next one; without a pragma it may be."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    (tmp_path / "stage_top.cpp").write_text(WINDOWS.format(form=form, cf=cf, kp=kp))
    (found,) = loops_in(tmp_path, clock)
    assert (found.kind, found.least) == (f"swg_{form}", 1), found
    header = tmp_path / "engines" / "swg.h"
    whole = header.read_text()
    if form == "line":
        header.write_text(whole.replace("direction = RAW distance = 2", "direction = RAW"))
        assert loops_in(tmp_path, clock)[0].recurrence == 2
    else:
        second = "const auto x = in.read(); ring[at.to] = x; ring[at.to ^ 1] = x;"
        header.write_text(whole.replace("ring[at.to] = in.read();", second))
        assert loops_in(tmp_path, clock)[0].ports == 2


OTHERS = """
#include "engines/{header}.h"
namespace cfg {{
struct unit {{
  using T = float;
  static constexpr int REPEAT = 4, FIRINGS = 30, C_IN = {c}, C_OUT = {c}, LANES_IN = 4;
  static constexpr int LANES_OUT = 6, ROWS = 3, TAPS = 1, C = {c}, LANES = 4;
  static int gap(int) {{ return 99; }}
  static constexpr int N = 4, WINDOW = 49, CF = {c}, KP = 1, PARTIAL = 5, II = 1, DEPTH = 9;
  static constexpr bool LOG = false;
  static float eps() {{ return 1; }}
  static float combine(float x, float y) {{ return x + y; }}
}};
}}
void stage_top(int frames, hls::stream<vec<float, 4>> &a, hls::stream<vec<float, {out}>> &b) {{
  engine::{call};
}}
"""


@needs_clang
@pytest.mark.parametrize(
    ("header", "call", "old", "new"),
    [
        ("norm", "layer_norm<cfg::unit, float>(frames, a, b, engine::no_table{}, "
         "engine::no_table{})", "SIZE = 8", "SIZE = 2"),
        ("norm", "softmax<cfg::unit, float>(frames, a, b)", "SIZE = 8", "SIZE = 2"),
        ("reduce", "reduce<cfg::unit, float>(frames, a, b, engine::unscaled{})",
         "smaller(G::PARTIAL, G::WINDOW)", "2"),
        ("gear", "dwc<cfg::unit>(frames, a, b)", "const bool take = credit < 0;",
         "const bool take = (credit + want) % 7 < want;"),
    ],
)  # fmt: skip
def test_sums_and_converters_reach_their_interval(
    tmp_path: Path, header: str, call: str, old: str, new: str
) -> None:
    """Fewer sums in turn are too slow, and so is a converter with a division on its way."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    wide = 6 if header == "gear" else 4
    text = OTHERS.format(header=header, call=call, c=1 if header == "reduce" else 26, out=wide)
    (tmp_path / "stage_top.cpp").write_text(text)
    assert {i.least for i in loops_in(tmp_path, 200.0) if not i.pause} == {1}
    path = next(p for p in (tmp_path / "engines").glob("*.h") if old in p.read_text())
    path.write_text(path.read_text().replace(old, new))
    assert max(i.least for i in loops_in(tmp_path, 200.0)) > 1


class Pooled(nn.Module):
    """Maxima and averages of windows, one token each, a chain of steps, means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.max_pool2d(functional.leaky_relu(self.conv(x)), 2) * 0.3 + 0.1
        return self.head(functional.avg_pool2d(y, 3, 2).mean((2, 3)))  # type: ignore[no-any-return]


@needs_clang
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "int8", "ap_fixed<16,6>"])
def test_pooling_reaches_its_interval(precision: str, tmp_path: Path) -> None:
    """The emitted loops of a whole network, and once more with one partial result less."""
    graph = trace(Pooled().eval(), (torch.randn(1, 3, 16, 16),), source=Source("memory", ""))
    options = {"precision": precision}
    emit(make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options), tmp_path / "out")
    (stage,) = stages_in(tmp_path / "out")
    found = intervals(stage)
    assert {"reduce", "swg_line"} <= {i.kind for i in found}
    assert all(i.ok for i in found), [i for i in found if not i.ok]
    types = stage / "src" / "types.h"
    text = types.read_text()
    loops = [i for i in found if i.kind in {"reduce", "swg_line", "mvu_a", "mvu_b", "map1"}]
    every = {loop.engine: min(k, loop.depth - 1) for k, loop in enumerate(loops, 1)}
    alone = [{engine: 1} for engine in every] if precision == "float32" else []
    for less in (every, *alone):
        cut = text
        for loop in (i for i in loops if i.engine in less):
            old = re.compile(rf"(struct {loop.engine} \{{[^}}]*? DEPTH = )\d+")
            cut = old.sub(rf"\g<1>{loop.depth - less[loop.engine]}", cut)
        types.write_text(cut)
        assert {i.engine: i.short for i in intervals(stage) if not i.ok} == less
    types.write_text(text)
    if precision == "int8":  # eight lanes read the table of leaky ReLU
        types.write_text(text.replace("type = rom_np", "type = rom_2p"))
        (short,) = (i for i in intervals(stage) if not i.ok)
        assert (short.kind, short.ports, short.memory) == ("map1", 4, "result")
    if precision in ("float32", "bfloat16"):
        assert "PARTIAL = 2" in text  # of the maxima: a comparison and a choice
        types.write_text(text.replace("PARTIAL = 2", "PARTIAL = 1"))
        assert [i.kind for i in intervals(stage) if not i.ok] == ["reduce"]


@needs_clang
def test_engines_have_the_additions_that_they_are_priced_with(tmp_path: Path) -> None:
    """Counters and addresses in clang's IR; a nest of loops made one has a counter more for each.

    Converters and outer products are left out: lane by lane they add what is no control.
    """
    plan = make_plan(
        cnn(), parse_cluster("1xvcu118"), "fpga", passes=default_passes(schedule="1f1b")
    )
    emit(plan, tmp_path / "out")
    every = [f for stage in stages_in(tmp_path / "out") for f in parse(stage / "src").functions]
    found: dict[str, list[int]] = defaultdict(list)
    for function in every:
        marks = [i for i in function if i.callee == "@pipec_pipeline"]
        words = [name for name in names_in(function.name) if name not in ("engine", "detail")]
        kind = "".join(words[:1]).rstrip("12").partition("_")[0]
        if kind in Nest.KINDS and marks:
            around = [sum(mark.block in loop.blocks for loop in function.loops) for mark in marks]
            inside = {label for loop in function.loops for label in loop.blocks}
            adds = [i for i in function if i.block in inside and i.op in ("add", "sub")]
            found[kind].append(len(adds) + max(around) - 1)
    assert {"swg", "argmax", "scatter", "matmul", "mvu", "map", "reduce"} <= set(found)
    for kind in found.keys() - {"dwc", "outer"}:
        assert max(found[kind]) / 2 <= Nest.KINDS[kind].additions <= 2 * max(found[kind]), kind


MORE = """
#include "engines/memory.h"
#include "engines/{header}.h"
namespace cfg {{
struct unit {{
  using T = float;
  static constexpr int {constants}, II = 1, DEPTH = 60;
  static float op(float x, float sum) {{ return x * sum; }}
  static int gap(int) {{ return 99; }}
  static int from(int i) {{ return remainder_of<6, 96>(i) * 4 + quotient_of<6, 96>(i); }}
}};
}}
vec<float, 3> table[20];
void stage_top(int frames, hls::stream<vec<float, {a}>> &a, hls::stream<vec<float, {b}>> &b,
               hls::stream<vec<float, {w}>> &w, hls::stream<vec<int, 2>> &at,
               const float *memory) {{
  engine::{call};
}}
"""
BLOCK = "N = 40, NF = 3, SF = 12, PE = 2, SIMD = 2, BLOCK = {}, PARTIAL = {}"
SUMS = "N = 9, GROUPS = 1, ROWS = 4, NF = 1, SF = {}, PE = 4, SIMD = 2, PARTIAL = {}"
SUMMED = "TOKENS = 4, LANES = 2, FIRINGS = {}"
PLACES = "BATCH = 1, H = 9, W = 9, CF = {0}, LANES = 2, SH = 1, PT = 0, OH = 7, OW = 7, RING = 3"
MAXIMA = "BATCH = 1, W = 9, CF = 1, LANES = 2, KH = 3, KW = 3, SH = 1, SW = 1, DH = 1, DW = 1, "
MAXIMA += "PT = 0, PL = 0, OH = 7, OW = 7"
ORDER = "BLOCKS = 2, ELEMENTS = 96, C_IN = 24, LANES_IN = 4, READS = 24, C_OUT = 24, "
ORDER += "LANES_OUT = 4, WRITES = 24"
ROWS = "ROWS = 3, TAPS = 1, C = 26, LANES = 2, BEFORE = 2, AFTER = 2"


@needs_clang
@pytest.mark.parametrize(
    ("header", "call", "lanes", "good", "bad"),
    [
        ("mvu", "mvu_block<cfg::unit, float, float>(frames, a, b, w, engine::no_bias{})",
         (2, 2, 4), BLOCK.format(2, 3), BLOCK.format(2, 1)),
        ("mvu", "mvu_block<cfg::unit, float, float>(frames, a, b, w, engine::no_bias{})",
         (2, 2, 4), BLOCK.format(5, 1), BLOCK.format(3, 1)),
        ("outer", "outer<cfg::unit>(frames, a, w, b)", (2, 2, 4), SUMS.format(1, 4),
         SUMS.format(1, 3)),
        ("outer", "outer<cfg::unit>(frames, a, w, b)", (2, 2, 4), SUMS.format(5, 1),
         SUMS.format(3, 1)),
        ("poolgrad", "scatter<cfg::unit>(frames, a, at, b)", (2, 2, 4),
         PLACES.format(5) + ", MEETS = 5", PLACES.format(3) + ", MEETS = 3"),
        ("poolgrad", "argmax<cfg::unit, float, int>(frames, a, at)", (2, 2, 4), MAXIMA,
         ("int32_t size = ordered(x.lane[p])", "float size = x.lane[p]",
          "vec<int32_t, G::LANES> best = zeros<int32_t", "vec<A, G::LANES> best = zeros<A")),
        ("norm", "lrn<cfg::unit, float>(frames, a, b)", (2, 2, 4), ROWS,
         ("line[smaller(BEHIND * G::LANES + p + i, SIZE - 1)]",
          "row[smaller(larger(c + i, 0), CF - 1)].lane[p]")),
        ("perm", "perm<cfg::unit>(frames, a, b)", (4, 4, 4), ORDER,
         ("#pragma HLS ARRAY_PARTITION variable = bank complete\n", "")),
        ("perm", "perm_words<cfg::unit>(frames, a, b)", (4, 4, 4), ORDER,
         ("word[i] = in.read();", "word[i] = in.read(); word[i / 2] = word[i / 3];")),
        ("transpose", "transpose<cfg::unit>(frames, a, b)", (4, 4, 4),
         "BLOCKS = 1, ROWS = 9, C = 7, LANES = 4",
         ("#pragma HLS ARRAY_PARTITION variable = bank complete dim = 1\n", "")),
        ("mover", "accumulate<cfg::unit>(frames, a, (vec<float, 2> *)memory, 5, frames)", (2, 2, 4),
         SUMMED.format(8), SUMMED.format(4)),
        ("memory", "load_table<float, 3>(memory, frames, table)", (2, 2, 4), "N = 1",
         ("table[word++] = to;", "{ table[word++] = to; table[word] = to; table[0] = to; }")),
    ],
)  # fmt: skip
def test_other_engines_reach_their_interval(
    tmp_path: Path, header: str, call: str, lanes: tuple[int, int, int], good: str,
    bad: str | tuple[str, ...],
) -> None:  # fmt: skip
    """A sum that returns early, a comparison of floats, a memory met too often: all are seen."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    (a, b, w), path = lanes, tmp_path / "engines" / f"{header}.h"
    fields = {"header": header, "call": call, "a": a, "b": b, "w": w}
    (tmp_path / "stage_top.cpp").write_text(MORE.format(constants=good, **fields))
    found = loops_in(tmp_path, 200.0)
    assert {i.ok for i in found} == {True}, [i for i in found if not i.ok]
    if isinstance(bad, str):
        (tmp_path / "stage_top.cpp").write_text(MORE.format(constants=bad, **fields))
    for old, new in zip(bad[::2], bad[1::2], strict=True) if isinstance(bad, tuple) else ():
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    assert max(i.least for i in loops_in(tmp_path, 200.0) if not i.pause) > 1


@needs_clang
def test_what_cannot_be_analysed_is_no_success(tmp_path: Path) -> None:
    """An address in one of two arrays; a loop that only its pragma marks is looked at, too."""
    two = "static float one[64], two[64];\n"
    body = "float *of = i % 3 ? one : two; of[k] += in.read(); out.write(of[k ^ 1]);"
    (tmp_path / "stage_top.cpp").write_text(KERNEL.format(body=body, before=two, trip=64, depth=30))
    (found,) = loops_in(tmp_path, 300.0)
    assert (bool(found.unknown), found.ok) == (True, False)
    body, before = "sum += in.read(); out.write(sum);", "float sum = 0;"
    text = KERNEL.format(body=body, before=before, trip=64, depth=30)
    (tmp_path / "stage_top.cpp").write_text(text.replace("FIRE(1, 30);", ""))
    (found,) = loops_in(tmp_path, 300.0)
    assert (found.declared, found.least, found.declared_depth, found.ok) == (1, 4, None, False)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "padding"),
    [((3, 3), (1, 1), 1, 0), ((3, 3), (2, 2), 1, 1), ((2, 2), (2, 2), 1, 0), ((3, 1), (1, 2), 1, 0),
     ((2, 2), (2, 2), 2, 0), ((3, 2), (1, 3), 2, 0), ((2, 2), (2, 2), 1, 1),
     ((12, 13), (1, 1), 1, 0)],
)  # fmt: skip
def test_gradients_meet_in_a_place_no_earlier_than_the_pragma_says(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: int, padding: int
) -> None:
    """`MEETS` of `Scatter`, by torch's own places of maxima and the words that are written; and
    once just as early."""
    x = torch.randn(40, 3, 12, 13, generator=torch.Generator().manual_seed(1))
    _, places = functional.max_pool2d(
        x, kernel, stride, padding, (dilation, dilation), return_indices=True
    )
    oh, ow = places.shape[2:]
    (kh, kw), (sh, sw) = kernel, stride
    nest = Scatter(
        batch=1, h=12, w=13, cf=3, lanes=1, kh=kh, kw=kw, sh=sh, sw=sw, dh=dilation, dw=dilation,
        pt=padding, pl=padding, oh=oh, ow=ow,
    )  # fmt: skip
    last, least, firing = dict[int, int](), nest.meets + 1, 0
    for image in places.permute(0, 2, 3, 1).reshape(40, oh, -1).tolist():
        to = 0
        for row, end in zip(image, nest.ends(), strict=True):
            words = [(p // 13 % nest.ring * 13 + p % 13) * 3 + k % 3 for k, p in enumerate(row)]
            written = [(to + k) % (nest.ring * 39) for k in range(39 * end)]
            to += 39 * end
            for word in (*words, *written):
                least = min(least, firing - last.get(word, -nest.meets - 1))
                last[word], firing = firing, firing + 1
    assert least == nest.meets
    assert nest.meets == (3 if kw * dilation - dilation >= sw else 3 * ow)


def row_unit(folder: Path, nest: Norm, clock: float) -> list[Interval]:
    """The pauses of a row unit between its own ports."""
    x, table = np.zeros((nest.rows, nest.channels)), np.ones((nest.cf, nest.lanes))
    tables = {role: table for role in ("scale", "shift") if getattr(nest, role)}
    ends = [(x.astype(np.float32), nest.lanes)]
    case = Case("unit", nest, ends * (1 + nest.is_gradient), ends, tables)
    write_stage(design_of([case]), folder, golden=None)
    return [i for i in loops_in(folder / "src", clock) if i.pause]


@needs_clang
@pytest.mark.parametrize(
    ("lanes", "channels", "clock"), [(1, 30, 300.0), (4, 40, 200.0), (3, 100, 200.0)]
)
@pytest.mark.parametrize("op", ROW_OPS)
def test_row_units_drain_as_long_as_they_say(
    tmp_path: Path, op: str, lanes: int, channels: int, clock: float
) -> None:
    """Operators on the longest path of a pass and behind it: no less is declared, and hardly more;
    ten cycles, or half of them, are too few."""
    affine = op in ("layer_norm", "rms_norm")
    nest = Norm(
        3, channels, 1, lanes, op, eps=1e-5, size=5 if op == "lrn" else 0,
        alpha=1e-4, beta=0.75, k=1.0, scale=affine or op == "layer_norm_gradient", shift=affine,
    )  # fmt: skip
    nest = dataclasses.replace(nest, gaps=nest.drains("float32", clock))
    found = row_unit(tmp_path / "whole", nest, clock)
    assert sorted(i.declared for i in found) == sorted(nest.gaps)
    assert all(i.ok for i in found), found
    assert sum(nest.gaps) <= 1.5 * sum(i.least for i in found)
    half = tuple(gap // 2 for gap in nest.gaps)
    for number, gaps in enumerate(((10,) * nest.passes, half)):
        short = dataclasses.replace(nest, gaps=gaps)
        assert not all(i.ok for i in row_unit(tmp_path / f"short{number}", short, clock))


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


@needs_clang
def test_converters_reach_their_interval_at_300_mhz(tmp_path: Path) -> None:
    """Their counters are as narrow as what they count; with one of 32 bits they do not."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    text = OTHERS.format(header="gear", call="dwc<cfg::unit>(frames, a, b)", c=26, out=6)
    (tmp_path / "stage_top.cpp").write_text(text)
    assert [i.least for i in loops_in(tmp_path, 300.0)] == [1]
    path = tmp_path / "engines" / "gear.h"
    narrow = "counter<PI + PO> have"
    assert narrow in path.read_text()
    path.write_text(path.read_text().replace(narrow, "int32_t have"))
    assert [i.least for i in loops_in(tmp_path, 300.0)] == [2]


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
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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
