"""Names that others chose, on the screen."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pipec.escape import sanitize
from tests.cli.running import Pipec
from tests.frontends.onnx.models import model as model_of


@pytest.mark.parametrize("name", ["[/]", "[bold]", ":heart:", "\x80", "\u202e"])
def test_names_of_open_dimensions_are_printed_as_texts(
    name: str, tmp_path: Path, pipec: Pipec
) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    held = model_of(nodes, {"x": (TensorProto.FLOAT, [name, 4])}, ["y"], {})
    onnx.save(held, tmp_path / "m.onnx")
    out = tmp_path / "out[red]"
    words = ("--target", "onnx", "--devices", "2xcpu", "--shape", "x=2,4")
    ended = pipec("compile", tmp_path / "m.onnx", *words, "-o", out)
    assert ended.code == 0
    assert f"checked against the model at {sanitize(name)}=3" in ended.err
    assert f"wrote {out}" in ended.err.replace("\n", "")
    ended = pipec("verify", out, "-v")
    assert ended.code == 0
    assert f"running the original model at {sanitize(name)}=3" in ended.err
