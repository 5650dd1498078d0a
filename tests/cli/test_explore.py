"""``pipec explore`` and ``compile --schedule auto`` are one road."""

import json
from pathlib import Path

import pytest
from torch.distributed.pipelining.schedules import _Action, _add_send_recv

from tests.cli.running import Pipec

FACTORY = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(2, 64), (nn.MSELoss(), torch.zeros(2, 64))
"""

CLUSTER = """
[[device]]
kind = "v100"
count = 2

[[device]]
kind = "h100"
count = 2

[[level]]
size = 2
bandwidth = "100 GB/s"

[[level]]
size = 2
bandwidth = "1 GB/s"
latency = "5 us"
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(FACTORY)
    return f"{tmp_path / 'net.py'}:net"


@pytest.mark.parametrize("cached", [True, False])
def test_auto_compiles_what_explore_chooses(
    pipec: Pipec, spec: str, tmp_path: Path, cached: bool
) -> None:
    asked = ("--devices", "2xv100", "--batch", 8, "--training")
    explored = pipec("explore", spec, *asked, "--json")
    assert explored.code == 0, explored.err
    table = json.loads(explored.out)
    again = () if cached else ("--no-cache",)
    out = tmp_path / "out"
    compiled = pipec("compile", spec, *asked, *again, "--schedule", "auto", "-o", out, "--json")
    assert compiled.code == 0, compiled.err
    told = json.loads(compiled.out)
    kept = told["explored"]
    assert [t["seconds"] for t in kept] == [t["seconds"] for t in table]
    assert [t["why"] for t in kept] == [t["why"] for t in table]
    best = table[0]
    assert best["why"] == "chosen"
    assert best["planned"]
    assert len(told["stages"]) == best["depth"]
    assert told["schedule"]["microbatches"] == best["microbatches"] * best["replicas"]
    shown = pipec("inspect", out)
    assert shown.code == 0
    assert "all are in plan.json" in shown.out
    assert pipec("verify", out).code == 0


def test_the_table_says_why_each_lost(pipec: Pipec, spec: str) -> None:
    shown = pipec("explore", spec, "--devices", "2xv100", "--batch", 8)
    assert "chosen" in shown.out
    assert "slower" in shown.out
    assert "speed-up over data parallel: " in shown.out


def test_options_of_a_schedule_stand_apart_by_commas_too(pipec: Pipec, spec: str) -> None:
    names = "interleaved{chunks=2,order=breadth}, gpipe"
    shown = pipec(
        "explore", spec, "--devices", "2xv100", "--batch", 8, "--schedules", names, "--json"
    )
    tried = {c["schedule"] for c in json.loads(shown.out)}
    assert {"interleaved{chunks=2 order=breadth}", "gpipe"} <= tried


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "0"), "0 is not in the range x>=1"),
        (("--stages", "9"), "no candidate is as asked for"),
        (("--schedules", "1g1b"), "no such schedule"),
        (("--target", "tpu"), "no such"),
    ],
)
def test_bad_input_is_one_clear_error(
    pipec: Pipec, spec: str, options: tuple[str, str], message: str
) -> None:
    ended = pipec("explore", spec, "--devices", "2xv100", *options)
    assert ended.code == (2 if options[0] == "--batch" else 1)
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_a_model_without_loss_is_explored_for_inference(pipec: Pipec, tmp_path: Path) -> None:
    """Also on devices and links that a file describes."""
    text = FACTORY.replace(", (nn.MSELoss(), torch.zeros(2, 64))", "")
    (tmp_path / "bare.py").write_text(text)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    asked = ("--cluster", tmp_path / "cluster.toml", "--no-cache", "--batch", 32)
    shown = pipec("explore", f"{tmp_path / 'bare.py'}:net", *asked)
    assert shown.code == 0, shown.err
    assert "forward pass is explored" in shown.err.replace("\n", "")
    assert "chosen" in shown.out
    assert "speed-up over gpipe" not in shown.out


def test_batch_without_auto_is_refused(pipec: Pipec, spec: str) -> None:
    ended = pipec("compile", spec, "--devices", "2xv100", "--batch", 8)
    assert ended.code == 1
    assert "--schedule auto" in ended.err


def test_a_layout_of_another_tool_is_judged(pipec: Pipec, spec: str, tmp_path: Path) -> None:
    """One layer against five on two devices: slower than the chosen plan; gpipe as a CSV too."""
    spread = ("--devices", "2xv100", "--batch", 8, "--training")
    asked = (*spread, "--stages", 2, "--schedules", "1f1b", "--microbatches", 4)
    judged = pipec("explore", spec, *asked, "--beside", "5,1", "--json")
    assert judged.code == 0, judged.err
    told = json.loads(judged.out)["beside"]
    assert told["deadlock"] is False
    assert told["chosen_is_faster"] > 1.0
    assert told["stage_seconds"][0] > told["stage_seconds"][1]
    order = tmp_path / "order.csv"
    made = pipec("schedule", "gpipe", "--stages", 2, "--microbatches", 4, "--csv", order)
    assert made.code == 0, made.err
    judged = pipec("explore", spec, *asked, "--beside", order)
    assert judged.code == 0, judged.err
    assert "free of deadlock with sends and receives of pipec, " in judged.out
    stuck = order.read_text().splitlines()
    actions = {k: [_Action.from_str(a) for a in row.split(",")] for k, row in enumerate(stuck)}
    full = _add_send_recv(actions, stage_to_rank=int, num_stages=2)  # as torch dumps it
    order.write_text("".join(",".join(map(str, row)) + "\n" for row in full.values()))
    assert "SEND_F" in order.read_text()
    again = pipec("explore", spec, *asked, "--beside", order)
    assert again.out.splitlines()[-2:] == judged.out.splitlines()[-2:], again.err
    order.write_text("\n".join([",".join(reversed(stuck[0].split(","))), stuck[1]]) + "\n")
    judged = pipec("explore", spec, *asked, "--beside", order)
    assert judged.code == 1
    assert "error: " in judged.err
    short = tmp_path / "short.csv"
    short.write_text("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n")
    mistakes = {
        short: "short.csv of 3 microbatches, a batch of 8",
        tmp_path / "ordr.csv": f"did you mean {order}?",
        "1,1,1": "a layout of 2 stages does",
    }
    for layout, hint in mistakes.items():
        judged = pipec("explore", spec, *asked, "--beside", layout)
        assert judged.code == 1
        assert hint in judged.err


def test_a_model_with_a_loss_is_run_forward_where_that_is_asked(pipec: Pipec, spec: str) -> None:
    """It was trained all the same, without a word."""
    done = pipec("explore", spec, "--devices", "2xv100", "--inference", "--json")
    assert done.code == 0, done.err
    schedules = {row["schedule"] for row in json.loads(done.out)}
    assert "inference" in schedules
    assert not schedules & {"1f1b", "gpipe", "zb-h1"}
