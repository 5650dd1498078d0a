"""Narrow numbers: the C++ types to the last bit, networks within what the format explains."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipec.backends.fpga.csim.accuracy import measure
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.designs import lowered
from pipec.backends.fpga.emit.golden import run_graph
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.fifo import sized
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.layers import Dense, Table, Use
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.numbers import decoded, encoded, file_type, roundoff
from pipec.backends.fpga.quantise.bound import bounds_of
from pipec.backends.fpga.quantise.calibrate import Seen, observed, on_edges
from pipec.backends.fpga.quantise.errors import Error, Numerics, range_of
from pipec.backends.fpga.quantise.formats import formats_of
from pipec.backends.fpga.quantise.layers import quantised
from pipec.backends.fpga.quantise.rules import spread
from pipec.backends.fpga.toolchain import compiler
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_stages
from pipec.errors import BackendError
from pipec.frontends.load import load
from tests.fpga.design.models import graph_of, made

HLS = Path(__file__).parents[3] / "backends/fpga/hls"
NARROW = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "ap_fixed<16,6>": "fixed<16, 6>",
    "ap_fixed<8,4>": "fixed<8, 4>",
    "ap_fixed<8,8>": "fixed<8, 8>",
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
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{HLS}"]
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
            want = encoded(x, dtype)
            assert np.array_equal(found["a"].view(f"u{kind.itemsize}"),
                                  want.view(f"u{kind.itemsize}")), dtype  # fmt: skip
            back = decoded(want, dtype)
            assert np.array_equal(found["back"], back)
            if dtype.startswith("ap"):
                wide = back.astype(np.float64)
                exact = np.cumsum(wide * wide[::-1])
                assert np.array_equal(found["sum"], encoded(exact, dtype)), dtype
    assert not data


@pytest.mark.parametrize(
    ("name", "precision", "tight", "proven"),
    [
        ("resnet", "bfloat16", 16, 1e6),
        ("encoder", "float16", 64, 1e8),
        ("inception", "ap_fixed<16,6>", 8, 200),
        ("mobile", "ap_fixed<8,3>", 8, 100),
        ("excite", "int8", 64, 200),
        ("dense", "int8", 64, 200),
    ],
)
def test_networks_lose_what_the_format_explains(
    name: str, precision: str, tight: float, proven: float, tmp_path: Path
) -> None:
    """Both bounds hold on new inputs, and are at most so many times what is lost."""
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph, precision)
    key = network.inputs[0].value
    first, second, new = (drawn(key, x, seed) for seed in (1, 2, 3))
    seen = on_edges(network, observed([graph], first)[0])
    types, ready = dict.fromkeys(network.nodes, precision), network
    if precision == "int8":
        formats = formats_of([network], [seen])[0]
        types = {edge: form.dtype for edge, form in formats.items()}
        ready = quantised(network, formats)
    limits = {network.nodes[e]: range_of(t) for e, t in types.items() if e in network.nodes}
    again = on_edges(network, observed([graph], second, [limits])[0])
    about = Numerics(types, {e: seen[e].with_(again[e]) for e in seen}, precision)
    bounds = {b.value: b for b in bounds_of([network], [about])}
    design = sized(design_at(ready, 1000, name="s", dtype=precision))
    write_stage(design, tmp_path / "s", None)
    runs = [(inputs, run_graph(graph, inputs)) for inputs in new]
    for item in measure(load_stages([tmp_path / "s"]), *zip(*runs, strict=True)):
        bound, lost = bounds[item.value], item.max_relative_error
        assert lost <= bound.worst <= proven * lost
        assert lost <= bound.likely <= tight * lost
        assert lost > roundoff(precision) / 64  # it is really narrow


def drawn(key: str, like: torch.Tensor, seed: int) -> list[dict[str, torch.Tensor]]:
    """Four random inputs."""
    generator = torch.Generator().manual_seed(seed)
    if not like.dtype.is_floating_point:
        return [{key: torch.randint(17, like.shape, generator=generator)} for _ in range(4)]
    return [{key: torch.rand(like.shape, generator=generator) * 4 - 2} for _ in range(4)]


@given(st.sampled_from(list(NARROW)), st.integers(0, 2**32 - 1))
def test_one_layer_never_exceeds_the_worst_case(precision: str, seed: int) -> None:
    """Any weights and inputs within the range, rounded and summed as the engine does."""
    rng = np.random.default_rng(seed)
    fan = int(rng.integers(1, 40))
    weight, x = rng.uniform(-1, 1, (3, fan)), rng.uniform(-1, 1, fan)
    bias = rng.uniform(-1, 1, 3)
    layer = Dense(
        "y", "y", "", (Use("x", 1, fan, precision),), 1, 3, 1, 1, 3, 1, fan,
        Table(lambda: weight.reshape(1, 3, 1, fan)), Table(lambda: bias.reshape(1, 3)),
    )  # fmt: skip
    exact = weight @ x + bias
    seen = {e: Seen(float(v.min()), float(v.max()), 1.0) for e, v in (("x", x), ("y", exact))}
    about = Numerics({}, seen, precision)
    read = about.rounded("x", Error.none(fan))
    error = about.rounded("y", spread(layer, [read], about))

    def held(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """As the type holds them."""
        return decoded(encoded(values, precision), precision).astype(np.float64)

    found = held(held(weight) @ held(x) + held(bias))
    assert (np.abs(found - exact) <= error.worst * (1 + 1e-6)).all()


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
    backend = load_backend("fpga")
    allowed = backend.emitted_tolerance(plan, tmp_path / "out")
    assert allowed == backend.tolerance(plan)
    runners = backend.load(plan, tmp_path / "out")
    report = verify_stages(plan, runners, load(model), tolerance=allowed)
    assert report.ok, report
    assert max(b.relative_error for b in report.boundaries) > 1e-5


def test_parts_of_a_product_are_bounded_as_the_whole_is() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    graph = graph_of(model, torch.randn(1, 64))
    options = {"precision": "bfloat16"}
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options)
    assert any("_part" in layer.name for layer in lowered(plan)[0].layers)
    assert 1e-3 < load_backend("fpga").tolerance(plan) < 0.1


def test_odd_widths_are_refused() -> None:
    model, x = made("mobile")
    options = {"precision": "ap_fixed<12,6>"}
    with pytest.raises(BackendError, match="no C"):
        make_plan(graph_of(model, x), parse_cluster("1xvcu118"), "fpga", options=options)


def test_numbers_survive_the_file() -> None:
    x = torch.linspace(-3, 3, 97).numpy()
    for dtype in NARROW:
        once = decoded(encoded(x, dtype), dtype)
        assert np.array_equal(decoded(encoded(once, dtype), dtype), once)
