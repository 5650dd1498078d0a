"""What ``pipec inspect`` says of saved values: kept, in host memory, computed again; and where."""

import json
from pathlib import Path

from tests.cli.running import Pipec

MODEL = """
import torch
from torch import nn
from pipec.frontends.trace import Loss

def net():
    blocks = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))]
    model = nn.Sequential(*blocks, *(nn.Sequential(nn.Linear(32, 64), nn.GELU(),
                          nn.LayerNorm(64), nn.Linear(64, 32)) for _ in range(3)))
    loss = Loss(nn.functional.mse_loss, torch.zeros(64, 32))
    return model, (torch.randn(64, 32),), loss
"""
CUT = "simplify,annotate-cost,partition,insert-comm,differentiate,time-stages"
RUN = "schedule{generator=1f1b microbatches=8},simulate"


def test_inspect_shows_what_leaves_and_what_is_computed_again(pipec: Pipec, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    common = f"{tmp_path / 'net.py'}:net", "--training", "--devices", "2xv100"

    def compiled(name: str, passes: str) -> Path:
        outcome = pipec("compile", *common, "--passes", passes, "-o", tmp_path / name)
        assert outcome.code == 0, outcome.err
        return tmp_path / name

    plain = compiled("plain", f"{CUT},{RUN}")
    before = json.loads(pipec("inspect", plain, "--json").out)
    assert all(not s["saved"]["slots"] for s in before["stages"])
    peak = max(m["needed_bytes"] for m in before["memory"])
    first, then = f"memory-limit={0.85 * peak}", f"memory-limit={0.7 * peak}"
    memory = f"insert-recompute{{{first}}},insert-offload{{{then}}}"
    tight = compiled("tight", f"{CUT},{memory},{RUN}")
    after = json.loads(pipec("inspect", tight, "--json").out)
    assert max(m["needed_bytes"] for m in after["memory"]) <= 0.7 * peak
    saved, old = ([s["saved"] for s in d["stages"]] for d in (after, before))
    assert any(s["slots"] for s in saved)
    assert any(set(s["recomputed"]) - set(o["recomputed"]) for s, o in zip(saved, old, strict=True))
    text = pipec("inspect", tight).out
    assert "saved for the backward" in text
    assert "in host memory" in text
    stage = next(k for k, s in enumerate(saved) if s["slots"])
    for phase, node in (("F", "pipec_ops.offload"), ("B", "pipec_ops.fetch")):
        shown = pipec("inspect", tight, "--stage", stage, "--phase", phase).out
        assert shown.count(f"{node}.default(") == sum(
            len(s["values"]) for s in saved[stage]["slots"]
        )
        assert node not in pipec("inspect", plain, "--stage", stage, "--phase", phase).out


def test_a_plan_without_training_has_no_phases(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pipec("compile", model, "--devices", "2xv100", "-o", out).code == 0
    outcome = pipec("inspect", out, "--stage", 0, "--phase", "B")
    assert outcome.code == 1
    assert "no training graphs" in outcome.err


INFERENCE = """
import torch
from torch import nn

def net():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), (torch.randn(16, 64),)
"""


CLUSTER = """
[[device]]
kind = "v100"
count = 3

[[level]]
size = 3
bandwidth = "1000 TB/s"
latency = "1 ns"
"""


def test_inspect_shows_what_inference_holds(pipec: Pipec, tmp_path: Path) -> None:
    """Three equal layers, five microbatches of 16 x 64, quick links: all compute at a time.

    A forward's result and its input are there (the model's, or received: two receives are posted
    ahead), and values that were sent stay until the round ends, as the last device's outputs do.
    """
    (tmp_path / "net.py").write_text(INFERENCE)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    out, model = tmp_path / "out", f"{tmp_path / 'net.py'}:net"
    common = "--cluster", tmp_path / "cluster.toml", "--microbatches", 5, "-o", out
    assert pipec("compile", model, *common).code == 0
    weights, value = 4 * (64 * 64 + 64), 4 * 16 * 64
    want = [weights + 6 * value] * 3
    played = json.loads((out / "plan.json").read_text())["timeline"]
    assert played["peak_bytes"] == want
    shown = json.loads(pipec("inspect", out, "--json").out)
    assert [m["needed_bytes"] for m in shown["memory"]] == want
    assert f"{want[2] / 1e3:.1f} kB" in pipec("inspect", out).out
