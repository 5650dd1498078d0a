"""Emitted C++ compiles without a warning."""

import pytest

from pipec.backends.fpga.csim import build


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-Werror"))
