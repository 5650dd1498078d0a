"""8-bit integers: the C++ against whole numbers in numpy, formats against onnxruntime, losses."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pipec
from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.csim.run import CSimulation, load_stages
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import designs_of, networks
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.route import Concat
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.numbers import Int8, fit_int8, int8_format, multipliers
from pipec.backends.fpga.quantise.formats import formats_of, observe
from pipec.backends.fpga.quantise.layers import quantise, weight_scale
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import BackendError
from pipec.frontends.base import Loaded
from pipec.frontends.load import load
from pipec.frontends.trace import trace
from pipec.graph.ir import InputKind, Source
from tests.fpga.design.models import graph_of, made
from tests.fpga.design.numeric import execute
from tests.fpga.emit.integers import run8, steps_of

scales = st.floats(2.0**-40, 2.0**40)


@given(scales, st.integers(-128, 127), st.floats(-1e6, 1e6, width=32))
def test_a_format_is_its_name_and_rounds_to_the_nearest(
    scale: float, zero: int, value: float
) -> None:
    form = Int8.of(scale, zero)
    assert int8_format(form.dtype) == form
    assert form.scale == float(np.float32(scale))
    raw = int(form.quantise(np.array(value)))
    low, high = form.range
    best = min(max(value, low), high)
    assert abs((raw - zero) * form.scale - best) <= form.scale * (0.5 + 2**-16)


@given(a=st.floats(-100, 100), b=st.floats(-100, 100), symmetric=st.booleans())
def test_a_format_covers_the_range_and_zero(a: float, b: float, *, symmetric: bool) -> None:
    low, high = sorted((a, b))
    form = fit_int8(low, high, symmetric=symmetric)
    assert not symmetric or form.zero == 0
    assert float(form.dequantise(form.quantise(np.array(0.0)))) == 0.0
    at_most = 0.5 * form.scale * 1.001 + 1e-30
    for value in (low, high, 0.0):
        assert abs(float(form.dequantise(form.quantise(np.array(value)))) - value) <= at_most * 2


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8))
def test_multipliers_are_within_half_a_unit(ratios: list[float]) -> None:
    found, shift = multipliers(np.array(ratios))
    assert found.max() < 2**17
    assert found.max() >= 2**16 or shift in (0, 46)
    assert np.abs(found / 2.0**shift - ratios).max() <= 1.01 * 2.0**-shift


def design_of(name: str) -> tuple[StageDesign, dict[str, torch.Tensor], torch.Tensor]:
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph, "int8")
    key = network.inputs[0].value
    seen = observe([network], [{key: x}])
    ready = quantise(network, formats_of([network], seen)[0])
    with torch.no_grad():
        want = model(x)
    return (
        size_fifos(design_at(ready, 1000, name="s", dtype="int8")),
        {key: x},
        want[0] if isinstance(want, tuple) else want,
    )


def _computes_in_float32(engine: Engine) -> bool:
    """Whether a rounding may fall to either side, functions being those of another library."""
    real_map = isinstance(engine.nest, Map) and engine.narrowing is None and engine.weights
    return isinstance(engine.nest, Norm) or bool(real_map)


@pytest.mark.parametrize("name", ["resnet", "inception", "dense", "excite"])
def test_emitted_code_is_the_integers_of_numpy(name: str, tmp_path: Path) -> None:
    """Bit for bit; a softmax at the end may round to the other side."""
    design, inputs, want = design_of(name)
    write_stage(design, tmp_path / "s", None)
    texts = (path.read_text() for path in (tmp_path / "s/src").rglob("*.h"))
    last = [line for text in texts for line in text.splitlines() if "return narrowed<" in line]
    assert last
    assert not [line for line in last if " * " in line]  # priced as LUTs: `on_fabric` says so
    (simulation,) = load_stages([tmp_path / "s"])
    found = simulation(inputs)
    expected = execute(design, inputs, run8, steps_of)
    slack = int(any(_computes_in_float32(e) for e in design.engines))
    assert slack == (name == "resnet")
    for port in design.outputs:
        form = int8_format(design.streams[port.stream].dtype)
        assert form is not None
        steps = found[port.value].double() / form.scale
        off = (steps - expected[port.value]).abs()
        assert float(off.max()) <= slack + 1e-3
        assert float((off > 0.5).double().mean()) <= 0.2 * slack
    first = found[design.outputs[0].value]
    assert float((first - want).abs().max() / want.abs().max()) < 0.05


def test_matrices_in_parts_are_the_integers_of_numpy(tmp_path: Path) -> None:
    """Parts for several memory ports, the clamp behind them in each; every handshake in time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(96, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    x = torch.randn(1, 96)
    graph = graph_of(model, x)
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options={"precision": "int8"})
    (network,) = networks(plan)
    parts = [y for y in network.layers if isinstance(y.nest, Mvu) and y.node == "linear"]
    assert len(parts) > 1
    assert {y.clamp for y in parts} == {(0.0, math.inf)}
    assert {type(y.nest) for y in network.layers} == {Mvu, Concat}
    emit(plan, tmp_path / "out")
    backend = FpgaBackend()
    (runner,) = backend.load(plan, tmp_path / "out").stages
    (design,) = designs_of(plan)
    inputs = {design.inputs[0].value: x}
    (name,) = (port.value for port in design.outputs)
    expected, found = execute(design, inputs, run8, steps_of), runner(inputs)
    form = int8_format(design.streams[design.outputs[0].stream].dtype)
    assert form is not None
    assert float((found[name].double() / form.scale - expected[name]).abs().max()) < 1e-3
    loaded = Loaded(graph, inputs, lambda frame: {name: model(*frame.values())})
    assert verify_artifacts(tmp_path / "out", loaded).ok
    assert all(check.ok for check in backend.check_cycles(plan, tmp_path / "out"))


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    tables: dict[str, Any],
    kind: int,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
) -> onnxruntime.InferenceSession:
    """A model from ``x`` to ``y``, one frame each, written and loaded."""
    model = helper.make_model(
        helper.make_graph(
            nodes, "net",
            [helper.make_tensor_value_info("x", kind, [1, *reads])],
            [helper.make_tensor_value_info("y", kind, [1, *writes])],
            [numpy_helper.from_array(np.asarray(t), name) for name, t in tables.items()],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
    )  # fmt: skip
    model.ir_version = 8
    onnx.save(model, path)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_convolution_agrees_with_the_one_of_onnxruntime(tmp_path: Path) -> None:
    """QLinearConv rescales in floating point: at most one step apart, and seldom."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(6, 10, 3, padding=1)
    x = torch.rand(1, 6, 12, 12) * 3 - 1
    graph = graph_of(conv, x)
    network = lower(graph, "int8")
    seen = observe([network], [{network.inputs[0].value: x}])
    formats = formats_of([network], seen)[0]
    design = size_fifos(design_at(quantise(network, formats), 1000, name="s", dtype="int8"))
    write_stage(design, tmp_path / "s", None)
    (simulation,) = load_stages([tmp_path / "s"])
    (found,) = simulation({network.inputs[0].value: x}).values()
    reads, writes = formats[network.inputs[0].use.edge], formats[network.outputs[0].use.edge]
    weight, bias = conv.weight.detach().numpy(), conv.bias
    assert bias is not None
    by = np.abs(weight).max((1, 2, 3)).astype(np.float64) / 127
    tables = {
        "xs": np.float32(reads.scale), "xz": np.int8(reads.zero),
        "w": np.rint(weight / by[:, None, None, None]).astype(np.int8),
        "ws": by.astype(np.float32), "wz": np.zeros(10, np.int8),
        "ys": np.float32(writes.scale), "yz": np.int8(writes.zero),
        "b": np.rint(bias.detach().numpy() / (by * reads.scale)).astype(np.int32),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", *tables], ["y"], pads=[1, 1, 1, 1])
    session = save(
        tmp_path / "one.onnx", [node], tables, TensorProto.INT8, (6, 12, 12), (10, 12, 12)
    )
    (theirs,) = session.run(None, {"x": reads.quantise(x.numpy())})
    ours = np.rint(found.numpy() / writes.scale) + writes.zero
    off = np.abs(ours - np.asarray(theirs).astype(np.float64))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.02


def test_formats_of_the_file_are_kept(tmp_path: Path) -> None:
    """QuantizeLinear and DequantizeLinear around a convolution, unsigned: onnxruntime's results."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 3, 3, 3)).astype(np.float32)
    by = np.abs(weight).max((1, 2, 3)) / np.float32(63)  # of more bits onnxruntime's sums saturate
    bias = np.rint(rng.normal(size=8) / (by * 0.02)).astype(np.int32)  # on processors without VNNI
    tables = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.05), "yz": np.uint8(0),
        "w": np.rint(weight / by[:, None, None, None]).astype(np.int8), "ws": by,
        "wz": np.zeros(8, np.int8), "b": bias, "bs": by * np.float32(0.02),
        "bz": np.zeros(8, np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    session = save(tmp_path / "net.onnx", nodes, tables, TensorProto.FLOAT, (3, 8, 8), (8, 8, 8))
    loaded = load(str(tmp_path / "net.onnx"))
    plan = make_plan(loaded.graph, parse_cluster("1xvcu118"), "fpga", options={"precision": "int8"})
    (network,) = networks(plan)
    assert [type(layer.nest) for layer in network.layers] == [Mvu]
    assert network.outputs[0].use.dtype == Int8.of(0.05, -128).dtype
    emit(plan, tmp_path / "out")
    (runner,) = FpgaBackend().load(plan, tmp_path / "out").stages
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    (want,) = session.run(None, {"x": x.numpy()})
    off = np.abs(runner({"x": x})["y"].numpy() - np.asarray(want)) / 0.05
    assert off.max() < 1.01
    assert (off > 0.5).mean() < 0.02


def test_formats_leave_room_for_new_inputs_up_to_what_limits_a_value() -> None:
    """A tenth beyond what was seen; not beyond a clamp or a sigmoid; moves add nothing."""

    class Limited(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 6), torch.nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            both = torch.nn.functional.relu6(self.a(20 * x))
            return self.b(x).reshape(3, 4), both, torch.sigmoid(20 * x)

    torch.manual_seed(0)
    x = torch.randn(2, 8)
    network = lower(graph_of(Limited(), x), "int8")
    seen = observe([network], [{network.inputs[0].value: x}])
    formats = formats_of([network], seen)[0]
    free, clamped, squashed = (formats[port.use.edge].range for port in network.outputs)
    low, high = (1.1 * seen[0][network.outputs[0].use.edge][0],
                 1.1 * seen[0][network.outputs[0].use.edge][1])  # fmt: skip
    assert free == pytest.approx((low, high), abs=(high - low) / 200)
    assert clamped == pytest.approx((0, 6), abs=0.03)
    assert squashed == pytest.approx((0, 1), abs=0.005)


def test_masks_are_refused() -> None:
    model, x = made("attention")
    with pytest.raises(BackendError, match="no infinity"):
        make_plan(
            graph_of(model, x), parse_cluster("1xvcu118"), "fpga", options={"precision": "int8"}
        )


def test_without_weights_it_is_planned_with_but_not_emitted(tmp_path: Path) -> None:
    with torch.device("meta"):
        model, x = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), torch.empty(2, 8)
    graph = graph_of(model, x)
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options={"precision": "int8"})
    assert plan.timing
    with pytest.raises(BackendError, match="without data"):
        emit(plan, tmp_path / "out")


def test_weights_that_are_8_bit_integers_already_keep_them() -> None:
    """One scale for all channels or one each, of which few reach 127; -128 is an integer too."""
    rng = np.random.default_rng(0)
    for most, each in itertools.product((127, 90, -128), (0.0, 0.3)):
        whole = rng.integers(-100, 91, size=(8, 20)) // np.arange(1, 9)[:, None]
        whole[0, 0] = most
        steps = np.float32(0.0123) * (1 + each * np.arange(8, dtype=np.float32)[:, None])
        weight = (whole * steps).astype(np.float32).astype(np.float64)
        scale = np.broadcast_to(weight_scale(weight, (1,), np.zeros(8)), 8)[:, None]
        raw = np.rint(weight / scale)
        assert np.abs(raw * scale - weight).max() < 1e-6
        assert raw.min() >= -128
        assert raw.max() <= 127
    loose = rng.normal(size=(8, 20))
    assert np.allclose(weight_scale(loose, (1,), np.zeros(8)), np.abs(loose).max(1) / 127)


class Cell(torch.nn.Module):
    """An LSTM cell, which no node of a graph says in one piece: both results are parts of it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(4, 6)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.cell(x, (h, c))
        return found


def test_results_that_only_lowering_makes_are_no_integers_of_the_model(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 4), torch.randn(2, 6), torch.randn(2, 6))
    graph = trace(Cell().eval(), inputs, source=Source("memory", ""))
    plan = make_plan(graph, parse_cluster("1xvcu118"), "fpga", options={"precision": "int8"})
    emit(plan, tmp_path / "out")
    assert len(load_stages(list((tmp_path / "out").glob("stage*")))) == 1


def test_a_bias_beside_weights_of_nothing_keeps_its_value(tmp_path: Path) -> None:
    """A pruned channel beside one of large weights: one shift for both."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 3), torch.rand(4, 6) * 2 - 1
    layer.weight.data *= torch.tensor([[10.0], [0.0], [1e-6]])
    layer.bias.data = torch.tensor([0.0, -5.3, 3.1])
    plan = pipec.compile(layer, x, "1xvcu118", target="fpga", precision="int8")
    emit(plan, tmp_path / "out")
    (stage,) = FpgaBackend().load(plan, tmp_path / "out").stages
    (name,) = (i.name for i in plan.graph.inputs_of(InputKind.INPUT))
    (found,) = stage({name: x}).values()
    assert isinstance(stage, CSimulation)
    form = int8_format(stage.wires[-1].stream.dtype)
    assert form is not None
    assert ((found - layer(x))[:, 1:].abs() <= 0.53 * form.scale).all()


@pytest.mark.parametrize("own", ["bfloat16", "float16", "float64"])
def test_models_of_other_floats_are_calibrated_and_verified(own: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU())\n"
        f"    return model.to(torch.{own}), (torch.randn(2, 8, dtype=torch.{own}),)\n"
    )
    loaded = load(f"{tmp_path / 'net.py'}:net")
    options = {"precision": "int8"}
    plan = make_plan(loaded.graph, parse_cluster("1xvcu118"), "fpga", options=options)
    emit(plan, tmp_path / "out")
    emitted = load_backend("fpga").load(plan, tmp_path / "out")
    kept, other = emitted.inputs(0) or {}, emitted.inputs(1) or {}
    assert [str(x.dtype) for x in kept.values()] == [f"torch.{own}"]
    assert not all(torch.equal(kept[n], other[n]) for n in kept)
    report = verify_artifacts(tmp_path / "out", loaded)
    assert report.ok, report
