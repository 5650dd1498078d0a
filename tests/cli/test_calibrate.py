"""``pipec compile --precision int8 --calibrate``: what it loses is measured, told, and bounded."""

import json
import re
from pathlib import Path

import numpy as np

from tests.cli.running import Pipec

NET = """
from tests.fpga.design.models import made
def net():
    model, x = made("mobile")
    return model, (x,)
"""


def test_compiled_in_int8_and_verified(pipec: Pipec, tmp_path: Path) -> None:
    """Calibrated on a file; the loss is printed, kept in stage.json, and within the bound."""
    (tmp_path / "net.py").write_text(NET)
    frames = np.random.default_rng(0).normal(scale=0.2, size=(6, 1, 4, 5, 6))
    np.savez(tmp_path / "data.npz", x=frames)
    np.savez(tmp_path / "wrong.npz", x=frames[..., :4])
    out = tmp_path / "out"
    command = (
        "compile", f"{tmp_path / 'net.py'}:net", "--target", "fpga", "--devices", "1xvcu118",
        "--precision", "int8", "-o", out, "--calibrate",
    )  # fmt: skip
    for name, why in (("none.npz", "cannot be read"), ("wrong.npz", "another shape")):
        ended = pipec(*command, tmp_path / name)
        assert ended.code == 1
        assert f"calibration data {why}" in ended.err or why in ended.err
        assert not out.exists()
    ended = pipec(*command, tmp_path / "data.npz")
    assert ended.code == 0
    assert re.search(r"ranges from inputs of .*data.npz; 4 frames in C simulation", ended.err)
    (record,) = (json.loads(p.read_text()) for p in out.glob("stage*/stage.json"))
    (accuracy,) = record["accuracy"]
    assert f"max error {100 * accuracy['max_relative_error']:.3g} %" in ended.err
    assert 0 < accuracy["mean_relative_error"] < 2 * accuracy["max_relative_error"]
    assert accuracy["max_relative_error"] <= record["tolerance"] < 0.5
    (tmp_path / "data.npz").unlink()
    # frames that were held out are verified with: random inputs would leave the calibrated ranges
    for options in (("--seed", 3), ("--seed", 8), ("--chain", 3)):
        ended = pipec("verify", out, *options)
        assert ended.code == 0, ended.out
        assert "verified" in ended.out
