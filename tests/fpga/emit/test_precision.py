"""Narrow numbers: the C++ types to the last bit, a whole network compiled and verified."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.csim import build
from pipec.backends.fpga.designs import lower_stages, networks
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.memory import items_of
from pipec.backends.fpga.numbers import decode, encode, file_type, sum_bits
from pipec.backends.fpga.quantise.bound import bounds_of, tolerance_of
from pipec.backends.fpga.quantise.samples import unseen_frames
from pipec.backends.fpga.toolchain import compiler
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import BackendError
from pipec.frontends.load import load
from pipec.frontends.trace import trace
from pipec.graph.ir import Source
from tests.fpga.design.models import graph_of, made

HLS = Path(__file__).parents[3] / "backends/fpga/hls"
NARROW = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "ap_fixed<16,6>": "fixed<16, 6>",
    "ap_fixed<8,4>": "fixed<8, 4>",
    "ap_fixed<8,8>": "fixed<8, 8>",
    "ap_fixed<7,3>": "fixed<7, 3>",
    "ap_fixed<12,5>": "fixed<12, 5>",
    "ap_fixed<18,8>": "fixed<18, 8>",
    "ap_fixed<24,6>": "fixed<24, 6>",
}
PROGRAM = """
#include <cstdio>
#include <vector>
#include "engines/number.h"
template <typename T> void run(const std::vector<float> &x, std::FILE *out) {
  sum_t<T> sum = sum_t<T>(0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T a = T(x[i]), b = T(x[x.size() - 1 - i]);
    const float back = float(a);
    sum += a * b;
    const T rounded = T(sum);
    std::fwrite(&a, sizeof a, 1, out);
    std::fwrite(&back, sizeof back, 1, out);
    std::fwrite(&rounded, sizeof rounded, 1, out);
  }
}
int main(int, char **argv) {
  std::FILE *in = std::fopen(argv[1], "rb"), *out = std::fopen(argv[2], "wb");
  std::vector<float> x(COUNT);
  if (std::fread(x.data(), 4, x.size(), in) != x.size()) return 1;
  CALLS
  return std::fclose(out);
}
"""


def numbers() -> NDArray[np.float32]:
    """Random numbers of all sizes, ties, limits, subnormal and special ones."""
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(3000) * 10.0 ** rng.integers(-9, 6, 3000)
    ties = np.arange(-300, 300) / 128
    halves = np.array([0.0, 65504, 65519, 65520, 2**-14, 2**-24, 2**-25, 3 * 2**-25, 1e38, -1e38])
    return np.concatenate([wide, ties, halves]).astype(np.float32)


def test_types_agree_bit_by_bit_with_numpy(tmp_path: Path) -> None:
    """Conversion both ways, and sums of products: exact in fixed point, rounded once."""
    x = numbers()
    x.tofile(tmp_path / "in")
    calls = "\n".join(f"run<{cpp}>(x, out);" for cpp in NARROW.values())
    text = PROGRAM.replace("COUNT", str(len(x))).replace("CALLS", calls)
    (tmp_path / "main.cpp").write_text(text)
    flags = ["-std=c++17", "-O1", *build.FLAGS, "-Werror", f"-I{HLS}"]
    command = [compiler(), *flags, "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run(["./main", "in", "out"], cwd=tmp_path, check=True)
    data = (tmp_path / "out").read_bytes()
    for dtype in NARROW:
        kind = file_type(dtype)
        record = np.dtype([("a", kind), ("back", "<f4"), ("sum", kind)])
        found = np.frombuffer(data[: record.itemsize * len(x)], record)
        data = data[record.itemsize * len(x) :]
        with np.errstate(over="ignore", invalid="ignore"):
            want = encode(x, dtype)
            assert np.array_equal(found["a"].view(f"u{kind.itemsize}"),
                                  want.view(f"u{kind.itemsize}")), dtype  # fmt: skip
            back = decode(want, dtype)
            assert np.array_equal(found["back"], back)
            if dtype.startswith("ap"):
                wide = back.astype(np.float64)
                exact = np.cumsum(wide * wide[::-1])
                assert np.array_equal(found["sum"], encode(exact, dtype)), dtype
    assert not data


def test_sums_are_counted_in_the_bits_that_they_take(tmp_path: Path) -> None:
    """What the memory of an accumulator is estimated by is what the C++ type takes."""
    kinds = {**NARROW, "float32": "float", "int8": "quantised<3, -4, 5>"}
    checks = "\n".join(
        f'static_assert(8 * sizeof({sums}<{cpp}>) == {sum_bits(dtype)}, "");'
        for dtype, cpp in kinds.items()
        for sums in ("sum_t", "term_t")
    )
    (tmp_path / "main.cpp").write_text(f'#include "engines/number.h"\n{checks}\n')
    command = [compiler(), "-std=c++14", f"-I{HLS}", "-fsyntax-only", "main.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_the_memory_of_sums_is_as_wide_as_they_are() -> None:
    reduce = Reduce(n=1, window=4, cf=3, lanes=2, op="sum")
    mvu = Mvu(n=1, rows=6, taps=1, channels=4, pe=2, simd=1, order="B")
    widths = {
        (type(nest), dtype): items_of(Engine("one", nest, (), (), dtype=dtype))[0].width
        for nest in (reduce, mvu)
        for dtype in ("float32", "bfloat16", "int8", "ap_fixed<16,6>")
    }
    assert set(widths.values()) == {2 * 32, 2 * 64}
    assert {kind for kind, width in widths.items() if width == 2 * 64} == {
        (Reduce, "ap_fixed<16,6>"), (Mvu, "ap_fixed<16,6>")
    }  # fmt: skip


def test_compiled_in_float16_and_verified(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from tests.fpga.design.models import made\n"
        "def net():\n"
        "    model, x = made('resnet')\n"
        "    return model, (x,)\n"
    )
    model = f"{tmp_path / 'net.py'}:net"
    options = {"precision": "float16"}
    plan = make_plan(load(model).graph, parse_cluster("2xvcu118"), "fpga", options=options)
    emit(plan, tmp_path / "out")
    emitted = load_backend("fpga").load(plan, tmp_path / "out")
    planned = bounds_of(lower_stages(plan), networks(plan), "float16", unseen_frames(plan))
    assert emitted.tolerance == tolerance_of(planned)
    report = verify_artifacts(tmp_path / "out", load(model))
    assert report.ok, report
    for b in report.boundaries:
        assert 1e-5 < b.relative_error < b.tolerance < 1e-2
        assert b.basis in ("worst", "likely")


def test_parts_of_a_product_are_bounded_as_the_whole_is() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    graph = graph_of(model, torch.randn(1, 64))
    options = {"precision": "bfloat16"}
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options)
    assert any("_part" in layer.name for layer in lower_stages(plan)[0].layers)
    bounds = bounds_of(lower_stages(plan), networks(plan), "bfloat16", unseen_frames(plan))
    assert 1e-3 < tolerance_of(bounds) < 0.1


@pytest.mark.parametrize(
    "precision",
    ["ap_fixed<25,6>", "ap_fixed<12,13>", "ap_fixed<8,0>", "ap_fixed<a,b>", "int4", "int32"],
)
def test_odd_widths_are_refused(precision: str) -> None:
    model, x = made("mobile")
    options = {"precision": precision}
    with pytest.raises(BackendError, match="no C"):
        make_plan(graph_of(model, x), parse_cluster("1xvcu118"), "fpga", options=options)


def test_numbers_survive_the_file() -> None:
    x = torch.linspace(-3, 3, 97).numpy()
    for dtype in NARROW:
        once = decode(encode(x, dtype), dtype)
        assert np.array_equal(decode(encode(once, dtype), dtype), once)


@pytest.mark.parametrize(
    "precision", ["int8", "ap_fixed<23,9>", "bfloat16", "float32; matmul = float16"]
)
def test_a_product_over_the_rows_of_both_operands(precision: str, tmp_path: Path) -> None:
    """On boards that train it is the gradient of a weight matrix."""

    class Gram(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            """[n, a] and [n, b] to [a, b]."""
            return x.sigmoid().transpose(0, 1) @ y.sigmoid()

    torch.manual_seed(0)
    x, y = torch.randn(5, 3), torch.randn(5, 7)
    graph = trace(Gram(), (x, y), source=Source("memory", ""))
    options = {"precision": precision}
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options)
    emit(plan, tmp_path / "out")
    (stage,) = load_backend("fpga").load(plan, tmp_path / "out").stages
    (found,) = stage({"x": x, "y": y}).values()
    want = Gram()(x, y)
    assert float((found - want).abs().max()) < 0.03 * float(want.abs().max())
