"""Files of onnxruntime's quantiser on a board: its own scales, within one step of onnxruntime."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import pipec
from benchmarks._zoo_exports import quantise_file, write
from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.route import Concat
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.numbers import Int8, int8_format
from pipec.backends.fpga.quantise.samples import unseen_frames
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.job import StageFunction
from pipec.errors import BackendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.frontends.trace import trace
from pipec.graph.ir import InputKind, Source
from pipec.graph.opaque import ort_session
from tests.fpga.design.numeric import execute
from tests.fpga.emit.integers import run8, steps_of
from tests.sampling import without


class Both(nn.Module):
    """Maps, then tokens of 5 per head: channels that no power of two divides."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 10, 3, padding=1)
        self.qkv = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))
        self.head = nn.Linear(10, 7)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                nn.init.normal_(m.weight, std=1.5 / m.weight[0].numel() ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[1, 3, 8, 8] to [1, 7]."""
        x = self.a(x)
        x = nn.functional.max_pool2d(x + torch.sigmoid(self.b(x)), 2)
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = (m(tokens).reshape(1, 16, 2, 5).transpose(1, 2) for m in self.qkv)
        mixed = torch.softmax(q @ k.transpose(2, 3) / 2.0, -1) @ v
        tokens = tokens + mixed.transpose(1, 2).reshape(1, 16, 10)
        found: Tensor = self.head(tokens.mean(1))
        return found


@pytest.mark.parametrize("boards", without([1, 2], [1]))
def test_convolutions_and_attention(boards: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    frames = [{"x": torch.randn(1, 3, 8, 8).numpy()} for _ in range(6)]
    example = (torch.from_numpy(frames[0]["x"]),)
    export = partial(write, Both(), example, dynamo=False, opset_version=17, input_names=["x"])
    path = tmp_path / "net.onnx"
    quantise_file(export, path, "QOperator", frames, per_channel=True)
    backend = FpgaBackend()
    loaded = load(str(path), LoadOptions(**backend.reads))
    cluster = parse_cluster(f"{boards}xzcu102")
    plan = make_plan(loaded.graph, cluster, "fpga", options={"precision": "int8"})
    emit(plan, tmp_path / "out")
    runners = backend.load(plan, tmp_path / "out").stages
    assert len(runners) == boards
    session = ort_session(str(path), fused=False)
    (name,) = (o.name for o in loaded.graph.outputs)
    proto = onnx.load(path)
    (scale,) = (n.input[1] for n in proto.graph.node if n.output[0] == name)
    (step,) = (numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == scale)
    off, seen = [], set[float]()
    for seed in range(8):
        x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        (want,) = session.run(None, {"x": x.numpy()})
        seen |= set(want.reshape(-1).tolist())
        known = {"x": x}
        for stage, runner in zip(plan.stages, runners, strict=True):
            wanted = [i.name for i in stage.graph.inputs_of(InputKind.INPUT)]
            wanted += [c.value for c in plan.channels if c.dst == stage.index]
            known |= runner({k: known[k] for k in wanted})
        off.append(np.abs(known[name].numpy() - want) / step)
    assert len(seen) > 40
    assert np.max(off) < 1.01
    assert (np.concatenate(off) > 0.5).mean() < 0.02


@pytest.mark.parametrize("stride", [1, 2])
def test_the_bias_of_a_transposed_convolution_is_in_its_sums(stride: int, tmp_path: Path) -> None:
    """Added behind them, it met results that were cut off where the example inputs end."""
    torch.manual_seed(0)
    model = nn.ConvTranspose2d(3, 4, 3, stride, padding=1, output_padding=stride - 1)
    assert model.bias is not None
    nn.init.normal_(model.bias, std=3.0)
    frames = [{"x": 4 * torch.randn(1, 3, 4, 5).numpy()} for _ in range(6)]
    example = (torch.from_numpy(frames[0]["x"]),)
    export = partial(write, model, example, dynamo=False, opset_version=17, input_names=["x"])
    path = tmp_path / "net.onnx"
    quantise_file(export, path, "QDQ", frames)
    backend = FpgaBackend()
    loaded = load(str(path), LoadOptions(**backend.reads))
    options = {"precision": "int8"}
    plan = make_plan(loaded.graph, parse_cluster("1xzcu102"), "fpga", options=options)
    (design,) = designs_of(plan)
    step = form_of(design, design.outputs[0].value).scale
    session = ort_session(str(path), fused=False)
    for frame in frames:
        (want,) = session.run(None, frame)
        (y,) = execute(design, {"x": torch.from_numpy(frame["x"])}, run8, steps_of).values()
        off = np.abs(y.numpy() - want / step)
        assert np.abs(want).max() > 50 * step
        assert off.max() < 1.01
        assert (off > 0.5).mean() < 0.02


def written(x: str, form: str, y: str) -> list[onnx.NodeProto]:
    """A value in a format."""
    return [
        helper.make_node("QuantizeLinear", [x, form, "z"], [f"{y}q"]),
        helper.make_node("DequantizeLinear", [f"{y}q", form, "z"], [y]),
    ]


def saved(
    folder: Path, nodes: list[onnx.NodeProto], reads: dict[str, int], yields: dict[str, int],
    tables: dict[str, Any],
) -> Path:  # fmt: skip
    """A file; inputs and outputs by name with their lengths."""
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, k]) for n, k in side.items()]
        for side in (reads, yields)
    )
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in tables.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, held)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "net.onnx")
    return folder / "net.onnx"


def test_what_is_written_in_a_format_is_rounded_there(tmp_path: Path) -> None:
    """A factor and a clamp behind a format do not join the factor before it."""
    formats = {"a": 0.02, "b": 0.05, "c": 0.0125}
    tables = {"w": np.float32(1.5), "half": np.float32(0.25), "z": np.int8(0)}
    tables |= {name: np.float32(scale) for name, scale in formats.items()}

    nodes = [
        *written("x", "a", "x1"), helper.make_node("Mul", ["x1", "w"], ["p"]),
        *written("p", "b", "p1"), helper.make_node("Mul", ["p1", "half"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]), *written("r", "c", "y"),
    ]  # fmt: skip
    path = saved(tmp_path, nodes, {"x": 6}, {"y": 6}, tables)
    network = lower(load(str(path)).graph, "int8")
    assert [type(y.nest) for y in network.layers] == [Map, Map]
    assert [round(f.scale, 6) for f in network.named.values()] == list(formats.values())


@pytest.mark.parametrize("boards", without([1, 2], [1]))
def test_values_that_the_file_gives_no_format_are_held_as_far_as_its_formats_go(
    boards: int, tmp_path: Path
) -> None:
    """Nobody calibrates a quantised file: normal numbers are far less than its formats hold.

    What the stages are measured on is drawn as far as the format of the input goes.
    """
    nodes = [
        *written("x", "a", "r"),
        helper.make_node("Mul", ["r", "r"], ["square"]),
        helper.make_node("Mul", ["r", "quarter"], ["part"]),
        helper.make_node("Exp", ["part"], ["curve"]),
        helper.make_node("Sum", ["square", "r", "curve"], ["s"]),
        *written("s", "b", "y"),
    ]
    tables = {"a": np.float32(0.1), "b": np.float32(1.5), "quarter": np.float32(0.25)}
    path = saved(tmp_path, nodes, {"x": 64}, {"y": 64}, {**tables, "z": np.int8(0)})
    loaded = load(str(path), LoadOptions(**FpgaBackend.reads))
    options, cluster = {"precision": "int8"}, parse_cluster(f"{boards}xzcu102")
    plan = make_plan(loaded.graph, cluster, "fpga", options=options)
    drawn = torch.cat([frame["x"] for frame in unseen_frames(plan)])
    assert -12.8 <= float(drawn.min()) < -12
    assert 12 < float(drawn.max()) <= 12.7
    known = {"x": torch.linspace(-13, 13, 64)[None]}
    for design in designs_of(plan):
        known |= {
            name: steps * form_of(design, name).scale
            for name, steps in execute(design, known, run8, steps_of).items()
        }
    (want,) = ort_session(str(path), fused=False).run(None, {"x": known["x"].numpy()})
    assert np.abs(want).max() > 160
    assert np.abs(known["y"].numpy() - want).max() < 1.01 * float(tables["b"])


@pytest.mark.parametrize("boards", without([1, 2], [1]))
def test_parts_of_a_concatenation_keep_their_own_format(boards: int, tmp_path: Path) -> None:
    """Values far apart in size: the smaller one is read in its own steps by others."""
    rng = np.random.default_rng(0)
    tables = {
        "z": np.int8(0), "big": np.float32(40), "a": np.float32(0.03), "b": np.float32(0.06),
        "c": np.float32(2), "d": np.float32(5),
        "u": rng.normal(size=32).astype(np.float32),
    }  # fmt: skip
    for name, shape in (("w", (32, 64)), ("v", (32, 64))):  # whole steps, so that 8 bits hold them
        steps = rng.integers(-127, 127, shape)
        steps[:, 0] = 127
        tables[name] = (steps / 256).astype(np.float32)
    nodes = [
        *written("x", "a", "x1"), helper.make_node("Gemm", ["x1", "w"], ["p"], transB=1),
        *written("p", "b", "p1"), helper.make_node("Mul", ["p1", "u"], ["s"]),
        *written("s", "b", "y2"), helper.make_node("Mul", ["p1", "big"], ["g"]),
        *written("g", "c", "g1"), helper.make_node("Concat", ["p1", "g1"], ["k"], axis=1),
        *written("k", "c", "k1"), helper.make_node("Gemm", ["k1", "v"], ["t"], transB=1),
        *written("t", "d", "y"),
    ]  # fmt: skip
    path = saved(tmp_path, nodes, {"x": 64}, {"y": 32, "y2": 32}, tables)
    graph = load(str(path)).graph
    cluster = parse_cluster(f"{boards}xzcu102")
    plan = make_plan(graph, cluster, "fpga", options={"precision": "int8"})
    designs = designs_of(plan)
    assert any(isinstance(y.nest, Concat) for y in designs[-1].engines)
    session = ort_session(str(path), fused=False)
    for seed in range(6):
        x = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
        known = {"x": x}
        for design in designs:
            found = execute(design, known, run8, steps_of)
            for port in design.outputs:
                form = int8_format(design.streams[port.stream].dtype)
                assert form is not None
                known[port.value] = found[port.value] * form.scale
        for name, step in (("y", 5), ("y2", 0.06)):
            (want,) = session.run([name], {"x": x.numpy()})
            assert np.abs(known[name].numpy() - want).max() < 1.01 * step


@pytest.mark.parametrize("boards", without([1, 2], [1]))
@pytest.mark.parametrize("joined", [False, True])
def test_a_format_that_cuts_off_what_was_moved_is_kept(
    boards: int, joined: bool, tmp_path: Path
) -> None:
    """A quantiser leaves out a ReLU where the format behind it begins at zero."""
    tables: dict[str, Any] = {
        "a": np.float32(0.0625), "b": np.float32(0.03125), "z": np.int8(0), "low": np.int8(-128),
        "half": np.array([4, 4], np.int64), "w": np.eye(8, dtype=np.float32)[::-1].copy(),
    }  # fmt: skip
    nodes = [
        *written("x", "a", "x1"), helper.make_node("Gemm", ["x1", "w"], ["p"], transB=1),
        *written("p", "a", "p1"), helper.make_node("Split", ["p1", "half"], ["l", "r"], axis=1),
        helper.make_node("QuantizeLinear", ["l", "b", "low"], ["l1q"]),
        helper.make_node("DequantizeLinear", ["l1q", "b", "low"], ["l1"]),
        helper.make_node("Concat", ["l1", "r"], ["k"], axis=1),
        *(written("k", "a", "k1") if joined else [helper.make_node("Identity", ["k"], ["k1"])]),
        helper.make_node("Gemm", ["k1", "w"], ["q"], transB=1), *written("q", "a", "y"),
    ]  # fmt: skip
    path = saved(tmp_path, nodes, {"x": 8}, {"y": 8}, tables)
    plan = make_plan(
        load(str(path)).graph, parse_cluster(f"{boards}xzcu102"), "fpga",
        options={"precision": "int8"},
    )  # fmt: skip
    known = {"x": torch.linspace(6, -6, 8)[None]}
    for design in designs_of(plan):
        known |= {
            name: steps * form_of(design, name).scale
            for name, steps in execute(design, known, run8, steps_of).items()
        }
    (want,) = ort_session(str(path), fused=False).run(None, {"x": known["x"].numpy()})
    assert float(want.min()) >= -6.1 and (want == 0).sum() >= 2  # noqa: PT018
    assert np.abs(known["y"].numpy() - want).max() < 1.01 * float(tables["a"])


def test_a_border_of_a_number_keeps_the_format_of_what_it_surrounds(tmp_path: Path) -> None:
    """Whatever the frames that are looked at, nothing is cut off within the file's format."""
    tables = {"a": np.float32(0.25), "z": np.int8(0), "half": np.float32(0.5)}
    nodes = [
        *written("x", "a", "x1"),
        helper.make_node("Unsqueeze", ["x1", "front"], ["x2"]),
        helper.make_node("Pad", ["x2", "pads", "half"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]), *written("f", "a", "y"),
    ]  # fmt: skip
    more = {"front": np.array([0], np.int64), "pads": np.array([0, 0, 1, 0, 0, 2], np.int64)}
    path = saved(tmp_path, nodes, {"x": 8}, {"y": 11}, {**tables, **more})
    np.savez(tmp_path / "small.npz", x=np.full((4, 1, 8), 0.125, np.float32))
    plan = pipec.compile(
        str(path), devices="1xzcu102", target="fpga", precision="int8",
        calibrate=str(tmp_path / "small.npz"),
    )  # fmt: skip
    (design,) = designs_of(plan)
    x = torch.linspace(-31, 31, 8)[None]
    found = execute(design, {"x": x}, run8, steps_of)["y"] * form_of(design, "y").scale
    (want,) = ort_session(str(path), fused=False).run(None, {"x": x.numpy()})
    assert np.abs(want).max() > 30
    assert np.abs(found.numpy() - want).max() < 1.01 * 0.25


def _last_step(zero: int) -> Any:
    """Of results that grow with the weights' distance from their zero point."""
    return np.float32(0.25 if zero == 128 else 2)


def with_zero_points(zero: int, path: Path) -> Path:
    """A convolution of single channels and a Gemm, their weights of QUInt8 less that zero point."""
    rng = np.random.default_rng(zero)
    tables = {
        "z": np.int8(0), "a": np.float32(0.03), "b": np.float32(0.4), "c": _last_step(zero),
        "wz": np.uint8(zero), "ws": np.float32(0.01), "h": rng.normal(size=5).astype(np.float32),
        "k": rng.integers(0, 256, (8, 1, 3, 3)).astype(np.uint8), "map": np.array([1, 8, 4, 4]),
        "w": rng.integers(0, 256, (5, 128)).astype(np.uint8), "flat": np.array([1, 128]),
    }  # fmt: skip
    nodes = [
        *written("x", "a", "x1"), helper.make_node("Reshape", ["x1", "map"], ["m"]),
        helper.make_node("DequantizeLinear", ["k", "ws", "wz"], ["kr"]),
        helper.make_node("Conv", ["m", "kr"], ["v"], group=8, pads=[1, 1, 1, 1]),
        *written("v", "b", "v1"), helper.make_node("Reshape", ["v1", "flat"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"]),
        helper.make_node("Gemm", ["f", "wr", "h"], ["t"], transB=1), *written("t", "c", "y"),
    ]  # fmt: skip
    return saved(path, nodes, {"x": 128}, {"y": 5}, tables)


@pytest.mark.parametrize(("zero", "kind"), [(0, "int16"), (30, "int16"), (128, "int8")])
def test_weights_less_a_zero_point_are_exact(zero: int, kind: str, tmp_path: Path) -> None:
    """They take 9 bits: rounded to 8, they were up to two steps off."""
    path = with_zero_points(zero, tmp_path)
    plan = make_plan(
        load(str(path)).graph, parse_cluster("1xzcu102"), "fpga", options={"precision": "int8"}
    )
    (design,) = designs_of(plan)
    tables = {w.dtype for e in design.engines for w in e.weights if w.role == "weight"}
    assert tables == {kind}
    run: Any = partial(_steps, design)
    if zero == 30:
        emit(plan, tmp_path / "out")
        (runner,) = FpgaBackend().load(plan, tmp_path / "out").stages
        run = partial(_emitted, runner)
    session = ort_session(str(path), fused=False)
    for seed in range(6):
        x = torch.randn(1, 128, generator=torch.Generator().manual_seed(seed))
        (want,) = session.run(None, {"x": x.numpy()})
        step = _last_step(zero)
        assert np.abs(want).max() > 9 * step
        assert np.array_equal(np.rint(run(x) / step), np.rint(want / step))


def form_of(design: StageDesign, output: str) -> Int8:
    """The format in which an output leaves."""
    (stream,) = (p.stream for p in design.outputs if p.value == output)
    form = int8_format(design.streams[stream].dtype)
    assert form is not None
    return form


def _steps(design: StageDesign, x: Tensor) -> Any:
    return execute(design, {"x": x}, run8, steps_of)["y"].numpy() * form_of(design, "y").scale


def _emitted(runner: StageFunction, x: Tensor) -> Any:
    return runner({"x": x})["y"].numpy()


def test_rows_that_are_looked_up_and_a_quotient(tmp_path: Path) -> None:
    """Token ids from both ends of a table, in float32, as onnxruntime has it."""
    rng = np.random.default_rng(0)
    tables = {"t": rng.normal(size=(9, 6)).astype(np.float32), "two": np.float32(2.5)}
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["e"]),
        helper.make_node("Div", ["e", "two"], ["y"]),
    ]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in tables.items()]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 5])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 6])]
    graph, opset = helper.make_graph(nodes, "net", inputs, outputs, held), helper.make_opsetid
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset("", 17)], ir_version=8), path)
    plan = make_plan(load(str(path)).graph, parse_cluster("1xzcu102"), "fpga")
    emit(plan, tmp_path / "out")
    (runner,) = FpgaBackend().load(plan, tmp_path / "out").stages
    ids = np.array([[0, -1, 8, -9, 3]])
    (want,) = ort_session(str(path)).run(None, {"ids": ids})
    assert np.allclose(runner({"ids": torch.from_numpy(ids)})["y"].numpy(), want, atol=1e-6)


class Whole(nn.Module):
    """Integers that are read as such: of an input, or as an output."""

    def __init__(self, *, arriving: bool) -> None:
        super().__init__()
        self.arriving = arriving
        self.register_buffer("scale", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Real numbers, or integers."""
        if self.arriving:
            real = torch.ops.pipec.dequantize(x, self.scale, None, 0, 0, dtype=torch.float32)
            return torch.relu(real)
        y = torch.relu(x)
        found: Tensor = torch.ops.pipec.quantize(y, self.scale, None, 0, 0, dtype=torch.int8)
        return found


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("arriving", [True, False])
def test_integers_that_are_read_as_such_are_refused(precision: str, arriving: bool) -> None:
    x = torch.zeros(2, 3, dtype=torch.int8) if arriving else torch.randn(2, 3)
    graph = trace(Whole(arriving=arriving).eval(), (x,), source=Source("memory", ""))
    with pytest.raises(BackendError, match="quantize"):
        lower(graph, precision)
