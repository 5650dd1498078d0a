"""Agents of torchrun that are killed, as a host is lost: two of them, a rank each."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.running import Pipec
from tests.runtime.pipelines import emitted
from tests.runtime.processes import launch

ROUNDS = 40
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
"""On one thread everywhere: sums of several have other bits."""
DATA = """
import os
import time

import torch

def batch(number):
    time.sleep(float(os.environ.get("SLOW", "0")))
    g = torch.Generator().manual_seed(number)
    rows = torch.randn(4, 8, generator=g)
    return {"input": rows, "target": torch.randint(3, (4,), generator=g)}
"""
RUN = ("run", "out", "-q", "--rounds", str(ROUNDS), "--data", "data.py:batch")
KEPT = ("--checkpoints", "saved", "--every", "10", "--timeout", "60", "--save", "end.safetensors")


def agents(directory: Path, slow: float) -> list[subprocess.Popen[bytes]]:
    """Two agents, each microbatch ``slow`` seconds; one has the store where they meet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", "0",
        "--local-addr", "127.0.0.1", "--no-python", sys.executable, "-m", "pipec", *RUN, *KEPT,
    ]  # fmt: skip
    found, env = [], ALONE | {"SLOW": str(slow)}
    for k in range(2):
        log = (directory / f"agent{k}").open("wb")
        found.append(subprocess.Popen(command, cwd=directory, env=env, stderr=log, stdout=log))
        log.close()
    return found


def lose(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and the ranks that it started: a rank alone may end its run without it."""
    tasks = Path(f"/proc/{agent.pid}/task").glob("*/children")
    ranks = [int(number) for task in tasks for number in task.read_text().split()]
    for number in (agent.pid, *ranks):
        os.kill(number, signal.SIGKILL)
    agent.wait()


@pytest.mark.slow
def test_a_run_whose_agent_is_killed_ends_and_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    emitted(tmp_path / "out", devices=2)
    (tmp_path / "data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    whole = Pipec(monkeypatch, capsys)(*RUN, "--local", "--save", "whole.safetensors")
    assert whole.code == 0, whole.err
    first, second = agents(tmp_path, slow=0.03)
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("saved/round-?0")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lose(first)
        assert second.wait(300) != 0
    finally:
        for agent in (first, second):
            if agent.poll() is None:
                lose(agent)
    said = "".join(log.read_text() for log in tmp_path.glob("agent*"))
    assert not (tmp_path / "end.safetensors").exists(), said
    assert "another rank did not answer" in said
    again = launch([*RUN, *KEPT], tmp_path / "again", tmp_path, forks=True)
    again.join(300)
    assert again.exitcode == 0, (tmp_path / "again").read_text()
    end, want = (load_file(tmp_path / f"{n}.safetensors") for n in ("end", "whole"))
    assert end.keys() == want.keys()
    assert all(torch.equal(end[n], want[n]) for n in want)
