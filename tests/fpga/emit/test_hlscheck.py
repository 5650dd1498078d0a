"""Intervals from the code: loops of vendor reports, forms that differ by one fault."""

import shutil
from pathlib import Path

import pytest

from benchmarks.hls_check.compiled import loops_in
from benchmarks.hls_check.found import Interval, last_name, names_in
from benchmarks.hls_check.ir import functions
from pipec.errors import BackendError

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


SAYS = "#pragma HLS DEPENDENCE variable = line type = inter direction = RAW distance = {} true\n"


@needs_clang
@pytest.mark.parametrize(
    ("old", "new", "name", "got", "least"),
    [("FIRE(1, 30)", "FIRE(1, {})", "DEPTH", "0", 1), ("FIRE(1,", "FIRE({},", "II", "-1", 1),
     ("II = 1", "II = {}", "II", "0", 1), ("FIRE(1,", "GAP({}); FIRE(1,", "pause", "-1", 0),
     ("FIRE(1, 30)", "FIRE(1, {})", "DEPTH", "n", 1),
     ("distance = 9", "distance = {}", "distance", "-9", 1)],
)  # fmt: skip
def test_what_no_pipeline_can_have_is_refused(
    tmp_path: Path, old: str, new: str, name: str, got: str, least: int
) -> None:
    """What is no constant, and each declared number below its least one, which is accepted."""
    body = "line[k] += in.read(); out.write(line[k ^ 1]);"
    before = "static float line[64];\n" + SAYS.format(9)
    text = KERNEL.format(body=body, before=before, trip=64, depth=30)
    assert old in text
    (tmp_path / "stage_top.cpp").write_text(text.replace(old, new.format(got)))
    with pytest.raises(BackendError, match=f"impossible {name}\n  where: engine work\n") as error:
        loops_in(tmp_path, 300.0)
    said = "no constant" if got == "n" else got
    assert f"got:   {said}\n  want:  a constant of {least} or more\n  hint" in str(error.value)
    (tmp_path / "stage_top.cpp").write_text(text.replace(old, new.format(least)))
    assert loops_in(tmp_path, 300.0)
