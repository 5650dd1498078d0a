"""Real processes under torchrun: the bits of one process, and what happens when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runtime.worker import RUNS

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
BINARIES = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BINARIES}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}
MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


def make():
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)]
    goal = torch.randint(0, 3, (4,))
    return nn.Sequential(*layers), (torch.randn(4, 8),), (F.cross_entropy, goal)
"""


def run(*args: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        list(map(str, args)), env=ENVIRONMENT, cwd=ROOT, text=True, timeout=400, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_processes_give_the_bits_of_one_process(world: int) -> None:
    worker = ROOT / "tests" / "runtime" / "worker.py"
    out = run(*TORCHRUN, "--nproc-per-node", str(world), worker, str(world))
    found = [line.split(": ") for line in out.splitlines() if line.startswith("RESULT")]
    assert len(found) == len(RUNS[world]) + (2 if world == 2 else 0)
    # with several ranks an all-reduce may add in another order
    assert all(float(error) <= 1e-6 for _, error in found), found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    (place / "model.py").write_text(MODEL)
    run(
        "pipec", "compile", f"{place}/model.py:make", "--training", "--devices", "2xh100",
        "-o", place / "out",
    )  # fmt: skip
    return place


def test_the_command_starts_its_ranks_and_saves_the_models_state_dict(compiled: Path) -> None:
    args = ["pipec", "run", str(compiled / "out"), "--rounds", "2", "--optimizer", "adamw:lr=0.01"]
    shared, alone, log = (compiled / n for n in ("a.safetensors", "b.safetensors", "log"))
    out = run(*args, "--save", shared, "--metrics", log)
    assert "step 1  loss" in out
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [0, 1]
    run(*args, "--local", "--save", alone)
    first, second = load_file(shared), load_file(alone)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert {"0.weight", "1.running_mean", "1.num_batches_tracked", "4.bias"} <= first.keys()


def test_the_emitted_script_trains(compiled: Path) -> None:
    script = compiled / "out" / "train.py"
    script.write_text(script.read_text().replace("ROUNDS = 100", "ROUNDS = 2"))
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", script], env=ENVIRONMENT, cwd=compiled, text=True,
        timeout=300, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 1  loss" in done.stdout
    assert (compiled / "trained.safetensors").is_file()


@pytest.mark.slow
def test_a_killed_rank_is_restarted_and_the_run_ends_with_the_same_weights(compiled: Path) -> None:
    args = ["pipec", "run", str(compiled / "out"), "--rounds", "60", "--every", "2"]
    run(*args, "--local", "--save", compiled / "undisturbed.safetensors")
    log, end = compiled / "killed.jsonl", compiled / "killed.safetensors"
    process = subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "3", "--monitor-interval", "0.2",
         "--no-python", "pipec", *args[1:], "--checkpoints", str(compiled / "saved"),
         "--metrics", str(log), "--save", str(end)],
        env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for lines, rank in ((4, 0), (20, 1)):
            wait_for(log, lines, process)
            os.kill(ranks_of(process)[rank], signal.SIGKILL)
        assert process.wait(timeout=200) == 0
    finally:
        process.terminate()
        process.wait(timeout=60)
    first, second = load_file(end), load_file(compiled / "undisturbed.safetensors")
    assert all(torch.equal(first[n], second[n]) for n in second)


def wait_for(log: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not (log.is_file() and len(log.read_text().splitlines()) >= lines):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [int(c) for c in children if b"run" in Path(f"/proc/{c}/cmdline").read_bytes()]
    return sorted(ranks)


def test_a_rank_that_is_alone_says_how_to_start(compiled: Path) -> None:
    script = compiled / "out" / "train.py"
    out = run(sys.executable, script, check=False)
    assert "this process is no rank of a group" in out
    assert "torchrun --nproc-per-node" in out
