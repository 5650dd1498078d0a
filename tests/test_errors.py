"""Errors of the system, as users read them."""

import errno
import os
from pathlib import Path

import pytest

from pipec.errors import PipecError, find_near


def test_a_missing_file_has_its_name_once_and_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "costs.json").touch()
    missing = tmp_path / "cost.json"
    with pytest.raises(FileNotFoundError) as caught:
        missing.read_text()
    for where, name in ((missing, ""), ("a plan", f": {missing}")):
        text = str(PipecError("a file cannot be read", where=where, got=caught.value))
        assert f"got:   no such file or directory{name}\n" in text
        assert f"hint:  did you mean {tmp_path / 'costs.json'}?" in text


@pytest.mark.parametrize("name", [None, 3])
def test_an_error_of_the_system_without_a_path_is_its_words(name: object) -> None:
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    assert "got:   no such file or directory" in str(PipecError("that failed", got=error))


def test_what_lies_in_no_readable_folder_is_near_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    (tmp_path / "file").touch()
    assert find_near(tmp_path / "file" / "net.onnx") == "check the path"
    assert "no folder" in find_near(tmp_path / "none" / "net.onnx")
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert find_near(tmp_path / "net.onnx") == "check the path"
