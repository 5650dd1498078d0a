"""Every declared output leaves exactly one emitted stage, whatever it is an output of."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import BackendError, GraphError, PlanError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import OutputKind
from pipec.graph.written import with_outputs
from pipec.plan.rules.verify import verify as verify_plan
from tests.plans import cut

INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


class Odd(nn.Module):
    """Returns an input, a buffer, a parameter, constants, and one value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("table", torch.arange(6.0))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, object]:
        """Outputs by name; one is called as the input that it is."""
        h = torch.relu(self.a(x))
        y = self.b(h)
        return {
            "mask": mask,
            "y": y,
            "again": y,
            "kept": h,
            "none": y[:, :0],
            "x": x,
            "flat": x.view(12),
            "table": self.table,
            "scale": self.scale,
            "ones": torch.ones(2, 6, dtype=torch.bool),
            "nothing": torch.zeros(0, 3),
            "absent": None,
        }


OUTPUTS = ["mask", "y", "again", "kept", "none", "x", "flat", "table", "scale", "ones", "nothing"]


def odd_module() -> Loaded:
    torch.manual_seed(0)
    mask = torch.tensor([[True, False] * 3] * 2)
    return from_module(Odd(), (torch.randn(2, 6), mask))


def odd_program(folder: Path) -> Loaded:
    torch.manual_seed(0)
    mask = torch.tensor([[True, False] * 3] * 2)
    program = torch.export.export(Odd(), (torch.randn(2, 6), mask))
    torch.export.save(program, folder / "odd.pt2")
    return load(str(folder / "odd.pt2"), LoadOptions(trust=True))


def odd_file(folder: Path) -> Loaded:
    """The same in a file: a Shape, a Constant, a weight, an input under its own name."""
    rng, node = np.random.default_rng(0), helper.make_node
    w, v = (
        numpy_helper.from_array(rng.normal(size=(6, 6)).astype(np.float32), name) for name in "wv"
    )
    zero = numpy_helper.from_array(np.array([0]), "zero")
    half = numpy_helper.from_array(np.array(0.5, np.float32))
    nodes: list[NodeProto] = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["kept"]),
        node("MatMul", ["kept", "v"], ["y"]),
        node("Identity", ["y"], ["again"]),
        node("Identity", ["x"], ["same"]),
        node("Shape", ["x"], ["shape"]),
        node("Constant", [], ["half"], value=half),
        node("Slice", ["y", "zero", "zero"], ["none"]),
        node("Dropout", ["y"], ["dropped", "ones"]),
    ]
    infos = [
        ("x", FLOAT, [2, 6]), ("y", FLOAT, [2, 6]), ("again", FLOAT, [2, 6]),
        ("same", FLOAT, [2, 6]), ("shape", INT64, [2]), ("half", FLOAT, []), ("w", FLOAT, [6, 6]),
        ("none", FLOAT, [0, 6]), ("kept", FLOAT, [2, 6]), ("ones", BOOL, [2, 6]),
    ]  # fmt: skip
    outputs: list[ValueInfoProto] = [helper.make_tensor_value_info(*info) for info in infos]
    graph = helper.make_graph(nodes, "odd", [outputs[0]], outputs, [w, v, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "odd.onnx")
    return load(str(folder / "odd.onnx"))


def _models(folder: Path) -> Iterator[tuple[Loaded, list[str]]]:
    yield odd_module(), OUTPUTS
    yield odd_program(folder), OUTPUTS
    yield (
        odd_file(folder),
        ["x", "y", "again", "same", "shape", "half", "w", "none", "kept", "ones"],
    )


def test_every_declared_output_leaves_one_stage(tmp_path: Path) -> None:
    for k, (loaded, declared) in enumerate(_models(tmp_path)):
        assert [o.name for o in loaded.graph.outputs] == declared
        for target in ("torch", "onnx"):
            out = tmp_path / f"{target}{k}"
            emit(cut(loaded.graph, 3, target=target), out)
            report = verify_artifacts(out, loaded)
            assert report.ok, report
            found = [b.name for b in report.boundaries if b.kind == OutputKind.OUTPUT]
            assert sorted(found) == sorted(declared)


def test_they_leave_boards_too(tmp_path: Path) -> None:
    class Few(nn.Module):
        """An input, a constant and a value."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            """What a board yields beside what it computes."""
            return x, self.b(torch.relu(self.a(x))), torch.arange(3.0)

    loaded = from_module(Few(), (torch.randn(2, 6),))
    emit(make_plan(loaded.graph, parse_cluster("2xvcu118"), "fpga"), tmp_path / "out")
    report = verify_artifacts(tmp_path / "out", loaded)
    assert report.ok, report
    found = {b.name for b in report.boundaries if b.kind == OutputKind.OUTPUT}
    assert found == {"output0", "output1", "output2"}


def test_a_lost_output_is_told(tmp_path: Path) -> None:
    """The original has an output that neither the plan nor its stages know of."""
    loaded = odd_module()
    emit(make_plan(loaded.graph, parse_cluster("2xcpu")), tmp_path / "out")

    def more(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**loaded.original(inputs), "more": torch.ones(1)}

    def turned(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(reversed(loaded.original(inputs).items()))

    for other in (more, turned):
        with pytest.raises(PlanError, match="outputs of the model as written"):
            verify_artifacts(tmp_path / "out", replace(loaded, original=other))


def test_the_rule_of_plans() -> None:
    plan = cut(odd_module().graph, 3)
    verify_plan(plan)
    last = plan.stages[-1]
    outputs = last.graph.outputs
    swapped = (outputs[1], outputs[0], *outputs[2:])
    renamed = (replace(outputs[0], name="other"), *outputs[1:])
    for wrong in (outputs[1:], (*outputs, outputs[0]), swapped, renamed):
        graph = with_outputs(last.graph, wrong)
        with pytest.raises((PlanError, GraphError), match=r"stages-follow-model|listed 2 times"):
            verify_plan(plan.replace(stages=(*plan.stages[:-1], replace(last, graph=graph))))


def _gather(folder: Path) -> Path:
    """Scalars as Constant and as initialiser; Gather by one, and a softmax over what is left."""
    rng, node = np.random.default_rng(0), helper.make_node
    w = numpy_helper.from_array(rng.normal(size=(6, 6)).astype(np.float32), "w")
    one, two = (numpy_helper.from_array(np.array(k), n) for k, n in ((1, ""), (2, "two")))
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Constant", [], ["one"], value=one),
        node("Gather", ["r", "one"], ["row"], axis=0),
        node("Softmax", ["row"], ["y"], axis=0),
        node("Gather", ["r", "two"], ["z"], axis=1),
    ]
    info = helper.make_tensor_value_info
    outputs = [info("y", FLOAT, [6]), info("z", FLOAT, [2])]
    graph = helper.make_graph(nodes, "gather", [info("x", FLOAT, [2, 6])], outputs, [w, two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "gather.onnx")
    return folder / "gather.onnx"


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    loaded = load(str(_gather(tmp_path)))
    emit(cut(loaded.graph, 2, target="onnx"), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok
    stage = onnx.load(tmp_path / "out" / "stage1" / "stage1.onnx")
    held = {t.name: list(t.dims) for t in stage.graph.initializer}
    held |= {n.output[0]: list(n.attribute[0].t.dims) for n in stage.graph.node if not n.input}
    assert held["one"] == held["two"] == []


def test_an_invalid_stage_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose outputs are not what it says, and one that onnxruntime refuses."""
    loaded = load(str(_gather(tmp_path)))

    def wrong(name: str, dtype: int, shape: tuple[int, ...]) -> ValueInfoProto:
        return real(name, dtype, [*shape, 1])

    real = helper.make_tensor_value_info
    monkeypatch.setattr(helper, "make_tensor_value_info", wrong)
    with pytest.raises(BackendError, match="no valid ONNX model"):
        emit(cut(loaded.graph, 2, target="onnx"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
