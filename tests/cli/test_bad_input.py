"""Bad input gets one clear error, exit code 1, and leaves no output directory."""

import errno
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from pipec.compiler import driver
from tests.cli.conftest import write_mlp
from tests.cli.running import Pipec

FACTORIES = """
import torch
from torch import nn

def fine():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.zeros(2, 8),)

def raises():
    raise RuntimeError("no weights today")

def nonsense():
    return 42
"""


def refused(pipec: Pipec, out: Path, *args: object, says: str) -> None:
    outcome = pipec("compile", *args, "-o", out)
    assert outcome.code == 1, outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("error: ") == 1
    assert "Traceback" not in outcome.err
    assert says in outcome.err
    assert not out.exists()
    assert not list(out.parent.glob(f".{out.name}*"))


def test_where_to_write_is_looked_at_before_the_model(pipec: Pipec, tmp_path: Path) -> None:
    out, model = tmp_path / "none" / "out", tmp_path / "noise.onnx"
    model.write_bytes(b"noise")
    refused(pipec, out, model, "--devices", "2xcpu", says="parent directory")


def test_truncated_and_random_files(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    for name, data in (("cut", whole[: len(whole) // 2]), ("noise", bytes(range(256)) * 9)):
        bad = tmp_path / f"{name}.onnx"
        bad.write_bytes(data)
        refused(pipec, tmp_path / "out", bad, "--devices", "2xcpu", says=bad.name)


def test_missing_files(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(pipec, out, tmp_path / "none.onnx", "--devices", "2xcpu", says="none.onnx")
    proto = onnx.load(model)
    convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    external = tmp_path / "external.onnx"
    onnx.save(proto, external)
    (tmp_path / "weights.bin").unlink()
    refused(pipec, out, external, "--devices", "2xcpu", says="weights.bin")


def test_unbound_dimension(pipec: Pipec, tmp_path: Path) -> None:
    open_batch = write_mlp(tmp_path / "open.onnx", batch="batch")
    refused(pipec, tmp_path / "out", open_batch, "--devices", "2xcpu", says="--shape x=")


def test_more_stages_than_nodes(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    refused(pipec, tmp_path / "out", model, "--devices", "99xcpu", says="more stages than")


def test_devices_and_clusters(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out, cluster = tmp_path / "out", tmp_path / "cluster.toml"
    refused(pipec, out, model, "--devices", "2xvcu119", says="did you mean 'vcu1")
    cluster.write_text('[[device]]\nkind = "cpu"\n[[link]]\nbetween = [0, 1]\nbandwidth = "1 GB"')
    refused(pipec, out, model, "--cluster", cluster, says="link")
    cluster.write_text('[[device]]\nkind = "cpu"\nmemory = "12 GBs"\n')
    refused(pipec, out, model, "--cluster", cluster, says="device[0].memory")


def test_factories(pipec: Pipec, tmp_path: Path) -> None:
    file, out = tmp_path / "models.py", tmp_path / "out"
    file.write_text(FACTORIES)
    refused(pipec, out, f"{file}:raises", "--devices", "cpu", says="no weights today")
    refused(pipec, out, f"{file}:nonsense", "--devices", "cpu", says="nonsense")
    refused(pipec, out, f"{file}:absent", "--devices", "cpu", says="absent")
    refused(pipec, out, "no/such.py:f", "--devices", "cpu", says="no/such.py")


def test_pt2_needs_trust(pipec: Pipec, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    file.write_bytes(b"PK")
    refused(pipec, tmp_path / "out", file, "--devices", "cpu", says="--trust")


def test_existing_directory_is_kept_unless_forced(
    pipec: Pipec, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    outcome = pipec("compile", model, "--devices", "2xcpu", "-o", out)
    assert outcome.code == 1
    assert "--force" in outcome.err
    assert (out / "mine.txt").read_text() == "keep"
    fresh = tmp_path / "fresh"
    assert pipec("compile", model, "--devices", "2xcpu", "-o", fresh).code == 0
    assert pipec("compile", model, "--devices", "2xcpu", "-o", fresh).code == 1
    assert pipec("compile", model, "--devices", "2xcpu", "-o", fresh, "--force").code == 0


def test_a_training_directory_with_its_script_is_replaced(pipec: Pipec, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\n"
        "def net():\n"
        "    return torch.nn.Linear(4, 2), (torch.ones(2, 4),), lambda y: y.square().mean()\n"
    )
    out, model = tmp_path / "out", f"{tmp_path}/net.py:net"
    assert pipec("compile", model, "--devices", "1xcpu", "-o", out).code == 0
    (out / "train.py").write_text("# edited")
    assert pipec("compile", model, "--devices", "1xcpu", "-o", out, "--force").code == 0
    assert "torchrun" in (out / "train.py").read_text()


def test_full_disk(
    pipec: Pipec, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(driver, "write_plan", full)
    refused(pipec, tmp_path / "out", model, "--devices", "2xcpu", says="No space left")


def test_unknown_names(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(pipec, out, model, "--devices", "2xcpu", "--target", "fgpa", says="did you mean 'fpga'")
    refused(pipec, out, model, "--devices", "2xcpu", "--passes", "simplfy", says="'simplify'")
    refused(pipec, out, model, "--devices", "2xcpu", "--schedule", "1f1c", says="1f1b")
    refused(pipec, out, model, "--devices", "2xcpu", "--shape", "x", says="--shape")
    for wrong in ("x=inf", "x=nan", "x=2.5", "x=-1"):
        refused(pipec, out, model, "--devices", "2xcpu", "--shape", wrong, says="whole numbers")
    both = ("--devices", "2xcpu", "--cluster", "c.toml")
    assert pipec("compile", model, *both).code == 2
    assert pipec("explore", model).code == 2
    assert pipec("nonsense").code == 2
