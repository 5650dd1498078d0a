"""``pipec export`` of a plan's own cut: devices of the nodes of a file, and its stages in a row."""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from benchmarks._openvino import compile_model, find_openvino, place_model, two_devices
from pipec.graph.ir import origin
from pipec.plan.store import load_plan
from tests.cli.running import Pipec


@pytest.fixture
def out(pipec: Pipec, model: Path, tmp_path: Path) -> Path:
    made = pipec("compile", model, "--target", "onnx", "--devices", "3xcpu", "-o", tmp_path / "out")
    assert made.code == 0, made.err
    return tmp_path / "out"


def values(text: str) -> dict[str, Any]:
    """What the names of a module stand for."""
    return {
        line.targets[0].id: ast.literal_eval(line.value)
        for line in ast.parse(text).body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }


def test_openvino_is_told_a_device_for_every_value(pipec: Pipec, model: Path, out: Path) -> None:
    told = pipec("export", out, "--to", "openvino")
    assert told.code == 0, told.err
    stage, nodes = values(told.out)["STAGE"], onnx.load(model).graph.node
    assert set(stage) == {v for n in nodes for v in n.output}
    devices = values(told.out)["DEVICES"]
    assert sorted(set(stage.values())) == list(range(len(devices))) == [0, 1, 2]
    for n in nodes:
        assert all(stage[v] <= stage[n.output[0]] for v in n.input if v in stage)
    plan = load_plan(out)
    assert plan.partition is not None
    of = {nodes[k].output[0]: plan.partition.stage_of[n.name]
          for n in plan.graph.calls if (k := origin(n).index) is not None}  # fmt: skip
    assert of == stage


class Op:
    """As much of an OpenVINO operation as the text asks for."""

    def __init__(self, name: str, kind: str, reads: "list[Op]", names: set[str]) -> None:
        self.name, self.kind, self.reads, self.names = name, kind, reads, names
        self.info: dict[str, str] = {}
        self.readers: list[Op] = []
        for op in reads:
            op.readers.append(self)

    def get_name(self) -> str:
        return self.name

    def get_type_name(self) -> str:
        return self.kind

    def get_rt_info(self) -> dict[str, str]:
        return self.info

    def get_names(self) -> set[str]:
        return self.names

    def outputs(self) -> list[Any]:
        return [SimpleNamespace(get_names=self.get_names, get_target_inputs=self.ends)]

    def ends(self) -> list[Any]:
        def replaced(reader: Op) -> Callable[[Op], None]:
            return lambda op: reader.reads.__setitem__(reader.reads.index(self), op)

        return [
            SimpleNamespace(get_node=lambda r=r: r, replace_source_output=replaced(r))
            for r in self.readers
        ]

    def get_tensor_view(self) -> str:
        return self.name

    def output(self, _: int) -> "Op":
        return self


def convolutions() -> list[Op]:
    """Two convolutions with a bias, which OpenVINO reads as four operations each."""
    x, w, b = Op("x", "Parameter", [], {"x"}), *(Op(n, "Constant", [], {n}) for n in "wb")
    ops = [x, w, b]
    for k in range(2):
        product = Op(f"Conv_{k}", "Convolution", [x, w], set())
        bias = Op(f"Reshape_{k}", "Reshape", [b], set())
        x = Op(f"Add_{k}", "Add", [product, bias], {f"y{k}"})
        Op("left over", "Add", [x, w], set())  # of what OpenVINO has replaced: not of the model
        ops += [product, bias, x]
    return [*ops, Op("Result", "Result", [x], set())]


@pytest.mark.parametrize("devices", [["A", "B"], ["A", "B", "C"]])
def test_openvino_places_what_has_no_name(
    pipec: Pipec, out: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str]
) -> None:
    """Parts of an operation go where its result is made; each stage has the weights it reads."""
    ops = convolutions()
    core = SimpleNamespace(read_model=lambda _: SimpleNamespace(get_ordered_ops=lambda: ops))

    def constant(data: str, *, shared_memory: bool) -> Op:
        return Op(f"copy of {data}", "Constant", [], {str(shared_memory)})

    library = SimpleNamespace(Core=lambda: core, op=SimpleNamespace(Constant=constant))
    monkeypatch.setitem(sys.modules, "openvino", library)
    text: dict[str, Any] = {}
    exec(pipec("export", out, "--to", "openvino").out, text)
    text["DEVICES"][:], text["STAGE"] = devices, {"y0": 0, "y1": 1}
    if len(devices) == 3:
        with pytest.raises(ValueError, match="another number of stages"):
            text["placed"]("file")
        return
    text["placed"]("file")
    at = {op.name: op.info["affinity"] for op in ops}
    second = {"Conv_1", "Reshape_1", "Add_1", "Result"}
    assert at == {op.name: "B" if op.name in second else "A" for op in ops}
    read = {op.name: [r.name for r in op.reads] for op in ops}
    assert (read["Conv_0"], read["Reshape_0"]) == (["x", "w"], ["b"])
    assert (read["Conv_1"], read["Reshape_1"]) == (["Add_0", "copy of w"], ["copy of b"])
    assert {r.info["affinity"] for op in ops[-4:-1] for r in op.reads[-1:]} == {"B"}


@pytest.mark.skipif(not find_openvino(), reason="needs OpenVINO")
def test_openvino_computes_the_model_on_two_devices(pipec: Pipec, tmp_path: Path) -> None:
    """Shared weights, biases, and nodes without names, in the runtime itself."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in {"w": (8, 8, 3, 3), "b": (8,)}.items()
    ]
    nodes = []
    for k in range(4):
        nodes.append(helper.make_node("Conv", [f"r{k}", "w", "b"], [f"c{k}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k + 1}"]))
    ends = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 8, 8, 8]) for n in ("r0", "r4")
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    path = tmp_path / "convolutions.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert pipec("compile", path, "--devices", "2xcpu", "-o", tmp_path / "out").code == 0
    text = pipec("export", tmp_path / "out", "--to", "openvino").out
    model = compile_model(two_devices(), place_model(text, path))
    assert model.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    x = rng.normal(size=(1, 8, 8, 8)).astype(np.float32)
    (got,) = model([x]).values()
    np.testing.assert_allclose(
        got, ort.InferenceSession(path).run(None, {"r0": x})[0], rtol=1e-4, atol=1e-3
    )


def test_another_file_is_no_longer_the_one_that_was_cut(
    pipec: Pipec, model: Path, out: Path
) -> None:
    changed = onnx.load(model)
    changed.graph.node[0].name = "other"
    onnx.save(changed, model)
    told = pipec("export", out, "--to", "openvino")
    assert told.code == 1
    assert "not the one that was compiled" in told.err


def test_stages_for_genai_compute_the_model(pipec: Pipec, model: Path, out: Path) -> None:
    """Each stage takes what it names of all that is there so far."""
    told = pipec("export", out, "--to", "onnxruntime-genai", "--json")
    assert told.code == 0, told.err
    stages = json.loads(json.loads(told.out)["text"])["model"]["decoder"]["pipeline"]
    assert len(stages) == 3
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    values = {"x": x}
    for part in stages:
        (stage,) = part.values()
        session = ort.InferenceSession(out / stage["filename"])
        given = {name: values[name] for name in stage["inputs"]}
        values |= zip(stage["outputs"], session.run(stage["outputs"], given), strict=True)
    want = ort.InferenceSession(model)
    name = want.get_outputs()[0].name
    np.testing.assert_allclose(values[name], want.run(None, {"x": x})[0], rtol=1e-6)


def test_what_a_runtime_cannot_take_is_told(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    assert pipec("compile", model, "--devices", "2xcpu", "-o", tmp_path / "t").code == 0
    told = pipec("export", tmp_path / "t", "--to", "onnxruntime-genai")
    assert told.code == 1
    assert "--target onnx" in told.err
    told = pipec("export", tmp_path / "t", "--to", "openvino", "--stages", 2)
    assert told.code == 2
    assert "the plan's own cut" in told.err
