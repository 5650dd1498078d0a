"""What a run tells, for programs."""

import json
from pathlib import Path

import pytest

from pipec.runtime.metrics import JsonLines, Step


@pytest.mark.parametrize(
    ("loss", "told"), [(1.5, 1.5), (None, None), (float("nan"), None), (float("inf"), None)]
)
def test_lines_are_strict_json(tmp_path: Path, loss: float | None, told: float | None) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)  # NaN and Infinity are no JSON

    lines = JsonLines(tmp_path / "log.jsonl")
    for k in range(2):
        lines(Step(k, loss, 10.0, 0.25, 2.0))
    found = [
        json.loads(line, parse_constant=refuse)
        for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    rest = {"samples_per_second": 10.0, "bubble": 0.25, "seconds": 2.0}
    assert found == [{"step": k, "loss": told, **rest} for k in range(2)]
