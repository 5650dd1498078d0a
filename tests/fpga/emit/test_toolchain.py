"""The directory of a process's binaries, asked for by several threads at once."""

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
