"""Emitted C++ under AMD's own headers at C++14, bit by bit beside our stand-ins at C++17.

``python -m benchmarks.ap_types [MODEL ...]`` takes AMD's open headers (``ap_types``) out of
hls4ml's wheel, which pip downloads, and answers three questions:

* Do emitted stages compile with AMD's ``hls_stream.h`` and ``-std=c++14``, as the emitted scripts
  say, and does a random frame give the very bytes of the C simulation? That header is of 2018,
  when a stream had no depth: a class with a depth is put in front of it. ``ap_axi_sdata.h`` is not
  in the wheel, so that ours stays.
* Is ``fixed<W, I>`` the number ``ap_fixed<W, I, AP_RND_CONV, AP_SAT>``: conversions of all sizes,
  sums of products, and conversions from one format to another?
* Are two products from one multiplier of ``ap_int<27>`` and ``ap_int<18>`` those of all numbers of
  8 bits?
"""

import dataclasses
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks._fpga_models import NAMES, write_model
from benchmarks.hls_check.stages import stages_in
from pipec.backends.fpga.csim.build import INCLUDES, SOURCES
from pipec.backends.fpga.csim.run import CSimulation, load_stages
from pipec.backends.fpga.toolchain import compiler
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.frontends.load import load

WHEEL = "hls4ml==1.3.0"
INSIDE = "hls4ml/templates/vivado/ap_types/"
STANDARD = ("-std=c++14", "-O1", "-ffp-contract=off")
MODELS = ("mlp", "gru_cell", "encoder", "mobilenet")
PRECISIONS = ("float32", "float16", "bfloat16", "int8", "ap_fixed<16,6>")
FORMATS = ((16, 6), (16, 1), (8, 4), (8, 8), (5, 2), (12, 5), (18, 8), (24, 1), (24, 12))
STREAM = """#pragma once
#include <cstddef>
#include <cstring>
#include <deque>
#include <iostream>
#include <queue>
#include <sstream>
#include <string>
#define stream stream_without_depth
#include "stream_without_depth.h"
#undef stream
namespace hls {
template <typename T, int DEPTH = 0> class stream : public stream<T, 0> {
 public:
  using stream<T, 0>::stream;
};
template <typename T> class stream<T, 0> : public stream_without_depth<T> {
 public:
  using stream_without_depth<T>::stream_without_depth;
};
}  // namespace hls
"""
NUMBERS = """#include <cstdio>
#include <random>
#include "ap_fixed.h"
#include "dot.h"
template <int V, int J, typename T, typename U> long converted(const T &ours, const U &theirs) {
  const fixed<V, J> x(ours);
  const ap_fixed<V, J, AP_RND_CONV, AP_SAT> y(theirs);
  return x.raw != y.range().to_int64() << (64 - V) >> (64 - V);
}
template <int W, int I> long differences() {
  using theirs = ap_fixed<W, I, AP_RND_CONV, AP_SAT>;
  using sum_of_theirs = ap_fixed<64, 64 - 2 * (W - I)>;
  std::mt19937 random(W * 100 + I);
  std::normal_distribution<float> normal;
  long wrong = 0;
  sum_of_theirs want = 0;
  fixed_sum<W, I> sum(0);
  for (long i = 0; i < COUNT; ++i) {
    const float size = std::ldexp(normal(random), int(random() % 40) - 25);
    const float tie = (int(random() % 70000) - 35000 + 0.5f) / (1 << (W - I));
    const float x = i % 2 ? size : tie, y = normal(random);
    const fixed<W, I> a(x), b(y);
    const theirs c(x), d(y);
    sum = i % 64 ? sum : fixed_sum<W, I>(0);
    want = i % 64 ? want : sum_of_theirs(0);
    sum += a * b;
    want += c * d;
    const fixed<W, I> narrow(sum), biased(sum + a);
    const theirs narrowed(want), narrowed_too(sum_of_theirs(want + c));
    wrong += a.raw != c.range().to_int64() << (64 - W) >> (64 - W);
    wrong += float(a) != c.to_float();
    wrong += narrow.raw != narrowed.range().to_int64() << (64 - W) >> (64 - W);
    wrong += biased.raw != narrowed_too.range().to_int64() << (64 - W) >> (64 - W);
    wrong += converted<12, 7>(a, c) + converted<20, 5>(a, c) + converted<24, 14>(a, c);
  }
  return wrong;
}
long wrong_pairs() {
  long wrong = 0;
  for (int32_t at = 0; at < 1 << 24; ++at) {
    const int32_t w0 = int8_t(at), w1 = int8_t(at >> 8), x = int8_t(at >> 16);
    int32_t low, high;
    engine::multiply_pair(low, high, w0, w1, x);
    wrong += low != w0 * x || high != w1 * x;
  }
  return wrong;
}
int main() {
  std::printf("CALLS_HERE", CALLS);
}
"""


def headers(folder: Path) -> Path:
    """AMD's headers in a folder of their own, and the stream with a depth; returns where."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL, "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(INSIDE) and name.endswith(".h"):
                path = folder / "include" / name.removeprefix(INSIDE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    include = folder / "include"
    (include / "hls_stream.h").rename(include / "stream_without_depth.h")
    (include / "hls_stream.h").write_text(STREAM)
    return include


def under_amd(stage: CSimulation, include: Path) -> CSimulation:
    """The same stage compiled with AMD's headers; a failure to compile is raised."""
    binary = stage.stage / "amd"
    flags = [f"-I{include}", *INCLUDES, "-w"]
    command = [compiler(), *STANDARD, *flags, *SOURCES, "-o", str(binary)]
    subprocess.run(command, cwd=stage.stage, check=True)
    return dataclasses.replace(stage, binary=binary)


def write_outputs(stage: CSimulation, folder: Path) -> list[bytes]:
    """The bytes of every output for one random frame."""
    torch.manual_seed(0)
    inputs = [w.port for w in stage.wires if w.is_input]
    folder.mkdir()
    stage.frame(folder, {port.value: torch.randn(port.shape) for port in inputs})
    return [(folder / w.file).read_bytes() for w in stage.wires if not w.is_input]


def compare_bytes(name: str, precision: str, include: Path) -> Iterator[tuple[int, int]]:
    """Bytes of the outputs of every stage of a model, and how many of them differ."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        graph = load(write_model(name, folder)).graph
        options = {"precision": precision}
        emit(make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options), folder / "out")
        for k, stage in enumerate(load_stages(stages_in(folder / "out"))):
            ours = write_outputs(stage, folder / f"ours{k}")
            theirs = write_outputs(under_amd(stage, include), folder / f"theirs{k}")
            assert [len(x) for x in ours] == [len(x) for x in theirs]
            pairs = [p for x, y in zip(ours, theirs, strict=True) for p in zip(x, y, strict=True)]
            yield len(pairs), sum(x != y for x, y in pairs)


def numbers(include: Path, folder: Path, count: int) -> list[int]:
    """Per format, how many of four times ``count`` results differ; and of all pairs of products."""
    calls = [*(f"differences<{w}, {i}>()" for w, i in FORMATS), "wrong_pairs()"]
    text = NUMBERS.replace("CALLS_HERE", " ".join(["%ld"] * len(calls)))
    text = text.replace("CALLS", ", ".join(calls))
    (folder / "numbers.cpp").write_text(text.replace("COUNT", str(count)))
    engines = Path(__file__).resolve().parents[1] / "backends" / "fpga" / "hls" / "engines"
    command = [
        compiler(),
        *STANDARD,
        "-w",
        f"-I{include}",
        f"-I{engines}",
        "numbers.cpp",
        "-o",
        "n",
    ]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([folder / "n"], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def main(models: Sequence[str]) -> int:
    """Print both comparisons; 1 if anything differs."""
    unknown = set(models) - set(NAMES)
    if unknown:
        print(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    wrong, count = 0, 1_000_000
    with tempfile.TemporaryDirectory() as text:
        include = headers(Path(text))
        *of_formats, of_pairs = numbers(include, Path(text), count)
        formats = " ".join(f"<{width},{integer}>" for width, integer in FORMATS)
        print(f"ap_fixed with AP_RND_CONV, AP_SAT: {formats}")
        results = f"{7 * count * len(FORMATS):,} results, {sum(of_formats)} differ"
        print(f"    {results}; {1 << 24:,} pairs of int8 products, {of_pairs} differ", flush=True)
        wrong += sum(of_formats) + of_pairs
        chosen = models or MODELS
        pairs = [pair for m in chosen for p in PRECISIONS for pair in compare_bytes(m, p, include)]
        size, differ = (sum(column) for column in zip(*pairs, strict=True))
        print(f"outputs of {', '.join(chosen)} in {', '.join(PRECISIONS)}:")
        print(f"    {size:,} bytes, {differ} differ")
    return int(wrong + differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
