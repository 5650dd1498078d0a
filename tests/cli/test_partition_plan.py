"""``pipec partition`` reads what ``pipec compile`` wrote, with its own devices and links."""

import json
import re
from pathlib import Path

import pytest

from pipec.partition.formats.workload import Workload
from tests.cli.running import Pipec


def test_a_plan_is_cut_again(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compiled = json.loads(pipec("compile", model, "--devices", "3xcpu", "-o", out, "--json").out)
    again = json.loads(pipec("partition", out, "--json").out)
    assert again["max_load"] <= compiled["balance"]["slowest_seconds"] * (1 + 1e-9)
    assert again["proven"]
    assert set(again["assignment"].values()) == {0, 1, 2}
    fewer = json.loads(pipec("partition", out / "plan.json", "--devices", "2", "--json").out)
    assert len(fewer["loads"]) == 2


def test_more_devices_than_the_plan_has(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pipec("compile", model, "--devices", "2xcpu", "-o", out).code == 0
    outcome = pipec("partition", out, "--devices", "5")
    assert outcome.code == 1
    assert "at most 2 devices" in outcome.err


def test_replicas_of_a_plan_take_its_devices_and_links(
    pipec: Pipec, model: Path, tmp_path: Path
) -> None:
    """A boundary takes twice the bytes over the slowest link: no default link stands for it."""
    slow, out = tmp_path / "slow.toml", tmp_path / "out"
    link = '[[link]]\nbetween = [0, 1]\nbandwidth = "10 kB/s"\n'
    slow.write_text(f'[[device]]\nkind = "v100"\ncount = 2\nmemory = "1 GB"\n{link}')
    assert pipec("compile", model, "--cluster", slow, "-o", out).code == 0
    command = ("partition", out, "--planner", "pipedream")
    itself, named = (
        json.loads(pipec(*command, *more, "--json").out)
        for more in ((), ("--devices", "2", "--bandwidth", "1e4"))
    )
    assert itself["max_load"] == named["max_load"]
    assert itself["configuration"] == named["configuration"]
    assert "at most 2 devices" in pipec(*command, "--devices", "9").err
    bare = pipec(*command, "--workers", "2", "--workers", "1")
    assert "2 --workers, 0 --bandwidth" in bare.err
    alone = pipec("partition", out, "--latency", "1")
    assert alone.code == 2
    assert "--latency: only with --bandwidth" in alone.err


def test_replicas_of_a_plan_run_on_one_kind(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("partition", out, "--planner", "pipedream")
    assert pipec("compile", model, "--devices", "h100,v100", "-o", out).code == 0
    for more in ((), ("--bandwidth", "1e9"), ("--workers", "2")):
        unlike = pipec(*command, *more)
        assert unlike.code == 1
        assert "devices of one kind" in unlike.err
    assert pipec(*command, "--devices", "1").code == 0


def test_replicas_keep_the_memory_of_a_plan(pipec: Pipec, model: Path, tmp_path: Path) -> None:
    """The plan's own limit counts as one that is named does: both refuse, or both find the same."""
    out, limit = tmp_path / "out", tmp_path / "small.toml"
    limit.write_text('[[device]]\nkind = "v100"\ncount = 4\nmemory = "900 B"\n')
    assert pipec("compile", model, "--cluster", limit, "-o", out).code == 0
    command = ("partition", out, "--planner", "pipedream", "--workers")
    few, named = pipec(*command, "1"), pipec(*command, "1", "--memory", "900")
    assert few.code == named.code == 1
    assert few.err == named.err
    assert "900" in few.err


def test_replicas_of_a_training_plan_hold_each_weight_once(pipec: Pipec, tmp_path: Path) -> None:
    """PipeDream counts weights, not gradients and Adam's state beside them (SOSP 2019, 3.1)."""
    file, out = tmp_path / "net.py", tmp_path / "out"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)\n\n"
        "    def forward(self, x):\n        return self.b(self.a(x)).mean()\n\n\n"
        "def make():\n    return Net(), {'x': torch.randn(1, 64)}\n"
    )
    compiled = pipec("compile", f"{file}:make", "--training", "--devices", "2xcpu", "-o", out)
    assert compiled.code == 0, compiled.err
    command = ("partition", out, "--planner", "pipedream", "--workers", "1", "--memory")
    weights = 2 * 64 * 64 * 4
    assert pipec(*command, f"{2 * weights}").code == 0
    assert pipec(*command, f"{weights - 1}").code == 1


def test_time_is_that_of_the_search_and_loads_have_a_unit(
    pipec: Pipec, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands still but for the reading of the plan: none of it is the search's."""
    from pipec.cli import partition

    out, now, read = tmp_path / "out", [0.0], partition._read_workload

    def read_slowly(file: Path, **options: bool) -> Workload:
        now[0] += 1000.0
        return read(file, **options)

    assert pipec("compile", model, "--devices", "2xcpu", "-o", out).code == 0
    monkeypatch.setattr(partition, "perf_counter", lambda: now[0])
    monkeypatch.setattr(partition, "_read_workload", read_slowly)
    found = pipec("partition", out).out
    assert "time         0.000 s" in found
    assert "load, s" in found
    assert re.search(r"max load +[-+.e0-9]+ s\n", found)
