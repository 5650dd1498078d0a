"""The directory of a process's binaries, asked for by several threads at once."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from threading import Barrier

import pytest

from pipec.backends.fpga import toolchain
from pipec.backends.fpga.simulator import native


class Slow(tempfile.TemporaryDirectory[str]):
    """Long enough in the making for other threads to arrive."""

    def __init__(self, prefix: str) -> None:
        time.sleep(0.05)
        super().__init__(prefix=prefix)


def test_threads_share_one_directory_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", Slow)
    made = cache(toolchain._directory.__wrapped__)
    monkeypatch.setattr(toolchain, "_directory", made)
    together = Barrier(4)

    def ask(_: int) -> Path:
        together.wait()
        return toolchain.workspace()

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(ask, range(4)))
    assert len(found) == 1
    assert found.pop().is_dir()
    made().cleanup()


def test_threads_share_one_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each thread writes a file of its own, which takes the name when it is whole."""
    made = list[Path]()

    def compiles(command: list[str | Path], **_: object) -> CompletedProcess[str]:
        half = Path(command[-1])
        made.append(half)
        time.sleep(0.05)
        half.touch()
        return CompletedProcess(command, 0)

    monkeypatch.setattr(toolchain, "run_command", compiles)
    monkeypatch.setattr(toolchain, "workspace", lambda: tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: native.binary(), range(4)))
    assert found == [tmp_path / "simulate"] * 4
    assert len(set(made)) == len(made)
    assert tmp_path / "simulate" not in made
    native.binary()
    assert len(made) <= 4


WAITING = """
import sys
from pathlib import Path
from pipec.backends.fpga.csim.run import _run_all
from pipec.backends.fpga.toolchain import run_command
command = ["sh", "-c", "echo $$ > pid.part; mv pid.part pid; exec sleep 60"]
run_command(command) if sys.argv[1] == "one" else _run_all([command], [])
"""


def _has_ended(pid: int) -> bool:
    """Whether it ended, be it that nobody has asked for its exit status; else after a while."""
    time.sleep(0.01)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize("how", ["one", "all stages"])
def test_what_it_runs_ends_with_it(how: str, tmp_path: Path) -> None:
    ours = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    waiting = subprocess.Popen([sys.executable, "-c", WAITING, how], cwd=tmp_path, env=ours)
    while not (tmp_path / "pid").exists():
        assert waiting.poll() is None
        time.sleep(0.01)
    simulator = int((tmp_path / "pid").read_text())
    waiting.send_signal(signal.SIGKILL)
    waiting.wait()
    assert any(_has_ended(simulator) for _ in range(1000))
