"""Loops of any C++ by the check of intervals: what Vitis HLS 2023.2 reports of loops like these."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.hls_check.affine import Sum
from benchmarks.hls_check.source import Place, find_loops, read_places
from benchmarks.hls_check.vendor import Compared, compare, main

pytestmark = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")

PRODUCT = """#include <hls_stream.h>

void product(float a[64][32], hls::stream<float> &in, hls::stream<float> &out) {{
  float sum[64][16];
  float b[32][16];
  rows: for (int i = 0; i < 64; i++) {{
    {outer}: for (int {outer} = 0; {outer} < {outer_trips}; {outer}++) {{
      {inner}: for (int {inner} = 0; {inner} < {inner_trips}; {inner}++) {{
        #pragma HLS pipeline II=1
        if (i == 0) b[k][j] = in.read();
        if (k == 0) sum[i][j] = 0;
        sum[i][j] = sum[i][j] + a[i][k] * b[k][j];
        if (k == 31) out.write(sum[i][j]);
      }}
    }}
  }}
}}
"""
COPY = """#include <hls_stream.h>

void product(float a[64][32], hls::stream<float> &out) {
  #pragma HLS array_partition variable=a PARTITION
  rows: for (int i = 0; i < 64; i++) {
    words: for (int k = 0; k < 4; k++) {
      for (int u = 0; u < 8; u++) {
        out.write(a[i][8 * k + u]);
      }
    }
  }
}
"""
SUMS = """void product(float a[64][40], float x[40], float sum[64]) {
  for (int i = 0; i < 64; i++) {
    BEFORE
    for (int k = 0; k < 40; k++) {
      PRAGMA
      sum[i] = sum[i] + a[i][k] * x[k];
    }
  }
}
"""
TREE = """void product(float a[{words}][{all}], float x[{all}], float sum[{words}]) {{
  #pragma HLS array_partition variable=a cyclic factor=16 dim=2
  #pragma HLS array_partition variable=x cyclic factor=16 dim=1
  parts: for (int k = 0; k < 40; k++) {{
    words: for (int i = 0; i < {words}; i++) {{
      #pragma HLS pipeline II=1
      for (int u = 0; u < {terms}; u++) {{
        sum[i] = sum[i] + a[i][{terms} * k + u] * x[{terms} * k + u];
      }}
    }}
  }}
}}
"""
REPORT = """<profile>
<UserAssignments><TargetClockPeriod>{period}</TargetClockPeriod></UserAssignments>
<PerformanceEstimates><SummaryOfLoopLatency><{loop}>
<TripCount>1</TripCount><PipelineII>{ii}</PipelineII><PipelineDepth>{depth}</PipelineDepth>
</{loop}></SummaryOfLoopLatency></PerformanceEstimates>
<AreaEstimates><Resources><BRAM_18K>0</BRAM_18K></Resources></AreaEstimates></profile>
"""


def write(
    folder: Path, text: str, loop: str, ii: int, depth: int = 16, period: float = 3.33
) -> tuple[Path, Path]:
    """A design with the report of one loop, at a clock period in ns."""
    reports = folder / "project" / "solution1" / "syn" / "report"
    reports.mkdir(parents=True)
    (folder / "design.cpp").write_text(text)
    report = REPORT.format(loop=loop, ii=ii, depth=depth, period=period)
    (reports / "product_csynth.xml").write_text(report)
    return folder / "design.cpp", reports


def product(order: str) -> str:
    """A product of matrices, its inner loops in an order."""
    trips = {"j": 16, "k": 32}
    outer, inner = tuple(order)
    return PRODUCT.format(outer=outer, inner=inner, outer_trips=trips[outer],
                          inner_trips=trips[inner])  # fmt: skip


def found(folder: Path, text: str, loop: str, period: float = 3.33) -> Compared:
    """What the check says of the design's loop, whose interval is reported as 1."""
    (row,) = compare(write(folder, text, loop, 1, period=period), folder)
    return row


def test_a_sum_over_the_innermost_loop_takes_the_adder(tmp_path: Path) -> None:
    """67 loops of Stream-HLS at 300 MHz: interval 4, 14 to 16 stages."""
    row = found(tmp_path, product("jk"), "rows_j_k")
    assert (row.ii, row.equal) == (4, False)
    assert 14 <= row.depth <= 17


def test_a_sum_over_the_loop_around_waits_for_nothing(tmp_path: Path) -> None:
    """The same with the loops exchanged: 16 iterations lie between two additions."""
    row = found(tmp_path, product("kj"), "rows_k_j")
    assert (row.ii, row.equal) == (1, True)


@pytest.mark.parametrize(
    ("partition", "ii"),
    [("block factor=1 dim=1", 4), ("cyclic factor=4 dim=2", 1), ("cyclic factor=8 dim=2", 1),
     ("cyclic factor=8 dim=1", 4), ("cyclic factor=3 dim=2", 2), ("complete dim=0", 1)],
)  # fmt: skip
def test_ports_of_a_given_array_limit_the_interval(tmp_path: Path, partition: str, ii: int) -> None:
    """Eight words of an iteration: two ports of each bank."""
    text = COPY.replace("PARTITION", partition)
    assert found(tmp_path, text, "rows_words").ii == ii


def test_leading_dimensions_of_one_word_have_banks_too(tmp_path: Path) -> None:
    text = COPY.replace("a[64][32]", "a[1][64][32]").replace("a[i]", "a[0][i]")
    text = text.replace("PARTITION", "cyclic factor=8 dim=3")
    assert found(tmp_path, text, "rows_words").ii == 1


def test_a_sum_of_two_has_the_depth_of_the_reports(tmp_path: Path) -> None:
    """24 loops of Stream-HLS: a word of a memory in 2 cycles, an adder of 7 stages, a write."""
    text = COPY.replace("a[64][32]", "a[32]").replace("a[i][8 * k + u]", "1.5f + a[u + k]")
    text = text.replace("PARTITION", "cyclic factor=2 dim=1").replace("u < 8", "u < 1")
    row = found(tmp_path, text, "rows_words")
    assert (row.ii, row.depth) == (1, 10)


@pytest.mark.parametrize(("period", "ii"), [(3.33, 4), (4.0, 3), (4.55, 3), (2.5, 7)])
def test_operators_are_those_of_the_clock(tmp_path: Path, period: float, ii: int) -> None:
    """``fadd_32ns_32ns_32_4_no_dsp`` in reports at 220 and 250 MHz, ``_8_`` at 400."""
    rows = [found(tmp_path / str(p), product("jk"), "rows_j_k", p) for p in (period, 10.0)]
    assert rows[0].ii == ii
    assert rows[0].depth > rows[1].depth


@pytest.mark.parametrize(
    ("before", "pragma", "ii"),
    [("", "", 8), ("sum[i] = 0;", "", 8), ("sum[0] = 0;", "", 7),
     ("", "#pragma HLS pipeline II=1", 4), ("", "#pragma HLS pipeline", 4)],
)  # fmt: skip
def test_a_pipeline_that_nobody_asked_for_has_slow_adders(
    tmp_path: Path, before: str, pragma: str, ii: int
) -> None:
    """Intervals of 8 in flattened loops, of 7 in others: the designs `vitis` of Stream-HLS."""
    text = SUMS.replace("BEFORE", before).replace("PRAGMA", pragma)
    loop = "VITIS_LOOP_4_2" if ii == 7 else "VITIS_LOOP_2_1_VITIS_LOOP_4_2"
    assert found(tmp_path, text, loop).ii == ii


def test_a_module_for_every_constant_is_the_same_loop(tmp_path: Path) -> None:
    source, reports = write(tmp_path, product("jk"), "rows_j_k", 4, 15)
    shutil.copy(reports / "product_csynth.xml", reports / "product_1_csynth.xml")
    assert [row.equal for row in compare((source, reports), tmp_path)] == [True, True]


def test_a_bank_that_needs_a_remainder_is_late(tmp_path: Path) -> None:
    """``read_C`` of Prometheus at 220 MHz: 12 stages for a bank of 6, of 192 words in a row; not
    where the innermost loop counts the rows one by one, as in its ``read_B``."""
    text = COPY.replace("a[64][32]", "a[192][32]").replace("i < 64", "i < 192")
    text = text.replace("u < 8", "u < 1").replace("PARTITION", "cyclic factor=FACTOR dim=1")
    depths = [found(tmp_path / str(k), text.replace("FACTOR", str(k)), "rows_words", 4.55).depth
              for k in (8, 6)]  # fmt: skip
    assert depths == [3, 13]
    text = text.replace("FACTOR", "6").replace("words: for (int k = 0; k < 4; k++)", "int k = 0;")
    assert found(tmp_path / "one", text, "rows", 4.55).depth <= depths[0]


def test_a_loop_of_two_iterations_has_a_counter_too(tmp_path: Path) -> None:
    """Its counter is the choice of two constants in clang's words; 16 words of 32 banks."""
    text = COPY.replace("PARTITION", "cyclic factor=32 dim=2").replace("8 * k + u", "k + u")
    text = text.replace("k < 4; k++", "k < 32; k += 16").replace("u < 8", "u < 16")
    assert found(tmp_path, text, "rows_words").ii == 1


@pytest.mark.parametrize(("module", "target", "depth"), [
    ("product", "vitis", 74), ("product", "vivado", 10), ("product_Pipeline_words", "vitis", 3),
])  # fmt: skip
def test_memory_outside_of_the_chip_is_far_away(
    tmp_path: Path, module: str, target: str, depth: int
) -> None:
    """``load_vA`` of Prometheus: 74 stages, 3 where the requests are in front of the loop."""
    text = COPY.replace("array_partition variable=a PARTITION", "interface m_axi port = a")
    text = text.replace("u < 8", "u < 1")
    source, reports = write(tmp_path, text, "rows_words", 1)
    (reports / "product_csynth.xml").rename(reports / f"{module}_csynth.xml")
    (tmp_path / "run.tcl").write_text(f"open_solution -flow_target {target} solution1\n")
    (row,) = compare((source, reports), tmp_path)
    assert abs(row.depth - depth) <= 2


def test_an_accumulator_in_a_register_is_added_last(tmp_path: Path) -> None:
    """``task1_intra`` of Prometheus: an interval of 3 at 220 MHz, however many terms there are."""
    text = SUMS.replace("BEFORE", "").replace("PRAGMA", "#pragma HLS pipeline II = 2")
    text = text.replace("sum[64]", "sum[1]").replace("i < 64", "i < 1").replace("k < 40", "k < 8")
    line = "sum[i] = sum[i] + a[i][k] * x[k];"
    every = "for (int u = 0; u < 5; u++) sum[0] = sum[0] + a[u][k] * x[5 * k + u];"
    partition = "#pragma HLS array_partition variable=a complete dim=1\n"
    partition += "#pragma HLS array_partition variable=x cyclic factor=5 dim=1\n  for (int i"
    text = text.replace(line, every).replace("for (int i", partition)
    source, reports = write(tmp_path, text, "VITIS_LOOP_6_2", 3, period=4.55)
    (tmp_path / "run.tcl").write_text("config_compile -unsafe_math_optimizations\n")
    (row,) = compare((source, reports), tmp_path)
    assert row.equal


@pytest.mark.parametrize(("terms", "words", "depth"), [
    (8, 64, 38), (10, 64, 38), (15, 64, 46), (16, 64, 44), (7, 19, 25),
])  # fmt: skip
def test_a_full_tree_has_no_place_for_the_word_of_a_memory(
    tmp_path: Path, terms: int, words: int, depth: int
) -> None:
    """Depths of Stream-HLS: 15 terms take a level more; not 7 with quick adders, whose words come
    back after 19 cycles."""
    text = TREE.format(terms=terms, words=words, all=40 * terms)
    source, reports = write(tmp_path, text, "parts_words", 1, depth)
    (tmp_path / "run.tcl").write_text("config_compile -unsafe_math_optimizations\n")
    (row,) = compare((source, reports), tmp_path)
    assert row.equal
    assert row.near


@pytest.mark.parametrize(("banks", "depth"), [(2, 3), (1, 4)])
def test_rows_of_a_power_of_two_take_no_products(tmp_path: Path, banks: int, depth: int) -> None:
    """``node4`` of Stream-HLS's attention, three dimensions that are read in another order."""
    text = COPY.replace("a[64][32]", "a[64][8][16]").replace("u < 8", "u < 1")
    partition = "  #pragma HLS array_partition variable=a PARTITION\n"
    text = text.replace(partition, partition * (banks > 1))
    text = text.replace("PARTITION", f"cyclic factor={banks} dim=3")
    text = text.replace("k < 4", "k < 128").replace("a[i][8 * k + u]", "a[i][k / 16][k % 16]")
    assert found(tmp_path, text, "rows_words").depth == depth


def test_a_checkout_without_reports_is_named(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, [str(tmp_path), "--every"])
    assert (shown.exit_code, "has pipelined loops" in shown.output) == (1, True)
    assert CliRunner().invoke(main, [str(tmp_path), "--every", "--held-back"]).exit_code == 2


def test_a_design_that_clang_refuses_counts_as_missed(tmp_path: Path) -> None:
    design = write(tmp_path, '#include "nowhere.h"\n' + product("jk"), "rows_j_k", 1, 2)
    (row,) = compare(design, tmp_path)
    assert (row.ii, row.depth, row.equal, row.near) == (0, 0, False, False)
    assert "nowhere.h" in row.because


def test_loops_have_the_names_of_the_reports() -> None:
    text = product("jk")
    loops = find_loops(text)
    assert [x.label for x in loops] == ["rows", "j", "k"]
    assert [loops[2].count_levels(name) for name in ("rows_j_k", "k", "rows_k")] == [3, 1, 0]
    assert find_loops(COPY)[2].count_levels("rows_words_VITIS_LOOP_7_1") == 3
    assert not loops[1].count_levels("rows_j_k")
    once = find_loops(text.replace("j < 16", "j < 1"))[2]  # no loop to the tool
    assert [once.count_levels(name) for name in ("rows_k", "rows_j_k", "rows")] == [2, 3, 0]


def test_what_a_function_is_given_lies_where_its_caller_says() -> None:
    text = """void part(float x[4][8], float y[8]) {
}
void whole(float given[8]) {
  #pragma HLS array_partition variable=given cyclic factor=2 dim=1
  float own[4][8];
  part(own, given);
}
"""
    places = read_places(text)["part"]
    assert places == {"x": Place({}, True, (4, 8)), "y": Place({1: ("cyclic", 2)}, False, (8,))}
    own = "{\n  #pragma HLS array_partition variable=y complete dim=1\n}"
    assert read_places(text.replace("{\n}", own, 1))["part"]["y"].banks == {1: ("complete", 1)}
    part, whole = text.split("void whole")
    assert read_places(f"void whole{whole}{part}")["part"] == places


def test_sums_are_compared_with_their_remainders() -> None:
    total = Sum({"i": 4}, 5).plus(Sum({"j": 1}, 1), -2)
    assert total == Sum({"i": 4, "j": -2}, 3)
    assert (total.modulo(2), total.modulo(4)) == (1, None)


def test_the_command_counts_what_agrees(tmp_path: Path) -> None:
    text = product("jk")
    write(tmp_path / "one", text, "rows_j_k", 4, 15)
    write(tmp_path / "two", text, "rows_j_k", 1, 40)
    shown = [CliRunner().invoke(main, [str(tmp_path), "--processes", "1", *half]).output
             for half in ([], ["--held-back"])]  # fmt: skip
    total = "all: 2 designs, 2 loops, 1 with the same interval (50.0%), 1 with a depth within 2"
    assert any(total in x for x in shown)
    assert total in CliRunner().invoke(main, [str(tmp_path), "--every"]).output
    assert any("interval 4, reported 1; depth" in x for x in shown)
