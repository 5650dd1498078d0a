"""Emitted C++ compiles without a warning."""

from collections.abc import Iterator

import pytest

from pipec.backends.fpga.csim import build
from tests.cli.running import Pipec


@pytest.fixture(autouse=True, scope="module")
def warnings_are_errors() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS, "-Werror"))
        yield


@pytest.fixture
def pipec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipec:
    return Pipec(monkeypatch, capsys)
