"""Products of 8-bit integers: two with a common operand are one multiplication."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.toolchain import compiler

HLS = Path(__file__).resolve().parents[3] / "backends/fpga/hls"
BENCHMARKS = HLS.parents[2] / "benchmarks"
INCLUDES = [f"-I{HLS / 'csim'}", f"-I{HLS / 'engines'}"]

PAIRS = """
#include <cstdio>
#include "dot.h"
int main() {
  for (int32_t x[3], y[2]; std::fread(x, sizeof x, 1, stdin) == 1;) {
    engine::multiply_pair(y[0], y[1], x[0], x[1], x[2]);
    std::fwrite(y, sizeof y, 1, stdout);
  }
}
"""


def operands() -> NDArray[np.int32]:
    """All pairs of 8 bits with few third numbers, corners of 9 bits, numbers at random."""
    whole, few = np.arange(-128, 128), np.array([-128, -127, -1, 0, 1, 126, 127])
    corners = np.array([*range(-255, -250), *range(-3, 4), *range(251, 256)])
    grids = [np.stack(np.meshgrid(*axes), -1).reshape(-1, 3)
             for axes in ((whole, whole, few), (corners,) * 3)]  # fmt: skip
    random = np.random.default_rng(0).integers(-255, 256, (1_000_000, 3))
    return np.concatenate([*grids, random]).astype(np.int32)


@pytest.mark.usefixtures("compiled_for_users")
def test_a_pair_is_two_products(tmp_path: Path) -> None:
    (tmp_path / "pairs.cpp").write_text(PAIRS)
    flags = ["-std=c++14", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover"]
    command = [compiler(), *flags, *INCLUDES, "pairs.cpp", "-o", "pairs"]
    subprocess.run(command, cwd=tmp_path, check=True)
    given = operands()
    done = subprocess.run(
        tmp_path / "pairs", input=given.tobytes(), capture_output=True, check=True
    )
    assert np.array_equal(np.frombuffer(done.stdout, np.int32).reshape(-1, 2),
                          given[:, :2] * given[:, 2:])  # fmt: skip


KERNEL = """
#include "vvu.h"
using A = quantised<3, -4, 5>;
using B = quantised<5, -3, -7>;
struct unit {{
  using T = A;
  static constexpr int N = 4, CF = 1, KS = 1, KP = {simd}, LANES = {pe}, PARTIAL = 1;
  static constexpr int II = 1, DEPTH = 9;
}};
template <typename W>
using word = vec<W, {simd} * {pe}>;
void mvu(vec<int32_t, {pe}> &sum, const word<int8_t> &w, const vec<A, {simd}> &x) {{
  engine::multiply_add<{pe}, {simd}>(sum, w, x);
}}
void matmul(vec<int32_t, {pe}> &sum, const word<B> &w, const vec<A, {simd}> &x) {{
  engine::multiply_add<{pe}, {simd}>(sum, w, x);
}}
word<int8_t> weight[1];
void vvu(int frames, hls::stream<word<A>> &in, hls::stream<vec<int32_t, {pe}>> &out) {{
  engine::vvu<unit>(frames, in, out, weight, engine::no_bias{{}});
}}
"""


@pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")
@pytest.mark.parametrize(("pe", "simd"), [(1, 4), (2, 3), (5, 3), (8, 1)])
def test_a_firing_multiplies_as_often_as_is_estimated(tmp_path: Path, pe: int, simd: int) -> None:
    """Multiplications are counted by clang, when all loops but that over firings are gone."""
    nests = {
        "mvu": Mvu(4, 40, 1, 16, pe, simd),
        "matmul": Matmul(1, 4, 1, 1, 40, 1, 16, (16, 40), ("k", "n"), pe=pe, simd=simd),
        "vvu": Vvu(4, pe, simd, pe, simd),
    }
    (tmp_path / "kernel.cpp").write_text(KERNEL.format(pe=pe, simd=simd))
    flags = ["-std=c++14", "-O2", "-w", "-fno-vectorize", "-fno-slp-vectorize", "-emit-llvm", "-S"]
    flags += ["-mllvm", "-inline-threshold=10000", f"-I{BENCHMARKS / 'hls_check'}", *INCLUDES]
    command = ["clang-14", *flags, "kernel.cpp", "-o", "kernel.ll"]
    subprocess.run(command, cwd=tmp_path, check=True)
    bodies = (tmp_path / "kernel.ll").read_text().split("\ndefine ")[1:]
    found = {
        name: sum(b.count(" = mul ") for b in bodies if f"@_Z{len(name)}{name}" in b.split("(")[0])
        for name in nests
    }
    assert found == {name: nest.logic("int8")[0] for name, nest in nests.items()}
    assert found == {"mvu": simd * (pe // 2 + pe % 2)} | {"matmul": found["mvu"], "vvu": pe * simd}


@pytest.mark.skipif(shutil.which("yosys") is None, reason="needs yosys")
def test_a_pair_maps_to_one_dsp(tmp_path: Path) -> None:
    source = BENCHMARKS / "rtl/sv/pair.sv"
    script = f"read_verilog -sv {source}; synth_xilinx -family xcup -noiopad -top pair; stat"
    done = subprocess.run(
        ["yosys", "-p", script], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert re.findall(r"DSP48E2 +(\d+)$", done.stdout, re.MULTILINE)[-1:] == ["1"]
