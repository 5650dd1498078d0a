"""Others' number types in the check of intervals: their values, bits, and loops that use them."""

import math
import random
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.hls_check.source import find_functions, find_loops, own_text
from tests.fpga.emit.test_hls_vendor import found
from tests.sampling import ALL

HEADERS = Path(__file__).parents[3] / "benchmarks" / "hls_check"
PROGRAM = """#include "hls_types.h"
int main() {{
  int a, b;
  while (scanf("%d %d", &a, &b) == 2) {{
    {left} x; x.range() = a;
    {right} y; y.range() = b;
    {result} sum = x + y, product = x * y, less = x - y;
    printf("%f %f %f %d %d\\n", sum.to_double(), product.to_double(), less.to_double(), x < y,
           int((x * y).width));
  }}
}}
"""
TYPES = [(8, 8, True), (8, 8, False), (12, 4, True), (10, 6, False), (9, -1, True)]
"""Bits, bits of them whole, sign."""


def spell(bits: int, whole: int, signed: bool, modes: str = "") -> str:
    return f"ap_{'' if signed else 'u'}fixed<{bits}, {whole}{modes}>"


def value_of(pattern: int, bits: int, whole: int, signed: bool) -> Fraction:
    number = pattern - (1 << bits) if signed and pattern >> (bits - 1) else pattern
    return Fraction(number) / Fraction(2) ** (bits - whole)


def convert(value: Fraction, modes: str, bits: int, whole: int) -> Fraction:
    """A value in a signed type, as UG1399 has it."""
    unit = Fraction(1, 1 << (bits - whole))
    steps = math.floor(value / unit + (Fraction(1, 2) if "RND" in modes else 0))
    most = (1 << (bits - 1)) - 1
    if "SAT" in modes:
        return max(min(steps, most), -most - 1) * unit
    return ((steps + most + 1) % (1 << bits) - most - 1) * unit


@pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")
@pytest.mark.parametrize("modes", ["", ", AP_RND, AP_SAT", ", AP_TRN, AP_SAT", ", AP_RND"])
def test_numbers_of_others_have_their_values(tmp_path: Path, modes: str) -> None:
    """Exact sums, products and differences, rounded and limited once."""
    draw = random.Random(5)
    # Two modes have one pair of types in the program, the two others have another.
    neighbours = [*zip(TYPES, [*TYPES[1:], TYPES[0]], strict=True)]
    for k, (left, right) in enumerate(neighbours[0 if ALL else "SAT" in modes :: 1 if ALL else 2]):
        names = {"left": spell(*left), "right": spell(*right), "result": spell(11, 6, True, modes)}
        (tmp_path / f"{k}.cpp").write_text(PROGRAM.format(**names))
        program = str(tmp_path / str(k))
        subprocess.run(["clang-14", "-std=c++17", "-I", HEADERS, program + ".cpp", "-o", program,
                        "-lstdc++", "-lm"], check=True)  # fmt: skip
        pairs = [(draw.randrange(2 ** left[0]), draw.randrange(2 ** right[0])) for _ in range(200)]
        text = "".join(f"{a} {b}\n" for a, b in pairs)
        out = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        for (a, b), line in zip(pairs, out.stdout.splitlines(), strict=True):
            x, y = value_of(a, *left), value_of(b, *right)
            want = [convert(v, modes, 11, 6) for v in (x + y, x * y, x - y)]
            *numbers, less, width = line.split()
            assert [Fraction(n) for n in numbers] == want, (names, x, y)
            assert (int(less), int(width)) == (x < y, left[0] + right[0])


SATURATED = """#include <ap_fixed.h>
#include <hls_stream.h>
typedef ap_fixed<24, 10, AP_RND, AP_SAT> word;
static word clamp(word x) { return x > word(4) ? word(4) : x; }
void product(hls::stream<word> &in, hls::stream<word> &out) {
  word sum = 0;
  words: for (int k = 0; k < 4096; k++) {
    #pragma HLS pipeline II=1
    word x = in.read();
    sum += clamp(x) OPERATION;
    out.write(sum);
  }
}
"""


def test_a_sum_in_fixed_point_that_saturates_takes_a_cycle(tmp_path: Path) -> None:
    """As of five designs with such sums in reports at 300 MHz: interval 1."""
    row = found(tmp_path, SATURATED.replace("OPERATION", ""), "words")
    assert (row.ii, row.because.count("call")) == (1, 0)
    assert row.depth <= 3


def test_a_quotient_has_a_stage_for_each_of_its_bits(tmp_path: Path) -> None:
    """Reported: 43 stages of a loop with a quotient of such numbers, which has 24 + 14 + 1 bits."""
    row = found(tmp_path, SATURATED.replace("OPERATION", "/ (x + word(1))"), "words")
    assert 41 <= row.depth <= 45


def test_a_remainder_by_a_power_of_two_divides_nothing(tmp_path: Path) -> None:
    """Reported: 4 stages of a loop with ``k % 256``; a divider has 35."""
    code = SATURATED.replace("OPERATION", "+ (int(x) % {} == 3)")
    (tmp_path / "power").mkdir()
    (tmp_path / "other").mkdir()
    assert found(tmp_path / "power", code.replace("{}", "256"), "words").depth <= 6
    assert found(tmp_path / "other", code.replace("{}", "250"), "words").depth > 10


def test_words_of_memory_outside_come_one_by_one(tmp_path: Path) -> None:
    """Reported: interval 16 of a loop that reads 16 words of one port."""
    text = """#include <ap_fixed.h>
    void product(ap_fixed<24, 10> a[64][256], ap_fixed<24, 10> b[64]) {
      #pragma HLS interface m_axi port=a bundle=A
      words: for (int i = 0; i < 64; i++) {
        #pragma HLS pipeline II=1
        b[i] = a[i][0] + a[i][1] + a[i][2] + a[i][3];
      }
    }
    """.replace("\n    ", "\n")
    assert found(tmp_path, text, "words").ii == 4


def test_functions_are_those_outside_of_types_comments_and_macros() -> None:
    text = """#define CALL(x) f(x)
    // void no(int x) { }
    struct Pair { int first() { return 1; } };
    extern "C" { int declared(float); }
    template <int N, typename T>
    static T kept(T (&x)[N]) { for (int k = 0; k < N; k++) x[k] = 0; return x[0]; }
    int value = other(3);
    """
    every = find_functions(text)
    assert [(f.name, f.is_declaration) for f in every] == [("declared", True), ("kept", False)]
    assert text[every[1].begin :].startswith("static T kept")


def test_a_loop_without_braces_ends_with_its_statement() -> None:
    text = """void f(int *x) {
      for (int k = 0; k < 8; k++)
        #pragma HLS unroll
        if (k < 4) x[k] = 0;
        else for (int j = 0; j < 2; j++) x[k] += j;
      x[0] = 1;
    }"""
    outer, inner = find_loops(text)
    assert text[outer.body : outer.end + 1].startswith("if (k < 4)")
    assert text[outer.body : outer.end + 1].endswith("x[k] += j;")
    assert inner.outer is outer
    assert "unroll" in own_text(text, outer, [outer, inner])
