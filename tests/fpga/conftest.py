"""Whatever a test emits obeys the rules of `tests.fpga.lint`, which know nothing of the emitter."""

from pathlib import Path

import pytest

from pipec.backends.fpga import audit
from tests.fpga.lint.stage import check


@pytest.fixture(autouse=True)
def rules_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    own = audit.check

    def both(stage: Path) -> None:
        own(stage)
        check(stage)

    monkeypatch.setattr(audit, "check", both)
