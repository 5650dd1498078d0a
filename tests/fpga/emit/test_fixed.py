"""Fixed-point arithmetic of emitted engines, bit for bit beside exact fractions."""

import subprocess
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga.csim import build
from pipec.backends.fpga.engines.fixed import chain, factor
from pipec.backends.fpga.engines.steps import Step
from pipec.backends.fpga.numbers import decode, encode, file_type, parse_fixed
from pipec.backends.fpga.toolchain import compiler
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.frontends.trace import trace
from pipec.graph.ir import InputKind, Source
from tests.sampling import each

HLS = Path(__file__).parents[3] / "backends/fpga/hls"
FLAGS = ["-std=c++14", "-O1", *build.FLAGS, "-Werror", "-fsanitize=undefined"]
TYPES = ("ap_fixed<16,6>", "ap_fixed<8,4>", "ap_fixed<12,5>", "ap_fixed<24,8>", "ap_fixed<7,7>")
COUNT, CHAINS = 200, 40
Step2 = Callable[[Fraction, Fraction], Fraction]
EXACT: Mapping[str, Step2] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "rsub": lambda x, y: y - x,
    "mul": lambda x, y: x * y, "max": max, "min": min, "div": lambda x, y: x / y,
    "relu": lambda x, _: max(x, Fraction(0)), "abs": lambda x, _: abs(x), "neg": lambda x, _: -x,
    "square": lambda x, _: x * x, "leaky_relu": lambda x, y: x if x > 0 else x * y,
}  # fmt: skip


def held(x: Fraction, dtype: str) -> int:
    """The raw number of a fraction: half to even, saturated."""
    width, integer = parse_fixed(dtype) or (0, 0)
    whole: int = round(x * 2 ** (width - integer))
    return max(-(1 << width - 1), min((1 << width - 1) - 1, whole))


def some_steps(rng: Random) -> list[Step]:
    """A chain in which at most one step reads the second stream."""
    found = list[Step]()
    for _ in range(rng.randint(1, 4)):
        op = rng.choice([*EXACT])
        if op in ("relu", "abs", "neg", "square"):
            found.append(Step(op))
        elif op == "leaky_relu":
            found.append(Step(op, value=rng.choice([0.01, 0.25])))
        elif op == "div":
            found.append(Step(op, "scalar", rng.choice([2.0, -8.0, 0.25])))
        else:
            streamed = any(s.operand == "stream" for s in found)
            operand = rng.choice(["scalar", "table"] if streamed else ["scalar", "table", "stream"])
            found.append(Step(op, operand, rng.choice([0.1, -3.0, 1e-3, 6.0])))
    return found


def exactly(steps: list[Step], x: Fraction, y: Fraction, t: Fraction) -> Fraction:
    """What a chain makes of a number, of one of the second stream, and of a table's."""
    for step in steps:
        number = Fraction(float(np.float32(step.value)))
        other = {"stream": y, "table": t}.get(step.operand, number)
        x = EXACT[step.op](x, other)
    return x


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("compiled_for_users")
def test_chains_are_exact_and_rounded_once(dtype: str, tmp_path: Path) -> None:
    width, integer = parse_fixed(dtype) or (0, 0)
    rng = Random(width)
    chains = [c for c in (some_steps(rng) for _ in range(3 * CHAINS)) if chain(c, dtype)][:CHAINS]
    assert len(chains) > CHAINS // 2
    low, high = -(1 << width - 1), (1 << width - 1) - 1
    edges = [low, low + 1, -1, 0, 1, high]
    raw = np.array(
        [[rng.choice([rng.randint(low, high), *edges]) for _ in range(3)] for _ in range(COUNT)],
        dtype=file_type(dtype),
    )
    raw.tofile(tmp_path / "in")
    bodies = []
    for k, steps in enumerate(chains):
        names = ["x"] + ["y"] * any(s.operand == "stream" for s in steps)
        names += [f"t{n}" for n, s in enumerate(steps) if s.operand == "table"]
        body = "\n  ".join(chain(steps, dtype) or [])
        bodies.append(f"T op{k}({', '.join(f'T {n}' for n in names)}) {{\n  {body}\n}}")
    calls = []
    for k, steps in enumerate(chains):
        values = ["v[3 * i]"] + ["v[3 * i + 1]"] * any(s.operand == "stream" for s in steps)
        values += ["v[3 * i + 2]" for s in steps if s.operand == "table"]
        calls.append(f"r = op{k}({', '.join(values)}); std::fwrite(&r, sizeof r, 1, out);")
    newline = "\n"
    (tmp_path / "main.cpp").write_text(f"""
#include <cstdio>
#include <vector>
#include "engines/number.h"
using T = fixed<{width}, {integer}>;
{newline.join(bodies)}
int main() {{
  std::FILE *in = std::fopen("in", "rb"), *out = std::fopen("out", "wb");
  std::vector<T> v({3 * COUNT});
  if (std::fread(v.data(), sizeof(T), v.size(), in) != v.size()) return 1;
  for (int i = 0; i < {COUNT}; ++i) {{
    T r;
    {newline.join(calls)}
  }}
  return std::fclose(out);
}}
""")
    command = [compiler(), *FLAGS, f"-I{HLS}", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert not done.stderr  # the sanitizer's
    found = np.fromfile(tmp_path / "out", file_type(dtype)).reshape(COUNT, len(chains))
    unit = Fraction(1, 2 ** (width - integer))
    for row, got in zip(raw.tolist(), found.tolist(), strict=True):
        want = [held(exactly(c, *(n * unit for n in row)), dtype) for c in chains]
        assert got == want


def test_what_needs_floating_point() -> None:
    for steps in (
        [Step("exp")],
        [Step("div", "scalar", 3.0)],
        [Step("square"), Step("square"), Step("square")],
        [Step("add", "scalar", 1e-20)],
        [Step("max", "scalar", float("inf"))],
    ):
        assert chain(steps, "ap_fixed<16,6>") is None
    assert chain([Step("relu")], "float32") is None


@pytest.mark.parametrize("value", [1 / 3, 0.1, 2.0, 3.0, 1e-4, -0.7])
def test_a_factor_is_within_its_bits(value: float) -> None:
    for beside in (20, 50, 57):
        whole, shift = factor(value, beside)
        bits = min(24, 62 - beside)
        assert abs(whole) <= 1 << bits
        assert shift >= 0
        assert abs(whole * 2.0**-shift - value) <= abs(value) * 2.0**-bits


class Pooled(nn.Module):
    """Averages of windows, then the maxima of windows of them."""

    def forward(self, x: Tensor) -> Tensor:
        means: Tensor = nn.functional.avg_pool2d(x, 3, 2)
        return nn.functional.max_pool2d(means, 2, 1)


class Mean(nn.Module):
    """The mean of every channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class Product(nn.Module):
    """Products of all rows, times what is no power of two."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.transpose(1, 2) * 0.3


def whole_results(name: str, raw: np.ndarray[Any, Any], fraction: int) -> list[Fraction]:
    """What a model makes of raw numbers, without rounding but where an engine writes."""
    unit = Fraction(1, 1 << fraction)
    exact = np.vectorize(lambda n: int(n) * unit, otypes=[object])(raw)
    if name == "Mean":
        return list(exact.reshape(raw.shape[1], -1).mean(1))
    if name == "Product":
        scale = Fraction(float(np.float32(0.3)))
        return list((exact[0] @ exact[0].T * scale).reshape(-1))
    third = Fraction(*float(np.float32(1 / 9)).as_integer_ratio())
    size = (raw.shape[2] - 3) // 2 + 1
    found = []
    for plane in exact[0]:
        means = [
            [plane[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].sum() * third for j in range(size)]
            for i in range(size)
        ]
        for i in range(size - 1):
            rows = (means[i], means[i + 1])
            found += [max(max(row[j : j + 2]) for row in rows) for j in range(size - 1)]
    return found


@pytest.mark.parametrize(
    ("case", "dtype"),
    each(
        [(Pooled(), (1, 3, 9, 9)), (Mean(), (1, 4, 6, 5)), (Product(), (1, 4, 6))],
        ["ap_fixed<8,4>", "ap_fixed<16,6>", "ap_fixed<24,6>"],
    ),
)
def test_sums_and_maxima_are_exact(
    case: tuple[nn.Module, tuple[int, ...]], dtype: str, tmp_path: Path
) -> None:
    model, shape = case
    torch.manual_seed(len(shape))
    x = torch.from_numpy(decode(encode(torch.randn(shape).numpy() * 4, dtype), dtype))
    graph = trace(model, (x,), source=Source("memory", ""))
    options = {"precision": dtype}
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options)
    emit(plan, tmp_path / "out")
    (stage,) = load_backend("fpga").load(plan, tmp_path / "out").stages
    (name,) = (i.name for i in graph.inputs_of(InputKind.INPUT))
    (found,) = stage({name: x}).values()
    width, integer = parse_fixed(dtype) or (0, 0)
    raw = encode(x.numpy(), dtype)
    exact = whole_results(type(model).__name__, raw, width - integer)
    want = np.array([held(n, dtype) for n in exact])
    off = np.abs(encode(found.numpy(), dtype).reshape(-1).astype(np.int64) - want).max()
    # a sum of 24-bit products leaves no room for a factor of 24 bits: that runs in float32
    assert off <= (isinstance(model, Product) and width == 24)
