"""Running the command in this process."""

import sys
from dataclasses import dataclass

import pytest

from pipec.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


class Pipec:
    """``pipec(...)`` as a user would type it, with exit code and both outputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *args: object) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["pipec", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self.capsys.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)
