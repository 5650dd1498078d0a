"""Every computing engine against torch or numpy, through emission, g++ and a run."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipec.backends.fpga import toolchain
from pipec.backends.fpga.csim import build as csim_build
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.steps import BINARY, UNARY, Step
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.engines.vvu import Vvu
from tests.fpga.emit.harness import Array, Case, check, design_of, rng

pytestmark = pytest.mark.usefixtures("compiled_for_users")


def tiles(weight: Array, pe: int, simd: int, kp: int = 1) -> Array:
    """[groups][rows][taps][channels] -> [groups][nf][sf][simd][pe], zeros where it overhangs."""
    groups, rows, taps, channels = weight.shape
    lanes = simd // kp
    nf, cf = ceil_div(rows, pe), ceil_div(channels, lanes)
    full = np.zeros((groups, nf * pe, taps, cf * lanes))
    full[:, :rows, :, :channels] = weight
    cut = full.reshape(groups, nf, pe, taps // kp, kp, cf, lanes)
    return cut.transpose(0, 1, 3, 5, 4, 6, 2).reshape(groups, nf, -1, simd, pe)


def bias_tiles(bias: Array, pe: int) -> Array:
    groups, rows = bias.shape
    full = np.zeros((groups, ceil_div(rows, pe) * pe))
    full[:, :rows] = bias
    return full.reshape(groups, -1, pe)


def mvu_case(name: str, **options: object) -> Case:
    nest = Mvu(**options)  # type: ignore[arg-type]
    g = rng(len(name))
    weight = g.normal(size=(nest.groups, nest.rows, nest.taps, nest.channels))
    bias = g.normal(size=(nest.groups, nest.rows))
    x = g.normal(size=(nest.n, nest.groups, nest.taps, nest.channels))
    y = np.einsum("ngtc,grtc->ngr", x, weight) + (bias if nest.bias else 0)
    tables = {"weight": tiles(weight, nest.pe, nest.simd, nest.kp)}
    if nest.bias:
        tables["bias"] = bias_tiles(bias, nest.pe)
    words = tables["weight"]
    inputs = [(x.reshape(-1, nest.channels * nest.kp), nest.simd)]
    if nest.streamed:
        del tables["weight"]
        if nest.order == "B":
            words = words.transpose(0, 2, 1, 3, 4)
        words = words.reshape(-1, nest.simd * nest.pe)
        repeat = nest.n // nest.block
        inputs.append((np.tile(words, (repeat, 1)), nest.simd * nest.pe))
    return Case(name, nest, inputs, [(y.reshape(-1, nest.rows), nest.pe)], tables)


def test_matrix_vector_units(tmp_path: Path) -> None:
    even = {"n": 5, "rows": 8, "taps": 3, "channels": 4, "pe": 4, "simd": 2}
    ragged = {"n": 4, "rows": 7, "taps": 2, "channels": 5, "pe": 3, "simd": 3, "bias": True}
    cases = [
        mvu_case("a_even", **even),
        mvu_case("a_ragged", **ragged),
        mvu_case("a_partial", **ragged, partial=4),
        mvu_case("a_scalar", n=3, rows=2, taps=1, channels=3, pe=1, simd=1),
        mvu_case("a_groups", **ragged, groups=3),
        mvu_case("a_kp", n=3, rows=5, taps=9, channels=3, pe=2, simd=9, kp=3, bias=True),
        mvu_case("b_even", **even, order="B"),
        mvu_case("b_groups", **ragged, order="B", groups=2),
        mvu_case("a_stream", **ragged, streamed=True),
        mvu_case("b_stream", **ragged, order="B", streamed=True),
        mvu_case("block", **ragged, block=2, streamed=True),
        mvu_case("block_partial", **ragged, block=2, partial=3, streamed=True),
    ]
    check(cases, tmp_path / "stage")


def window_case(name: str, **options: object) -> Case:
    """An SWG against unfold: windows [taps][channels] of every output position."""
    nest = Swg(**options)  # type: ignore[arg-type]
    channels = nest.cf * nest.lanes
    x = rng(len(name)).normal(size=(nest.batch, nest.h, nest.w, channels))
    eh, ew = (nest.kh - 1) * nest.dh + 1, (nest.kw - 1) * nest.dw + 1
    below = max(0, (nest.oh - 1) * nest.sh + eh - nest.pt - nest.h)
    right = max(0, (nest.ow - 1) * nest.sw + ew - nest.pl - nest.w)
    pads = ((0, 0), (nest.pt, below), (nest.pl, right), (0, 0))
    padded = np.pad(x, pads, constant_values=nest.pad_value)
    rows = []
    for image in padded:
        for oy in range(nest.oh):
            for ox in range(nest.ow):
                y, x0 = oy * nest.sh, ox * nest.sw
                window = image[y : y + eh : nest.dh, x0 : x0 + ew : nest.dw]
                taps = window.reshape(nest.taps, nest.groups, -1)
                rows.append(taps.transpose(1, 0, 2).reshape(-1, nest.kp * channels // nest.groups))
    return Case(
        name,
        nest,
        [(x.reshape(-1, channels), nest.lanes)],
        [(np.concatenate(rows), nest.kp * nest.lanes)],
    )


def test_sliding_windows(tmp_path: Path) -> None:
    base = {"batch": 1, "h": 6, "w": 5, "cf": 2, "lanes": 3, "kh": 3, "kw": 3}
    cases = [
        window_case("valid", **base, oh=4, ow=3),
        window_case("same", **base, pt=1, pl=1, oh=6, ow=5),
        window_case("stride", **base, pt=1, pl=1, sh=2, sw=2, oh=3, ow=3),
        window_case("batch", **(base | {"batch": 3}), pt=1, pl=1, sh=2, sw=1, oh=3, ow=5),
        window_case("dilated", **base, dh=2, dw=2, pt=2, pl=2, oh=6, ow=5),
        window_case("minimum", **base, pt=1, pl=1, oh=6, ow=5, pad_value=-1e30),
        window_case("groups", **base, pt=1, pl=1, oh=6, ow=5, groups=2),
        window_case("kp3", **base, pt=1, pl=1, oh=6, ow=5, groups=2, kp=3),
        window_case("kp9", **(base | {"cf": 1}), pt=1, pl=1, sh=2, sw=2, oh=3, ow=3, kp=9),
        window_case("flat", batch=1, h=1, w=9, cf=1, lanes=2, kh=1, kw=4, sw=2, pl=1, oh=1, ow=4),
        window_case("pick", batch=2, h=4, w=4, cf=1, lanes=2, kh=1, kw=1, sh=2, sw=2, oh=2, ow=2),
        window_case("whole", batch=1, h=4, w=4, cf=1, lanes=2, kh=4, kw=4, oh=1, ow=1),
        window_case("sparse", batch=1, h=7, w=7, cf=1, lanes=1, kh=2, kw=2, sh=3, sw=3, oh=2, ow=2),
        window_case("wide", batch=1, h=5, w=5, cf=1, lanes=1, kh=5, kw=5, pt=2, pl=2, oh=5, ow=5),
    ]
    check(cases, tmp_path / "stage")


def pool_case(name: str, op: str, **options: object) -> Case:
    nest = Reduce(op=op, **options)  # type: ignore[arg-type]
    g = rng(len(name))
    x = g.normal(size=(nest.n, nest.window, nest.cf, nest.kp, nest.lanes))
    tables: dict[str, Array] = {}
    scale: Array = np.full((1, 1, 1), nest.scale)
    if nest.table:
        tables["scale"] = g.uniform(size=nest.table)
        scale = np.resize(tables["scale"], nest.n)[:, None, None]
    y = getattr(np, op)(x, axis=(1, 3)) * scale
    width = nest.kp * nest.lanes
    return Case(
        name,
        nest,
        [(x.reshape(-1, width), width)],
        [(y.reshape(-1, nest.lanes), nest.lanes)],
        tables,
    )


def depthwise_case(name: str, **options: object) -> Case:
    nest = Vvu(**options)  # type: ignore[arg-type]
    g = rng(len(name))
    shape = (nest.cf, nest.taps // nest.kp, nest.kp, nest.lanes)
    x, weight, bias = g.normal(size=(nest.n, *shape)), g.normal(size=shape), g.normal(size=shape)
    bias = bias[:, 0, 0] * nest.bias
    y = (x * weight).sum(axis=(2, 3)) + bias
    tables = {"weight": weight, "bias": bias} if nest.bias else {"weight": weight}
    width = nest.kp * nest.lanes
    return Case(
        name,
        nest,
        [(x.reshape(-1, width), width)],
        [(y.reshape(-1, nest.lanes), nest.lanes)],
        tables,
    )


def test_depthwise_and_reductions(tmp_path: Path) -> None:
    cases = [
        depthwise_case("dw", n=4, channels=6, taps=9, lanes=3, partial=4, bias=True),
        depthwise_case("dw_kp", n=3, channels=4, taps=9, lanes=2, kp=3),
        depthwise_case("dw_all", n=3, channels=4, taps=9, lanes=2, kp=9, bias=True),
        pool_case("top", "max", n=5, window=4, cf=1, lanes=3),
        pool_case("top_kp", "max", n=5, window=2, cf=2, lanes=3, kp=2),
        pool_case("low", "min", n=2, window=3, cf=2),
        pool_case("mean", "sum", n=2, window=7, cf=3, lanes=2, scale=1 / 7, partial=4),
        pool_case("short", "sum", n=2, window=2, cf=3, lanes=2, kp=3, partial=4),
        pool_case("edge", "sum", n=6, window=4, cf=1, lanes=2, table=3),
    ]
    check(cases, tmp_path / "stage")


TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "div": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
    "rdiv": lambda x, y: y / x,
    "rpow": lambda x, y: y**x,
    "rsub": lambda x, y: y - x,
}


def torch_op(name: str) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] = TORCH.get(name) or getattr(torch, name)
    return found


def map_case(name: str, steps: list[Step], positive: bool = False) -> Case:
    g = rng(len(name))
    x, y = g.normal(size=(2, 4, 5))
    if positive:
        x, y = np.abs(x) + 0.25, np.abs(y) + 0.25
    value, tables = torch.tensor(x), {}
    for k, step in enumerate(steps):
        operand: list[object] = []
        if step.operand == "scalar":
            operand = [torch.tensor(step.value, dtype=torch.float64)]
        if step.operand == "stream":
            operand = [torch.tensor(y)]
        if step.operand == "table":
            rows = step.period // 2
            entries = g.uniform(0.5, 2, size=(rows, 2, 3))
            tables[f"table{k}"] = entries.reshape(-1, 3)
            operand = [torch.tensor(np.resize(entries.reshape(rows, 6)[:, :5], (4, 5)))]
        if step.op in ("leaky_relu", "elu"):
            operand = [step.value]
        value = torch_op(step.op)(value, *operand)
    streams = [(x, 3), (y, 3)][: 1 + any(s.operand == "stream" for s in steps)]
    return Case(name, Map(4, 5, 3, tuple(steps)), streams, [(value.numpy(), 3)], tables)


def test_elementwise(tmp_path: Path) -> None:
    cases = [
        map_case(f"u_{op}", [Step(op)], positive=op in ("log", "rsqrt", "sqrt")) for op in UNARY
    ]
    cases += [map_case(f"b_{op}", [Step(op, "stream")], positive=True) for op in BINARY]
    cases += [
        map_case("copy", []),
        map_case("slope", [Step("leaky_relu", value=0.1), Step("elu", value=0.7)]),
        map_case("clip", [Step("max", "scalar", -0.5), Step("min", "scalar", 0.5)]),
        map_case("affine", [Step("mul", "table", period=2), Step("add", "table", period=2)]),
        map_case("place", [Step("add", "table", period=8), Step("relu")]),
        map_case(
            "mixed",
            [Step("mul", "table", period=4), Step("add", "stream"), Step("sub", "table", period=2)],
        ),
    ]
    check(cases, tmp_path / "stage")


def local_response(x: torch.Tensor, nest: Norm) -> torch.Tensor:
    """By ONNX's rule: (size-1)//2 channels below and size//2 above."""
    squares = functional.pad(x**2, ((nest.size - 1) // 2, nest.size // 2))
    sums = squares.unfold(-1, nest.size, 1).sum(-1)
    return x / (nest.k + nest.alpha / nest.size * sums) ** nest.beta


def norm_case(name: str, shape: tuple[int, int, int], lanes: int, **options: object) -> Case:
    rows, taps, channels = shape
    nest = Norm(rows, channels, taps, lanes, **options)  # type: ignore[arg-type]
    g = rng(len(name))
    x = torch.tensor(g.normal(3.0, 2.0, size=shape))
    flat = x.reshape(rows, -1)
    tables: dict[str, Array] = {}
    factors = []
    for role, wanted, neutral in (("scale", nest.scale, 1.0), ("shift", nest.shift, 0.0)):
        values = g.normal(size=(taps, channels))
        padded = np.zeros((taps, ceil_div(channels, lanes) * lanes))
        padded[:, :channels] = values
        if wanted:
            tables[role] = padded.reshape(-1, lanes)
        factors.append(
            torch.tensor(values.reshape(-1) if wanted else values.reshape(-1) * 0 + neutral)
        )
    if nest.op == "softmax":
        y = torch.softmax(flat, -1)
    elif nest.op == "log_softmax":
        y = torch.log_softmax(flat, -1)
    elif nest.op == "layer_norm":
        y = functional.layer_norm(flat, flat.shape[1:], eps=nest.eps) * factors[0] + factors[1]
    elif nest.op == "rms_norm":
        y = functional.rms_norm(flat, flat.shape[1:], eps=nest.eps) * factors[0] + factors[1]
    else:
        y = local_response(flat, nest)
    before, after = (v.reshape(-1, channels).numpy() for v in (x, y))
    return Case(name, nest, [(before, lanes)], [(after, lanes)], tables)


def test_row_units(tmp_path: Path) -> None:
    lrn = {"op": "lrn", "alpha": 0.5, "beta": 0.75, "k": 2.0}
    affine = {"scale": True, "shift": True, "eps": 1e-5}
    cases = [
        norm_case("soft", (3, 1, 10), 4),
        norm_case("soft_one", (2, 1, 5), 1),
        norm_case("soft_taps", (2, 3, 5), 2),
        norm_case("log_soft", (2, 1, 7), 3, op="log_softmax"),
        norm_case("layer", (3, 1, 10), 4, op="layer_norm", **affine),
        norm_case("layer_taps", (2, 3, 5), 4, op="layer_norm", **affine),
        norm_case("layer_bare", (2, 1, 6), 2, op="layer_norm", eps=1e-5),
        norm_case("rms", (3, 1, 10), 4, op="rms_norm", scale=True, eps=1e-6),
        norm_case("lrn_five", (4, 1, 12), 4, size=5, **lrn),
        norm_case("lrn_even", (4, 1, 7), 3, size=4, **lrn),
        norm_case("lrn_three", (2, 1, 7), 1, size=3, **lrn),
    ]
    check(cases, tmp_path / "stage")


def matmul_case(name: str, b_axes: str, a_order: str, **options: object) -> Case:
    """Axes: b block, o outer, g group, i inner, n row, t tap, c channel; k is (t, c)."""
    nest = Matmul(**options)  # type: ignore[arg-type]
    g = rng(len(name))
    sizes = {"b": nest.blocks, "g": nest.groups, "n": nest.rows, "t": nest.taps}
    sizes |= {"c": nest.channels, "o": nest.outer, "i": nest.inner}
    a = g.normal(size=[sizes[axis] for axis in "bogitc"])
    b = g.normal(size=[sizes[axis] for axis in "b" + b_axes])
    y = np.einsum(f"bogitc,b{b_axes}->bogin", a, b) * nest.scale
    assert a_order == "bogitc"
    return Case(
        name,
        nest,
        [(a.reshape(-1, nest.channels), nest.simd), (b.reshape(-1, b.shape[-1]), nest.b_lanes)],
        [(y.reshape(-1, nest.rows), nest.pe)],
    )


def test_products_of_activations(tmp_path: Path) -> None:
    """Attention's two products, heads as groups, in the axis orders that lowering gives."""
    qk = {"blocks": 2, "outer": 3, "groups": 2, "inner": 1, "rows": 4, "taps": 1, "channels": 5}
    cases = [
        matmul_case(
            "qk", "ngc", "bogitc", **qk, b_sizes=(4, 2, 5), b_roles=("n", "g", "k"),
            b_lanes=2, pe=3, simd=2, partial=3, scale=0.5,
        ),
        matmul_case(
            "pv", "cgn", "bogitc", **qk, b_sizes=(5, 2, 4), b_roles=("k", "g", "n"),
            b_lanes=2, pe=4, simd=5,
        ),
        matmul_case(
            "taps", "gtcn", "bogitc", **(qk | {"taps": 3, "inner": 2, "outer": 1}),
            b_sizes=(2, 3, 5, 4), b_roles=("g", "k", "k", "n"), b_lanes=4, pe=4, simd=2,
        ),
    ]  # fmt: skip
    check(cases, tmp_path / "stage")


@pytest.mark.parametrize("memory", [Memory.LUT, Memory.URAM])
def test_wide_words_and_every_memory_compile(tmp_path: Path, memory: Memory) -> None:
    case = mvu_case("wide", n=2, rows=32, taps=1, channels=16, pe=32, simd=16)
    case = Case(case.name, case.nest, case.inputs, case.outputs, case.tables, memory)
    check([case], tmp_path / "stage")
    kernel = (tmp_path / "stage/src/stage_top.cpp").read_text()
    assert f"impl = {'lutram' if memory is Memory.LUT else 'uram'}" in kernel
    assert "#pragma HLS ARRAY_PARTITION variable = table::wide_weight.lane dim = 2" in kernel


def test_what_has_changed_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, made = tmp_path / "stage", list[list[str]]()

    def compiles(command: list[str], **_: object) -> CompletedProcess[str]:
        made.append(command)
        Path(command[-1]).touch()
        return CompletedProcess(command, 0)

    monkeypatch.setattr(toolchain, "run_command", compiles)
    monkeypatch.setattr(toolchain, "workspace", lambda: tmp_path)
    write_stage(design_of([map_case("copy", [])]), stage, golden=None)
    built = csim_build.build(stage, csim_build.TIMED)
    assert len(made) == 2 + len(csim_build.COMMON)  # the standard library's headers
    for source in (stage / s for s in csim_build.COMMON):
        includes = re.findall(r'#include "(.*)"', source.read_text())
        assert includes == [f"{source.stem}.h"]
        assert '#include "' not in source.with_suffix(".h").read_text()
    texts = [*stage.rglob("*.h"), *stage.rglob("*.cpp")]
    assert len(texts) > 16
    for path in texts:
        text = path.read_text()
        path.write_text(text + "\n")
        made.clear()
        assert csim_build.build(stage, csim_build.TIMED) != built
        apart = [s for s in csim_build.COMMON if Path(s).stem == path.stem]
        assert [c[c.index("-c") + 1] for c in made if "-c" in c] == apart
        path.write_text(text)
        assert csim_build.build(stage, csim_build.TIMED) == built
    assert csim_build.build(stage, csim_build.BOUNDED) != built
