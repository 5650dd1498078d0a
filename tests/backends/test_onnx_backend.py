"""The ONNX target: files that onnxruntime and the checker take, under the source's own names."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

import pipec
from pipec.backends.onnx import files as onnx_files
from pipec.backends.onnx.backend import OnnxBackend
from pipec.backends.onnx.files import write_model
from pipec.backends.torch.exported import OpenStage, export_stage
from pipec.compiler.driver import emit
from pipec.compiler.verify import verify_artifacts
from pipec.errors import BackendError, FrontendError, PipecError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.frontends.onnx.submodel import Assembler
from pipec.frontends.torch_module import from_module
from pipec.graph import torch_private
from pipec.graph.arrays import Array
from pipec.graph.ir import Graph, GraphOutput, OutputKind, origin
from pipec.graph.units import placement_units
from pipec.plan.store import load_plan
from tests.frontends.onnx import models
from tests.plans import chain, cut, files, loaded
from tests.toys import Builder, aten, mlp


def traps(path: Path) -> Path:
    """A model of everything that makes cutting an ONNX file hard.

    Multiple outputs of one type, nodes that trace to nothing, inputs read for their type only,
    subgraphs, a tied weight, and a constant as an output.
    """
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), "w/0")
    k = numpy_helper.from_array(np.array([2], np.int64), "k")
    flag = numpy_helper.from_array(np.array(True), "flag")
    ones = numpy_helper.from_array(np.ones((2, 4), np.int32), "ones")
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [helper.make_node("Add", ["q", "d"], ["t"])], "then", [], [info("t", 1, [2, 4])]
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["q", "a"], ["e"])], "else", [], [info("e", 1, [2, 4])]
    )
    node = helper.make_node
    nodes = [
        node("Split", ["x"], ["a", "b"], "split", axis=1, num_outputs=2),
        node("MatMul", ["b", "w/0"], ["m"], "first"),
        node("Identity", ["a"], ["ai"], "same"),
        node("Dropout", ["m"], ["d"], "drop"),
        node("Shape", ["x"], ["s"], "shape"),
        node("Relu", ["d"], ["p"], "p"),
        node("CastLike", ["ones", "m"], ["c"], "castlike"),
        node("MatMul", ["ai", "w/0"], ["n"], "second"),
        node("Add", ["n", "p"], ["q"], "join"),
        node("If", ["flag"], ["i"], "branch", then_branch=then, else_branch=other),
        node("Add", ["i", "c"], ["j"], "typed"),
        node("TopK", ["j", "k"], ["values", "indices"], "topk", axis=1),
        node("Sigmoid", ["values"], ["y"], "tail"),
    ]
    graph = helper.make_graph(
        nodes,
        "traps",
        [info("x", TensorProto.FLOAT, [2, 8])],
        [info("y", 1, [2, 2]), info("indices", 7, [2, 2]), info("s", 7, [2])],
        [w, k, flag, ones],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def traps_model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(traps(tmp_path_factory.mktemp("model") / "traps.onnx")))


@pytest.mark.parametrize("route", ["direct", "relay"])
def test_every_cut_of_a_model_of_traps(traps_model: Loaded, tmp_path: Path, route: str) -> None:
    graph = traps_model.graph
    ends = _whole_nodes(graph)
    for k, at in enumerate(ends[:-1]):
        later = [e for e in ends[:-1] if e > at][:1]
        out = tmp_path / f"out{k}"
        emit(cut(graph, at, *later, target="onnx", route=route), out)
        report = verify_artifacts(out, traps_model, seed=k)
        assert report.ok, report
        for path in out.glob("*/*.onnx"):
            onnx.checker.check_model(str(path), full_check=True)


def _whole_nodes(graph: Graph) -> list[int]:
    """Positions between calls where no ONNX node is split."""
    units = list(placement_units(graph).values())
    return [k + 1 for k in range(len(units)) if not set(units[: k + 1]) & set(units[k + 1 :])] or [
        len(units)
    ]


def _written(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of all graphs in it."""
    for n in graph.node:
        yield n
        for a in n.attribute:
            yield from _written(a.g)


def test_names_are_those_of_the_source(traps_model: Loaded, tmp_path: Path) -> None:
    graph = traps_model.graph
    middle = _whole_nodes(graph)[2]
    emit(cut(graph, middle, target="onnx"), tmp_path / "out")
    first, second = (onnx.load(tmp_path / "out" / f"stage{k}" / f"stage{k}.onnx") for k in (0, 1))
    source = onnx.load(graph.source.location)
    written = list(_written(source.graph))  # those of inlined branches too
    known = {v for n in written for v in (*n.input, *n.output)}
    for stage in (first, second):
        nodes = [n for n in stage.graph.node if not n.name.endswith("/blank")]
        assert {v for n in nodes for v in (*n.input, *n.output)} <= known
        assert {n.name for n in nodes} <= {n.name for n in written}
        assert stage.opset_import == source.opset_import
    assert {o.name for o in first.graph.output} == {i.name for i in second.graph.input}
    session = ort.InferenceSession(str(tmp_path / "out" / "stage0" / "stage0.onnx"))
    assert [i.name for i in session.get_inputs()] == ["x"]


def test_results_of_a_node_find_their_names(traps_model: Loaded) -> None:
    graph = traps_model.graph
    evaluation = evaluate_file(Path(graph.source.location), LoadOptions())
    assembler = Assembler(evaluation, {}, [])
    made = [n for n in graph.calls if origin(n).index is not None]  # by a node of the file
    results = [n for n in made if any(_index(u) != _index(n) for u in n.users)]
    named = {assembler.name_of(n) for n in results if isinstance(n.meta["val"], torch.Tensor)}
    assert {"a", "b", "m", "p", "n", "q", "j", "values", "indices"} <= named
    with pytest.raises(FrontendError, match="no ONNX node"):
        assembler.name_of(mlp().node("relu0"))


def _index(node: torch.fx.Node) -> int | None:
    return origin(node).index if node.op == "call_function" else -1


def test_large_weights_lie_beside_the_file(
    traps_model: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = traps_model.graph
    plan = cut(graph, _whole_nodes(graph)[1], target="onnx")
    emit(plan, tmp_path / "inline")
    monkeypatch.setattr(onnx_files.write_model, "__defaults__", (16,))
    emit(plan, tmp_path / "outside")
    data = sorted((tmp_path / "outside").glob("*/*.data"))
    assert data
    assert verify_artifacts(tmp_path / "outside", traps_model).ok
    back = onnx.load(tmp_path / "outside" / "stage0" / "stage0.onnx")
    want = onnx.load(tmp_path / "inline" / "stage0" / "stage0.onnx")
    for a, b in zip(back.graph.initializer, want.graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))
    data[0].write_bytes(data[0].read_bytes()[:-1])
    with pytest.raises(PipecError, match=r"\.onnx\.data: changed"):
        load_plan(tmp_path / "outside")


def test_writing_keeps_every_dtype(tmp_path: Path) -> None:
    weights: dict[str, torch.Tensor | Array] = {
        "f": torch.randn(3, 2).t(),
        "b": torch.randn(2).bfloat16(),
        "flag": torch.tensor([True, False]),
        "n": np.arange(3),
        "e": torch.empty(0, 2),
        "s": torch.zeros(1, dtype=torch.int32).expand(0),
    }
    for limit in (0, 2**20):
        write_model(onnx.ModelProto(), weights, tmp_path / "m.onnx", limit)
        back = {t.name: t for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
        assert np.array_equal(numpy_helper.to_array(back["f"]), np.asarray(weights["f"]))
        assert back["b"].data_type == TensorProto.BFLOAT16
        assert np.array_equal(numpy_helper.to_array(back["flag"]), [True, False])
        assert np.array_equal(numpy_helper.to_array(back["n"]), [0, 1, 2])
        assert [list(back[n].dims) for n in "es"] == [[0, 2], [0]]


def test_equal_torch_stages_share_one_export(tmp_path: Path) -> None:
    plan = cut(chain(8), 4, 8, 12, target="onnx")
    assert plan.stages[1].key == plan.stages[2].key
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded(chain(8))).ok
    third = onnx.load(tmp_path / "out" / "stage2" / "stage2.onnx")
    onnx.checker.check_model(third, full_check=True)
    assert [i.name for i in third.graph.input] == ["tanh3"]
    assert [o.name for o in third.graph.output] == ["tanh5"]
    assert [t.name for t in third.graph.initializer] == ["blocks.4.weight", "blocks.5.weight"]
    for name, content in files(tmp_path / "out").items():
        assert str(Path.cwd()).encode() not in content, name


def test_translations_are_read_once_and_anew_where_a_library_has_defined_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_private._translations.cache_clear()
    read = Mock(side_effect=ONNXRegistry.from_torchlib)
    monkeypatch.setattr(ONNXRegistry, "from_torchlib", read)
    emit(cut(mlp(2), 2, target="onnx"), tmp_path / "two stages")
    assert read.call_count == 1
    with torch.library._scoped_library("pipec_late", "DEF") as late:
        late.define("op(Tensor x) -> Tensor")
        emit(cut(mlp(2), target="onnx"), tmp_path / "one stage")
    assert read.call_count == 2


def test_two_compilations_write_the_same_bytes(tmp_path: Path) -> None:
    for k in range(2):
        emit(cut(chain(1), target="onnx"), tmp_path / f"out{k}")
    assert files(tmp_path / "out0") == files(tmp_path / "out1")


@pytest.mark.parametrize("name", ['"', "a\\", "a\nb", 'x")\nopen("owned", "w")\nprint("'])
def test_names_of_modules_are_no_code(name: str, tmp_path: Path) -> None:
    net = torch.nn.Sequential()
    net.add_module(name, torch.nn.Linear(4, 4))
    net.add_module("last", torch.nn.Tanh())
    read = from_module(net, (torch.randn(2, 4),))
    plan = cut(read.graph, 1, target="onnx")
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", read).ok
    held = [i.name for f in tmp_path.rglob("*.onnx") for i in onnx.load(f).graph.initializer]
    assert sorted(held) == sorted(read.graph.weights)
    with pytest.raises(BackendError, match="cannot be written"):
        export_stage(OpenStage(plan.stages[0].graph))


def test_one_value_is_an_output_and_crosses_a_cut(tmp_path: Path) -> None:
    b = Builder()
    h = b.call(aten.tanh.default, b.input("x", 2, 8), name="h")
    both = b.graph(h, b.call(aten.relu.default, h, name="r"))
    emit(cut(both, 1, target="onnx"), tmp_path / "out")
    report = verify_artifacts(tmp_path / "out", loaded(both))
    assert report.ok
    assert [c.name for c in report.boundaries] == ["y0", "h", "y1"]


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.complex64)


class Batch(torch.nn.Module):
    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, self.mean, self.var, training=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Batch(), "in training mode; call model.eval"),
        (Spectrum(), "another type than the plan says"),
    ],
)
def test_what_the_exporter_writes_otherwise_is_refused(
    model: torch.nn.Module, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(model, Spectrum):  # the check before tells it already
        monkeypatch.setattr(OnnxBackend, "check", lambda *_: None)
    graph = from_module(model, (torch.randn(4, 8),)).graph
    with pytest.raises(BackendError, match=words):
        emit(cut(graph, target="onnx"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_onnx_is_told_before_anything_is_written(tmp_path: Path) -> None:
    graph = mlp()
    loss = graph.replace(outputs=(GraphOutput("skip", OutputKind.LOSS, "loss"),))
    with pytest.raises(BackendError, match="inference"):
        OnnxBackend().check(cut(loss, 4, target="onnx"))
    bare = graph.replace(weights={n: w.to("meta") for n, w in graph.weights.items()})
    with pytest.raises(BackendError, match="without"):
        emit(cut(bare, 4, target="onnx"), tmp_path / "out")
    library = torch.library.Library("pipec_onnx_ns", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    b = Builder()
    y = b.call(torch.ops.pipec_onnx_ns.twice.default, b.input("x", 2))
    foreign = b.graph(y).replace(namespaces=frozenset({"pipec_onnx_ns"}))
    with pytest.raises(BackendError, match=r"pipec_onnx_ns\.twice"):
        emit(cut(foreign, target="onnx"), tmp_path / "out")
    b = Builder()
    unknown = b.graph(b.call(aten.special_i1e.default, b.input("x", 2), name="bessel"))
    with pytest.raises(BackendError, match="i1e"):
        emit(cut(unknown, target="onnx"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_damaged_names_and_models(tmp_path: Path, traps_model: Loaded) -> None:
    out = tmp_path / "out"
    emit(cut(traps_model.graph, target="onnx"), out)
    plan = load_plan(out)
    names = out / "stage0" / "names.json"
    good = names.read_text()
    names.write_text("[]")
    with pytest.raises(BackendError, match=r"names\.json"):
        OnnxBackend().load(plan, out)
    names.write_text(good)
    (out / "stage0" / "stage0.onnx").write_bytes(b"no model")
    with pytest.raises(BackendError, match="refuses"):
        OnnxBackend().load(plan, out)


class Biased(torch.nn.Module):
    """Attention with learnt scores, whose heads a reshape joins without a copy before it."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(1, 2, 3, 3))
        self.out = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.view(2, 3, 2, 4).transpose(1, 2)
        h = torch.nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=self.bias)
        y: torch.Tensor = self.out(h.transpose(1, 2).reshape(2, 3, 8))
        return y


def test_attention_with_learnt_scores_is_exported(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8)
    model = from_module(Biased(), x)
    emit(cut(model.graph, 4, target="onnx"), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", model).ok


def test_a_type_that_onnxruntime_has_no_kernel_for_is_told(tmp_path: Path) -> None:
    info, bfloat16 = helper.make_tensor_value_info, TensorProto.BFLOAT16
    w = helper.make_tensor("w", bfloat16, [4, 4], np.arange(16.0))
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], "first"),
        helper.make_node("Gemm", ["h", "w"], ["y"], "second"),
    ]
    ends = ([info("x", bfloat16, [2, 4])], [info("y", bfloat16, [2, 4])])
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, [w]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    read = load(str(tmp_path / "m.onnx"))
    with pytest.raises(BackendError, match="bfloat16: --target torch") as caught:
        emit(cut(read.graph, 1, target="onnx"), tmp_path / "onnx")
    assert caught.value.where == "stage0/stage0.onnx"
    emit(cut(read.graph, 1), tmp_path / "torch")
    with pytest.raises(FrontendError, match="save the model in float32"):
        verify_artifacts(tmp_path / "torch", read)


def test_nodes_of_a_quantised_file_are_timed_by_the_engine_that_runs_them(tmp_path: Path) -> None:
    node, info = helper.make_node, helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    held = {
        "s": np.float32(0.1), "z": np.uint8(9),
        "w": rng.integers(0, 99, (512, 1024)).astype(np.uint8),
        "v": rng.integers(0, 99, (1024, 8)).astype(np.uint8),
    }  # fmt: skip
    scales = ["s", "z"]
    nodes = [
        node("QuantizeLinear", ["x", *scales], ["a"]),
        node("QLinearMatMul", ["a", *scales, "w", *scales, *scales], ["b"]),
        node("QLinearMatMul", ["b", *scales, "v", *scales, *scales], ["c"]),
        node("DequantizeLinear", ["c", *scales], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [512, 512])], [info("y", 1, [512, 8])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )  # fmt: skip
    path = tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    read = load(str(path))
    found = OnnxBackend().node_seconds(read.graph, read.example_inputs, 3)
    assert found.keys() == {n.name for n in read.graph.calls}
    assert all(found.values())
    slowest = max(found, key=lambda n: found[n])
    assert origin(read.graph.node(slowest)).index == 1
    plain = load(str(traps(tmp_path / "plain.onnx")))
    assert not OnnxBackend().node_seconds(plain.graph, plain.example_inputs, 3)


class Spectral(nn.Module):
    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.first, self.second, self.inside = nn.Linear(8, 8), nn.Linear(8, 8), inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft(self.first(x.real))
        result: torch.Tensor = self.second(torch.fft.irfft(found, n=8)) if self.inside else found
        return result


@pytest.mark.parametrize("taken", [torch.float32, torch.complex64])
@pytest.mark.parametrize("inside", [True, False])
def test_complex_values_stay_inside_a_stage(taken: torch.dtype, *, inside: bool) -> None:
    model, x = Spectral(inside=inside), torch.randn(4, 8, dtype=taken)
    compiled = partial(pipec.compile, model, x, "2xcpu", target="onnx")
    if inside and not taken.is_complex:
        assert pipec.verify(compiled(), model, x).ok
        return
    names = [n for n, wrong in (("x", taken.is_complex), ("output", not inside)) if wrong]
    told = "(.|\n)*".join(f"{n}: complex64, which onnxruntime does not take" for n in names)
    with pytest.raises(BackendError, match=told):
        compiled()


def test_bodies_of_scans_may_share_their_names(tmp_path: Path) -> None:
    info, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["t"]), node("Tanh", ["t"], ["u"])], "body",
        [info("s", 1, [3]), info("e", 1, [3])], [info("t", 1, [3]), info("u", 1, [3])],
    )  # fmt: skip
    nodes = [
        node("Scan", ["zero", a], [f"{b}/last", b], body=body, num_scan_inputs=1)
        for a, b in ("xh", "hy")
    ]
    zero = {"zero": np.zeros(3, np.float32)}
    proto = models.model(nodes, {"x": (TensorProto.FLOAT, [2, 3])}, ["y"], zero)
    read = models.load(proto, tmp_path)
    emit(cut(read.graph, target="onnx"), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", read).ok


@pytest.mark.parametrize("of", ["x", "t", "w"])
@pytest.mark.parametrize("reader", ["Exp", "Identity"])
def test_copies_that_a_node_of_another_stage_yields(of: str, reader: str, tmp_path: Path) -> None:
    """A dropout's node stands where its mask is made; what it passes on is read elsewhere."""
    node = helper.make_node
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Dropout", [of], ["kept", "mask"]),
        node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        node(reader, ["kept"], ["e"]),
        node("MatMul", ["e", "w"], ["y"]),
        node("Sin", ["t"], ["z"]),
    ]
    w = {"w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}
    proto = models.model(nodes, {"x": (1, [4, 4])}, ["kept", "m", "e", "y", "z"], w)
    read = models.load(proto, tmp_path)
    for at in _whole_nodes(read.graph)[:-1]:
        emit(cut(read.graph, at, target="onnx"), tmp_path / f"out{at}")
        report = verify_artifacts(tmp_path / f"out{at}", read)
        assert report.ok, report
