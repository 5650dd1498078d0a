"""Intervals from the code of engines, and faults that make them longer."""

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hls_check.compiled import intervals, loops_in, parse
from benchmarks.hls_check.found import Interval, names_in
from benchmarks.hls_check.stages import stages_in
from pipec.backends.fpga.arithmetic import arithmetic, operators, sums_depth
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.engines.poolgrad import Scatter
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from tests.fpga.training.models import cnn
from tests.sampling import some

ENGINES = Path(__file__).resolve().parents[3] / "backends/fpga/hls/engines"
needs_clang = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")

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
@pytest.mark.parametrize(
    "precision", some(3, ["float32", "float16", "bfloat16", "int8", "ap_fixed<16,6>"], "int8")
)
def test_pooling_reaches_its_interval(precision: str, tmp_path: Path) -> None:
    """The emitted loops of a whole network, and once more with one partial result less.

    All loops are cut at once: by unlike numbers, so that none passes for another, and by one each.
    """
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
    least = [dict.fromkeys(every, 1)] if precision == "float32" else []
    for less in (every, *least):
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
def test_a_block_in_memory_is_repeated_within_its_depth(tmp_path: Path) -> None:
    """What is written and read again at once takes a stage more."""
    shutil.copytree(ENGINES, tmp_path / "engines")
    fields = {"header": "route", "call": "repeat<cfg::unit>(frames, a, b)", "a": 1, "b": 1, "w": 1}
    text = MORE.format(constants="OUTER = 2, INNER = 18, TIMES = 12", **fields)
    (tmp_path / "stage_top.cpp").write_text(text.replace("DEPTH = 60", "DEPTH = 2"))
    assert [i.short for i in loops_in(tmp_path, 200.0)] == [0]
    path = tmp_path / "engines" / "route.h"
    before, block, rest = path.read_text().partition("V token = block[t];")
    after = rest.partition("out.write(token);")[2]
    late = "if (r == 0) block[t] = in.read();\n        out.write(block[t]);"
    path.write_text(f"{before}{late}{after}")
    assert block
    assert [i.short for i in loops_in(tmp_path, 200.0)] == [1]


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
