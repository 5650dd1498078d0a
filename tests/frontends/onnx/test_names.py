"""Hostile names in a file: it compiles under them, and nothing of them reaches the terminal."""

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from rich.text import Text

from pipec.cli.console import output
from pipec.errors import FrontendError
from pipec.escape import sanitize
from pipec.frontends.onnx.reader import read
from pipec.graph.serialize import graph_from_json, graph_to_json
from tests.frontends.onnx.models import load, model, run, worst
from tests.plans import cut

NAMES = (
    "self", "forward", "class", "torch", "None", "__import__", "args", "fx", "device", "1", "nan",
    "\u202eabc\u202c", "变量" * 200, "x" * 300, "a\0b", "a\nb", "a\x1b[31mred", "input\u2028",
    "𝒳", "ﬁ", "${HOME}", "`id`", "../x", "a b", "x/y:0", "??/", "\\", '"', "'", "{x}", "%s", "*",
    "é", "____a____",
)  # fmt: skip


def named(name: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", [name, f"{name}w"], [f"{name}h"], name=name),
        helper.make_node("Tanh", [f"{name}h"], [f"{name}o"], name=f"{name}2"),
    ]
    held = {f"{name}w": np.ones((4, 3), np.float32)}
    return model(nodes, {name: (TensorProto.FLOAT, [2, 4])}, [f"{name}o"], held)


def test_every_name_is_kept_in_the_data_and_in_a_saved_graph(tmp_path: Path) -> None:
    for name in NAMES:
        loaded = load(named(name), tmp_path)
        assert [o.name for o in loaded.graph.outputs] == [f"{name}o"]
        again = graph_from_json(graph_to_json(loaded.graph)).replace(weights=loaded.graph.weights)
        assert len(cut(loaded.graph, 1).stages) == 2
        assert [i.name for i in again.inputs] == [i.name for i in loaded.graph.inputs]
        want = loaded.original(loaded.example_inputs)
        assert worst(run(again, loaded.example_inputs), want) < 1e-6


def test_no_name_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = output()
    console.file = io.StringIO()
    console.print(Text("a\x1b[31mb\x07c\u202ed"), "plain")
    shown = console.file.getvalue()
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "plain" in shown
    assert sanitize("a\tb\nc") == "a\tb\nc"


def external(folder: Path, location: str) -> Path:
    weight = TensorProto(name="w", data_type=1, dims=[4, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (TensorProto.FLOAT, [2, 4])}, ["y"]
    )
    proto.graph.initializer.append(weight)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def test_a_hard_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    np.ones(12, np.float32).tofile(tmp_path / "secret.bin")
    (folder / "data.bin").hardlink_to(tmp_path / "secret.bin")
    path = external(folder, "data.bin")
    with pytest.raises(FrontendError, match="hard link"):
        read(path).tensor("w")
    (tmp_path / "secret.bin").unlink()
    assert torch.equal(read(path).tensor("w"), torch.ones(4, 3))


@pytest.mark.parametrize("location", ["a\0b", "a\nb", ""])
def test_a_location_that_is_no_file_name(location: str, tmp_path: Path) -> None:
    with pytest.raises(FrontendError):
        read(external(tmp_path, location)).tensor("w")
