"""Emitted C++ compiles without a warning."""

import pytest

from pipec.backends.fpga.csim import build
from tests.cli.running import Pipec


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-Werror"))


@pytest.fixture
def pipec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipec:
    return Pipec(monkeypatch, capsys)
