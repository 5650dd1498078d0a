"""Axes that a file leaves open: one compilation is right at other sizes, or says what is fixed."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from pipec.backends.torch.open_axes import read_axes
from pipec.backends.torch.run import AnySize
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit
from pipec.compiler.job import run_chain
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.verify import verify_artifacts, verify_stages
from pipec.errors import PipecError, PlanError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.graph.axes import FILE, Axes
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.graph.units import placement_units
from pipec.plan.store import load_plan
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import infer
from tests.plans import cut

Arrays = dict[str, np.ndarray]
SIZES = [(1, 1), (2, 7), (3, 4), (5, 9), (8, 2)]
FLOAT, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(path: Path, nodes: list[onnx.NodeProto], weights: Arrays, *rank3: str) -> Path:
    """A file of inputs ``[batch, seq, 8]`` with an output ``y``."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "open",
        [info(name, FLOAT, ["batch", "seq", 8]) for name in rank3],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    graph.output[0].type.tensor_type.elem_type = FLOAT
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, path)
    return path


def attention(path: Path) -> Path:
    """Heads by shapes that nodes compute, a causal mask of the sequence's length, a residual."""
    rng, node = np.random.default_rng(0), helper.make_node
    weights = {n: rng.normal(size=(8, 8)).astype(np.float32) for n in ("wq", "wk", "wv", "wo")}
    numbers = {"zero": [0], "one": [1], "two": [2], "four": [4], "eight": [8]}
    weights |= {n: np.array(v, np.int64) for n, v in numbers.items()}
    weights["low"] = np.array(-1e9, np.float32)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Gather", ["s", "one"], ["l"]),
        node("Concat", ["b", "l", "two", "four"], ["split"], axis=0),
        node("Concat", ["b", "l", "eight"], ["merged"], axis=0),
        node("Concat", ["l", "l"], ["square"], axis=0),
    ]
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"], f"{name}0"),
            node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            node(
                "Transpose",
                [f"{name}1"],
                [name],
                perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3],
            ),
        ]
    nodes += [
        node("Expand", ["low", "square"], ["full"]),
        node("Trilu", ["full", "one"], ["mask"], upper=1),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", "merged"], ["r"]),
        node("MatMul", ["r", "wo"], ["out"]),
        node("Add", ["x", "out"], ["y"]),
    ]
    return model(path, nodes, weights, "x")


def shape_of_before(path: Path) -> Path:
    """The end counts tensors of the beginning: ``batch * seq`` rows, ``seq + 1`` steps."""
    node = helper.make_node
    one = helper.make_tensor("value", FLOAT, [1], [1.0])
    nodes = [
        node("Reshape", ["x", "rows"], ["flat"]),
        node("Tanh", ["flat"], ["u"]),
        node("Pad", ["x", "one_more"], ["p"]),
        node("Sigmoid", ["p"], ["v"]),
        node("ReduceMean", ["v"], ["mean"], keepdims=1),
        node("Shape", ["x"], ["s"]),
        node("Reshape", ["u", "s"], ["back"]),
        node("Add", ["back", "mean"], ["a"]),
        node("Exp", ["a"], ["e"]),
    ]
    for name in "uv":
        nodes += [
            node("Shape", [name], [f"{name}s"]),
            node("ConstantOfShape", [f"{name}s"], [f"{name}1"], value=one),
            node("ReduceSum", [f"{name}1"], [f"{name}n"], keepdims=0),
        ]
    nodes += [node("Add", ["e", "un"], ["f"]), node("Mul", ["f", "vn"], ["y"])]
    numbers = {"rows": [-1, 8], "one_more": [0, 0, 0, 0, 1, 0]}
    return model(path, nodes, {n: np.array(v, np.int64) for n, v in numbers.items()}, "x")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(x)[0])
        return found


def exported(path: Path, module: nn.Module, *shape: int) -> Path:
    names = {0: "batch", 1: "seq"} if len(shape) == 3 else {0: "batch"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (torch.randn(shape),),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": names},
        )
    return path


def recurrent(path: Path) -> Path:
    return exported(path, Recurrent(), 2, 5, 8)


def convolutions(path: Path) -> Path:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)]
    return exported(path, nn.Sequential(*layers), 2, 3, 8, 8)


def two_names(path: Path) -> Path:
    """Every input has names of its own for what must be equal, as some exporters write it."""
    node = helper.make_node
    nodes = [node("Add", ["x", "z"], ["a"]), node("Tanh", ["a"], ["b"]), node("Exp", ["b"], ["y"])]
    proto = onnx.load(model(path, nodes, {}, "x", "z"))
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "batch2"
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "seq2"
    onnx.save(proto, path)
    return path


def planned(path: Path, *, leave_open: bool = True) -> Loaded:
    shapes = {}
    for i in onnx.load(path).graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        shapes[i.name] = (2, *((5,) if len(dims) == 3 else dims[1:2]), *dims[2:])
    return load(str(path), LoadOptions(shapes=shapes, open=leave_open))


def borders(graph: Graph) -> list[int]:
    """Positions between calls where no unit is split."""
    units = list(placement_units(graph).values())
    return [k for k in range(1, len(units)) if not set(units[:k]) & set(units[k:])]


def thirds(graph: Graph) -> list[int]:
    places = borders(graph)
    return sorted({places[len(places) // 3], places[2 * len(places) // 3]})


def inputs_at(path: Path, batch: int, seq: int) -> Arrays:
    rng, found = np.random.default_rng(batch), {}
    for i in onnx.load(path).graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        shape = (batch, *((seq,) if len(dims) == 3 else dims[1:2]), *dims[2:])
        found[i.name] = rng.normal(size=shape).astype(np.float32)
    return found


def right_at_all_sizes(path: Path, directory: Path) -> None:
    """Hold emitted stages against onnxruntime on the file, at sizes that nobody has compiled."""
    plan = load_plan(directory)
    stages = load_backend(plan.target).load(plan, directory).stages
    file = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch, seq in SIZES:
        given = inputs_at(path, batch, seq)
        (want,) = file.run(None, given)
        tensors = {n: torch.from_numpy(a) for n, a in given.items()}
        (got,) = [t for _, kind, _, t in run_chain(plan, stages, tensors) if kind == "output"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["onnx", "torch"])
@pytest.mark.parametrize("make", [attention, shape_of_before, recurrent, convolutions, two_names])
def test_one_compilation_is_right_at_five_sizes(
    make: Callable[[Path], Path], target: str, tmp_path: Path
) -> None:
    path, out = make(tmp_path / "model.onnx"), tmp_path / "out"
    loaded = planned(path, leave_open=target == "torch")
    plan = cut(loaded.graph, *thirds(loaded.graph), target=target)
    emit(plan, out)
    axes = Axes.read(out, plan.graph)
    assert axes.open
    assert not axes.fixed
    assert len(axes.checked) == 4
    right_at_all_sizes(path, out)
    report = verify_artifacts(out, loaded)
    assert report.ok
    assert sum(" at " in b.name for b in report.boundaries) == 4


@pytest.mark.parametrize("target", ["onnx", "torch"])
def test_a_shape_is_made_of_what_each_stage_is_given(target: str, tmp_path: Path) -> None:
    path = shape_of_before(tmp_path / "model.onnx")
    graph = planned(path, leave_open=target == "torch").graph
    for at in borders(graph):
        out = tmp_path / f"out{at}"
        emit(cut(graph, at, target=target), out)
        axes = Axes.read(out, graph)
        assert axes.open or "size that follows from nothing" in axes.lines()[0], at
        if not axes.open:
            continue
        right_at_all_sizes(path, out)


def test_what_is_fixed_is_told_with_its_reason(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "rows"], ["r"], "by_five"),
        node("Tanh", ["r"], ["t"]),
        node("Add", ["t", "x"], ["y"], "joined"),
    ]
    path = model(tmp_path / "model.onnx", nodes, {"rows": np.array([-1, 5, 8], np.int64)}, "x")
    graph, out = planned(path).graph, tmp_path / "out"
    emit(cut(graph, 1, target="onnx"), out)
    axes = Axes.read(out, graph)
    assert [a.name for a in axes.open] == ["batch"]
    (seq,) = axes.fixed
    assert (seq.name, seq.size) == ("seq", 5)
    assert "by_five" in seq.why
    assert "axis 'seq' of x is fixed to 5" in axes.lines()[1]


def test_a_branch_that_a_size_chooses_fixes_it(tmp_path: Path) -> None:
    node, info = helper.make_node, helper.make_tensor_value_info
    long, short = (
        helper.make_graph([node(op, ["x"], [name])], name, [], [info(name, FLOAT, None)])
        for op, name in (("Tanh", "long"), ("Sigmoid", "short"))
    )
    nodes = [
        node("Shape", ["x"], ["n"], start=1, end=2),
        node("Greater", ["n", "hundred"], ["many"]),
        node("If", ["many"], ["i"], "chosen", then_branch=long, else_branch=short),
        node("Exp", ["i"], ["y"]),
    ]
    path = model(tmp_path / "model.onnx", nodes, {"hundred": np.array([100], np.int64)}, "x")
    graph, out = planned(path).graph, tmp_path / "out"
    emit(cut(graph, 1, target="onnx"), out)
    axes = Axes.read(out, graph)
    assert [a.name for a in axes.open] == ["batch"]
    assert [(a.name, "chosen" in a.why) for a in axes.fixed] == [("seq", True)]


def test_a_rank_that_depends_on_a_size_fixes_it(tmp_path: Path) -> None:
    """A Squeeze without axes drops a batch of one, and no other."""
    node = helper.make_node
    nodes = [node("Squeeze", ["x"], ["s"]), node("Tanh", ["s"], ["t"]), node("Relu", ["t"], ["y"])]
    path, out = model(tmp_path / "model.onnx", nodes, {}, "x"), tmp_path / "out"
    graph = load(str(path), LoadOptions(shapes={"x": (1, 5, 8)})).graph
    emit(cut(graph, 1, target="onnx"), out)
    axes = Axes.read(out, graph)
    why = {a.name: a.why for a in axes.fixed}
    assert set(why) == {"batch", "seq"}  # a sequence of one drops a dimension too
    assert "how many dimensions 's' has depends on a size" in why["batch"]


def test_a_bound_dimension_is_no_axis(tmp_path: Path) -> None:
    path, out = attention(tmp_path / "model.onnx"), tmp_path / "out"
    told = LoadOptions(shapes={"x": (2, 5, 8)}, bind={"batch": (2,)})
    graph = load(str(path), told).graph
    emit(cut(graph, *thirds(graph), target="onnx"), out)
    assert [a.name for a in Axes.read(out, graph).open] == ["seq"]
    graph = load(str(path), LoadOptions(bind={"batch": (2,), "seq": (5,)})).graph
    emit(cut(graph, *thirds(graph), target="onnx"), out, force=True)
    assert not (out / FILE).exists()


def test_a_cache_grows_by_what_its_dimensions_are_called(tmp_path: Path) -> None:
    """The mask's ``past + seq`` follows the other two; onnxruntime says what is right."""
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Concat", ["cache", "x"], ["keys"], axis=1),
        node("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["x", "turned"], ["scores"]),
        node("Unsqueeze", ["mask", "one"], ["row"]),
        node("Add", ["scores", "row"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "keys"], ["y"]),
    ]
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    proto = onnx.load(model(path, nodes, {"one": np.array([1], np.int64)}, "x", "cache"))
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past"
    proto.graph.input.append(info("mask", FLOAT, ["batch", "past + seq"]))
    onnx.save(proto, path)
    loaded = load(str(path), LoadOptions(bind={"past": (6,)}, shapes={"x": (2, 1, 8)}))
    assert loaded.example_inputs["mask"].shape == (2, 7)
    emit(cut(loaded.graph, 5, target="onnx"), out)
    assert [a.name for a in Axes.read(out, loaded.graph).open] == ["batch", "seq", "6 + seq"]
    loaded = load(str(path), LoadOptions(shapes={"x": (2, 1, 8), "cache": (2, 6, 8)}))
    emit(cut(loaded.graph, 5, target="onnx"), out, force=True)
    axes = Axes.read(out, loaded.graph)
    assert not axes.fixed
    plan = load_plan(out)
    stages = load_backend("onnx").load(plan, out).stages
    file, rng = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]), np.random
    for batch, past, seq in ((1, 1, 1), (2, 0, 5), (3, 9, 2), (5, 4, 4), (1, 20, 1)):
        shapes = {"x": (batch, seq, 8), "cache": (batch, past, 8), "mask": (batch, past + seq)}
        given = {n: rng.default_rng(past).normal(size=s).astype("f4") for n, s in shapes.items()}
        (want,) = file.run(None, given)
        tensors = {n: torch.from_numpy(a) for n, a in given.items()}
        (got,) = [t for _, kind, _, t in run_chain(plan, stages, tensors) if kind == "output"]
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_damaged_record_is_one_error(tmp_path: Path) -> None:
    path, out = two_names(tmp_path / "model.onnx"), tmp_path / "out"
    graph = planned(path).graph
    emit(cut(graph, 1, target="onnx"), out)
    text = (out / FILE).read_text()
    for old, new in (('"x"', '"w"'), ('"size": 2', '"size": 3'), ('"open"', '"opened"')):
        assert old in text
        (out / FILE).write_text(text.replace(old, new))
        with pytest.raises(PlanError, match="open ax"):
            Axes.read(out, graph)


def test_stages_that_hold_one_size_alone_are_reported(tmp_path: Path) -> None:
    path, out = attention(tmp_path / "model.onnx"), tmp_path / "out"
    loaded = planned(path)
    graph = loaded.graph
    emit(cut(graph, *thirds(graph), target="onnx"), out)
    record = (out / FILE).read_text()
    fixed = load(str(path), LoadOptions(bind={"batch": (2,), "seq": (5,)})).graph
    emit(cut(fixed, *thirds(fixed), target="onnx"), out, force=True)
    plan = load_plan(out)
    (out / FILE).write_text(record)
    emitted = load_backend("onnx").load(plan, out)
    with pytest.raises(PipecError, match="onnxruntime fails on a stage"):
        verify_stages(plan, emitted, loaded)


def test_a_constant_that_follows_a_size_fixes_it(tmp_path: Path) -> None:
    """Torch mirrors borders by a table of positions, which is as long as the sequence."""
    nodes = [
        helper.make_node("Pad", ["x", "one_more"], ["p"], "mirrored", mode="reflect"),
        helper.make_node("Tanh", ["p"], ["t"]),
        helper.make_node("Exp", ["t"], ["y"]),
    ]
    pads = {"one_more": np.array([0, 1, 0, 0, 1, 0], np.int64)}
    path, out = model(tmp_path / "model.onnx", nodes, pads, "x"), tmp_path / "out"
    graph = planned(path).graph
    emit(cut(graph, 1), out)
    axes = Axes.read(out, graph)
    assert [a.name for a in axes.open] == ["batch"]
    assert [(a.name, "constant" in a.why) for a in axes.fixed] == [("seq", True)]


def changed_formula(out: Path, **change: int) -> None:
    record = json.loads((out / FILE).read_text())
    sized = next(a for stage in record["stages"] for a in stage if a["formula"]["plus"] == 0)
    sized["formula"] |= change
    (out / FILE).write_text(json.dumps(record))


def test_a_formula_that_is_wrong_at_the_planned_size_is_a_damaged_record(tmp_path: Path) -> None:
    path, out = attention(tmp_path / "model.onnx"), tmp_path / "out"
    graph = planned(path).graph
    emit(cut(graph, *thirds(graph)), out)
    plan = load_plan(out)
    changed_formula(out, plus=1)
    with pytest.raises(PlanError, match="open ax"):
        load_backend("torch").load(plan, out)


def test_a_formula_that_is_right_at_the_planned_size_alone_is_reported(tmp_path: Path) -> None:
    path, out = attention(tmp_path / "model.onnx"), tmp_path / "out"
    loaded = planned(path)
    emit(cut(loaded.graph, *thirds(loaded.graph)), out)
    plan = load_plan(out)
    changed_formula(out, times=0, plus=2)
    emitted = load_backend("torch").load(plan, out)
    with pytest.raises(PipecError, match=r"does not take these sizes|fails on a stage"):
        verify_stages(plan, emitted, loaded)


class Mixed(nn.Module):
    """A table of positions, a mask of the sequence's size, a sum of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(64, 8))

    def forward(self, ids: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids) + bias[:, None]
        mask = torch.full((ids.shape[1], ids.shape[1]), -1.0).triu(1)
        x = torch.relu(mask @ x + self.places[: ids.shape[1]]).reshape(-1, 8)
        return self.head(x).view(*ids.shape, 3), x.sum(0)


def test_a_program_with_open_dimensions_stays_open_and_so_do_its_exported_stages(
    tmp_path: Path,
) -> None:
    module, path, out = Mixed().eval(), tmp_path / "model.pt2", tmp_path / "out"
    dims = torch.export.Dim("batch"), torch.export.Dim("seq", max=64)
    inputs = torch.randint(0, 40, (2, 5)), torch.randn(2, 8)
    shapes = ({0: dims[0], 1: dims[1]}, {0: dims[0]})
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), path)
    loaded = load(str(path), LoadOptions(trust=True, open=True))
    plan = cut(loaded.graph, *thirds(loaded.graph)).replace(options={"pt2": True})
    emit(plan, out)
    axes = Axes.read(out, plan.graph)
    assert (len(axes.open), axes.fixed) == (2, ())
    plan = load_plan(out)
    stages = load_backend("torch").load(plan, out).stages
    files = [out / f"stage{k}/stage{k}.pt2" for k in range(len(plan.stages))]
    programs = [torch.export.load(f).module() for f in files]
    for batch, seq in SIZES:
        given = {"ids": torch.randint(0, 40, (batch, seq)), "bias": torch.randn(batch, 8)}
        want = module(*given.values())
        got = [t for _, kind, _, t in run_chain(plan, stages, given) if kind == "output"]
        torch.testing.assert_close(got, list(want))
        known = dict(given)
        for stage, program in zip(plan.stages, programs, strict=True):
            names = [i.name for i in lower(stage.graph).graph.inputs if not i.kind.is_weight]
            known |= program(**{n: known[n] for n in names})
        torch.testing.assert_close([known[o.name] for o in plan.graph.outputs], list(want))
    assert verify_artifacts(out, loaded).ok


def test_microbatches_of_one_run_may_differ_in_size(tmp_path: Path) -> None:
    path, out = attention(tmp_path / "model.onnx"), tmp_path / "out"
    loaded = planned(path)
    passes = parse_pipeline("annotate-cost,schedule{generator=inference microbatches=3}")
    emit(run_passes(passes, cut(loaded.graph, *thirds(loaded.graph))), out)
    plan = load_plan(out)
    axes = read_axes(plan, out)

    def batch(number: int) -> dict[str, Tensor]:
        arrays = inputs_at(path, *SIZES[number % len(SIZES)])
        return {n: torch.from_numpy(a) for n, a in arrays.items()}

    pipeline = AnySize(LocalPipeline(plan, batch), axes, batch)
    found = infer(pipeline, 2)
    assert found is not None
    file = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for k in range(6):
        (want,) = file.run(None, {n: t.numpy() for n, t in batch(k).items()})
        np.testing.assert_allclose(found[f"y.{k}"].numpy(), want, rtol=1e-4, atol=1e-5)
