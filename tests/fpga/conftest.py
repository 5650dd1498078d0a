"""Whatever a test emits obeys the rules of `tests.fpga.lint`, which know nothing of the emitter."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipec.backends.fpga import audit
from pipec.backends.fpga.csim import build
from tests.fpga.lint.stage import check

CLANG = shutil.which("clang++-14")
STANDARD = build.STANDARD
QUICK = ["-fpch-instantiate-templates"]
if shutil.which("ld.gold"):  # half the time of the other one; compiling alone has no use for it
    QUICK += ["-fuse-ld=gold", "-Wno-unused-command-line-argument"]


@pytest.fixture(autouse=True)
def rules_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    own = audit.check

    def both(stage: Path) -> None:
        own(stage)
        check(stage)

    monkeypatch.setattr(audit, "check", both)


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    """By clang, which vendors' tools are made of: a tenth of the time that optimised g++ takes.

    What the library's inline functions need of its templates is made once, in the header.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "STANDARD", ("-std=c++17", "-O0"))
        if CLANG:
            patch.setattr(build, "STANDARD", ("-std=c++17", "-O0", *QUICK))
            patch.setenv("CXX", CLANG)
        yield


@pytest.fixture
def compiled_for_users(monkeypatch: pytest.MonkeyPatch, compiled_quickly: None) -> None:
    """By optimised g++, whose warnings and sanitizers are others."""
    monkeypatch.setattr(build, "STANDARD", STANDARD)
    monkeypatch.setenv("CXX", "g++")
