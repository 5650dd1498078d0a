"""An output directory is complete or absent, whatever happens while it is written."""

import errno
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipec.compiler.output import atomic_directory
from pipec.errors import PipecError

OLD = '{"format": "pipec.plan", "files": {"stage0/weights.safetensors": "a digest"}}'


def test_appears_only_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with atomic_directory(out) as directory:
        (directory / "plan.json").write_text("new")
        assert not out.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (out / "plan.json").read_text() == "new"
    (tmp_path / "like").mkdir()
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE((tmp_path / "like").stat().st_mode)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit, GeneratorExit])
def test_nothing_is_left_behind(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with atomic_directory(tmp_path / "out") as directory:
            (directory / "half").write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(PipecError, match="disk is full"), atomic_directory(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PipecError, match="cannot be written"), atomic_directory(tmp_path / "out"):
        raise PermissionError(errno.EACCES, "Permission denied", "there")
    assert not list(tmp_path.iterdir())


def test_a_really_full_device(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(PipecError, match="disk is full"), atomic_directory(tmp_path / "out"):
        full.write_text("x")
    assert not (tmp_path / "out").exists()


def test_an_existing_directory_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "stage0").mkdir(parents=True)
    (out / "plan.json").write_text(OLD)
    (out / "stage0" / "stale").write_text("stale")
    with pytest.raises(PipecError, match="--force"), atomic_directory(out):
        pytest.fail("the block must not run")
    with pytest.raises(ValueError, match="half"), atomic_directory(out, force=True):
        raise ValueError("half")
    assert (out / "plan.json").read_text() == OLD
    with atomic_directory(out, force=True) as directory:
        (directory / "plan.json").write_text("new")
    assert [p.name for p in out.iterdir()] == ["plan.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_force_replaces_only_what_pipec_wrote(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years")
    with pytest.raises(PipecError, match="did not write"), atomic_directory(home, force=True):
        pytest.fail("the block must not run")
    with (
        pytest.raises(PipecError, match="no directory"),
        atomic_directory(home / "thesis.tex", force=True),
    ):
        pytest.fail("the block must not run")
    with pytest.raises(PipecError, match="mkdir"), atomic_directory(tmp_path / "no" / "out"):
        pytest.fail("the block must not run")
    for text in ("{}", "[]", "no", '{"format": "other", "files": {"thesis.tex": ""}}', OLD):
        (home / "plan.json").write_text(text)
        with pytest.raises(PipecError, match=r"thesis\.tex"), atomic_directory(home, force=True):
            pytest.fail("the block must not run")
    empty = tmp_path / "empty"
    empty.mkdir()
    with atomic_directory(empty, force=True) as directory:
        (directory / "plan.json").write_text("new")
    assert (empty / "plan.json").exists()


# A suite that runs in the background ignores Ctrl-C, and so would the processes that it starts.
WRITER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from pipec.compiler.output import atomic_directory
with atomic_directory(Path(sys.argv[1]), force=True) as directory:
    (directory / "plan.json").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_writer_loses_nothing_and_the_next_run_removes_its_rest(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    with atomic_directory(out) as directory:
        (directory / "plan.json").write_text(OLD)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, out], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.send_signal(number)
    writer.communicate()
    assert (out / "plan.json").read_text() == OLD
    assert number == signal.SIGKILL or len(list(tmp_path.iterdir())) == 1
    with atomic_directory(out, force=True) as directory:
        (directory / "plan.json").write_text("new")
    assert (out / "plan.json").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_exchange_has_moved_aside_comes_back(tmp_path: Path) -> None:
    """Where directories cannot be exchanged at once, a kill may leave only the one moved aside."""
    out, dead = tmp_path / "out", subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    aside = tmp_path / f".out.{dead.pid}.abc.old"
    aside.mkdir()
    (aside / "plan.json").write_text(OLD)
    with pytest.raises(PipecError, match="--force"), atomic_directory(out):
        pytest.fail("the old one is back, so the block must not run")
    assert (out / "plan.json").read_text() == OLD
