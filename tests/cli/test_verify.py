"""``pipec verify`` and ``pipec inspect`` as a user types them."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.cli.running import Pipec

FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)])
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, scale):
        return {"logits": self.head(self.body(self.embed(ids)) * scale)}

def net():
    print("made by a talkative factory")
    return Net().eval(), (torch.randint(20, (2, 5)), torch.rand(2, 5, 8))
"""


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FACTORY)
    return path


def compiled(pipec: Pipec, spec: object, out: Path, *more: object) -> Path:
    outcome = pipec("compile", spec, "--devices", "3xh100", "-o", out, *more)
    assert outcome.code == 0, outcome.err
    return out


def test_a_torch_model_is_verified(pipec: Pipec, factory: Path, tmp_path: Path) -> None:
    out = compiled(pipec, f"{factory}:net", tmp_path / "out", "--pt2", "--seed", 5)
    data = json.loads(pipec("verify", out, "--json").out)
    assert data["ok"] is True
    assert data["max_abs_error"] == 0
    assert data["boundaries"][-1]["name"] == "logits"
    assert {b["kind"] for b in data["boundaries"]} == {"value", "output"}
    text = pipec("verify", out, "--seed", 1)
    assert text.code == 0
    assert "verified" in text.out
    assert "logits" in text.out


def test_an_onnx_model_is_verified_on_both_targets(
    pipec: Pipec, model: Path, tmp_path: Path
) -> None:
    for target in ("torch", "onnx"):
        batch = ("--shape", "x=2,8")
        out = compiled(pipec, model, tmp_path / target, "--target", target, *batch)
        outcome = pipec("verify", out, "--json")
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["ok"] is True
    outcome = pipec("verify", tmp_path / "onnx", "--tolerance", "-1")
    assert outcome.code == 2
    assert "x>=0" in outcome.err


def test_a_model_that_moved_or_changed(pipec: Pipec, factory: Path, tmp_path: Path) -> None:
    out = compiled(pipec, f"{factory}:net", tmp_path / "out")
    moved = factory.rename(tmp_path / "moved.py")
    outcome = pipec("verify", out)
    assert outcome.code == 1
    assert "net.py" in outcome.err
    assert "--model says where the model is now" in outcome.err
    assert pipec("verify", out, "--model", f"{moved}:net").code == 0
    moved.write_text(
        FACTORY.replace("self.head.weight = ", "self.tied = ").replace("(20, 8)", "(20, 8, 0)")
    )
    outcome = pipec("verify", out, "--model", f"{moved}:net")
    assert outcome.code == 1
    assert "not the one that was compiled" in outcome.err


def test_damage_and_wrong_arguments(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = compiled(pipec, model, tmp_path / "out")
    outcome = pipec("inspect", out, "--stage", 3)
    assert outcome.code == 1
    assert "0 to 2" in outcome.err
    shutil.copy(out / "stage0" / "weights.safetensors", out / "stage1" / "weights.safetensors")
    outcome = pipec("verify", out)
    assert outcome.code == 1
    assert "stage1/weights.safetensors: changed" in outcome.err
    for command in ("verify", "inspect"):
        outcome = pipec(command, tmp_path)
        assert outcome.code == 1
        assert "no plan here" in outcome.err
        assert not outcome.out


def test_inspect_shows_what_people_ask(pipec: Pipec, factory: Path, tmp_path: Path) -> None:
    out = compiled(pipec, f"{factory}:net", tmp_path / "out")
    text = pipec("inspect", out).out
    for heading in ("stages", "values that cross each cut", "heaviest nodes", "memory per device"):
        assert heading in text
    assert "proven optimal" in " ".join(text.split())
    assert "tied weight" in text
    data = json.loads(pipec("inspect", out, "--json").out)
    assert [s["stage"] for s in data["stages"]] == [0, 1, 2]
    assert data["cuts"][0]["nbytes"] == sum(v["nbytes"] for v in data["cuts"][0]["values"]) > 0
    assert len(data["heaviest"]) == 10
    assert "net.py" in data["heaviest"][0]["origin"]
    assert set(next(iter(data["tied"].values()))["stages"]) == {0, 2}
    assert [m["device"] for m in data["memory"]] == [0, 1, 2]
    stage = json.loads(pipec("inspect", out, "--json", "--stage", 1, "--graph").out)
    assert stage["stage"] == 1
    assert "pipec_ops.recv" in stage["graphs"]["1"]
    shown = pipec("inspect", out, "--stage", 1).out
    assert shown.count("def forward(") == 1
    assert "pipec_ops.send" in shown
    assert pipec("inspect", out, "--graph").out.count("def forward(") == 3


MIXTURE = """
import torch
from transformers import MixtralConfig, MixtralForCausalLM

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, vocab_size=32,
                     num_attention_heads=2, num_key_value_heads=1, num_local_experts=4)
        self.model = MixtralForCausalLM(MixtralConfig(**sizes))

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits

def net():
    return Net().eval(), (torch.randint(32, (1, 4)),)
"""


def test_ops_of_other_packages_need_the_users_word(pipec: Pipec, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "moe.py"
    path.write_text(MIXTURE)
    out = compiled(pipec, f"{path}:net", tmp_path / "out")
    for command in ("inspect", "verify"):
        outcome = pipec(command, out)
        assert outcome.code == 1
        assert "--allow-namespace transformers" in outcome.err
    allowed = ("--allow-namespace", "transformers=transformers.integrations.moe")
    assert pipec("inspect", out, *allowed).code == 0
    outcome = pipec("verify", out, *allowed)
    assert outcome.code == 0, outcome.err
    outcome = pipec("inspect", out, "--allow-namespace", "transformers=no.such.module")
    assert outcome.code == 1
    assert "cannot be imported" in outcome.err


def test_sums_that_onnxruntime_saturates_are_said_to_be_no_fault_of_the_stages(
    pipec: Pipec, tmp_path: Path
) -> None:
    """A processor without VNNI adds products of 8 bits in 16; one with it adds exactly."""
    weight = np.full((64, 32), 127, np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    first, last = (helper.make_tensor_value_info(n, 1, [8, c]) for n, c in (("x", 64), ("y", 32)))
    opsets = [helper.make_opsetid("", 17)]
    held = [onnx.numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "sums", [first], [last], held)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(proto, tmp_path / "sums.onnx")
    out = compiled(pipec, tmp_path / "sums.onnx", tmp_path / "out", "--stages", 1)
    session = onnxruntime.InferenceSession(tmp_path / "sums.onnx")
    x = np.linspace(-1, 1, 8 * 64, dtype=np.float32).reshape(8, 64)
    exact = bool(
        np.allclose(session.run(None, {"x": x})[0], x.sum(1, keepdims=True) * 127, rtol=0.1)
    )
    outcome = pipec("verify", out)
    assert (outcome.code == 0, "no VNNI" in outcome.err) == (exact, not exact)
