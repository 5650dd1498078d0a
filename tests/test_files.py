"""Files are complete under their name, or what was there before still is."""

import errno
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipec.errors import PipecError
from pipec.files import replacing, write_file, write_npz


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("old")
    with pytest.raises(PipecError, match="the disk is full"):
        _break_off(path, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        _break_off(path, KeyboardInterrupt())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _break_off(path: Path, error: BaseException) -> None:
    with replacing(path) as place:
        place.write_text("half of the n")
        raise error


def test_what_the_dead_have_left_goes(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f".pipec.{dead.pid}.1.json").write_text("half")
    others = [f".pipec.{os.getpid()}.1.json", f".pipec.notes.{dead.pid}.1.json", ".pipec"]
    for name in others:
        (tmp_path / name).write_text("kept")
    write_file(tmp_path / "costs.json", "new")
    assert {p.name for p in tmp_path.iterdir()} == {"costs.json", *others}


def test_mode_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "real.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 250 + ".json")
    write_file(path, b"all")
    assert path.read_bytes() == b"all"


@pytest.mark.parametrize("name", ["file/out.json", "no/such/out.json", "b" * 300, "folder"])
def test_no_place_is_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PipecError, match="cannot write"):
        write_file(tmp_path / name, "new")
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def test_pipes_are_written_to_as_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "through")
    assert os.read(end, 100) == b"through"
    os.close(end)
    assert pipe.is_fifo()


def test_arrays_may_have_any_name(tmp_path: Path) -> None:
    """Names of a model's outputs are not arguments of a function of NumPy's."""
    arrays = {name: np.arange(3.0) + len(name) for name in ("file", "allow_pickle", "a/b", "x")}
    write_npz(tmp_path / "all.npz", arrays)
    with np.load(tmp_path / "all.npz") as read:
        assert {name: read[name].tolist() for name in read.files} == {
            name: array.tolist() for name, array in arrays.items()
        }
