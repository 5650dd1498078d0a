"""What a run tells, for programs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from pipec.runtime.figures import Figures
from pipec.runtime.metrics import JsonLines, Steady, Step, TensorBoard
from pipec.runtime.program import Program
from pipec.runtime.train import summary


@pytest.mark.parametrize(("busy", "bubble"), [(0.5, 0.75), (2.0, 0.0), (2.1, 0.0)])
def test_a_round_is_reported_per_second(busy: float, bubble: float) -> None:
    """Of three new microbatches of five rows each; one process, whatever devices it plays."""
    schedule = SimpleNamespace(devices=4, microbatches=7, first=4)
    plan = SimpleNamespace(graph=SimpleNamespace(rows=5))
    program = cast("Program", SimpleNamespace(schedule=schedule, plan=plan))
    figures = Figures(1.5, None, skipped=True, rescaled=False, busy=busy, seconds=2.0)
    assert summary(program, figures, 3) == Step(3, 1.5, 7.5, bubble, 2.0, skipped=True)


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
    rest = {"samples_per_second": 10.0, "bubble": 0.25, "seconds": 2.0, "skipped": False}
    assert found == [{"step": k, "loss": told, **rest} for k in range(2)]


def test_events_are_read_by_tensorboard(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "board")
    for k in range(3):
        board(Step(k, 0.5 * k, 10.0, 0.25, 2.0))
    (path,) = (tmp_path / "board").iterdir()
    first, *events = EventFileLoader(str(path)).Load()
    assert first.file_version == "brain.Event:2"
    values = [{v.tag: v.tensor.float_val[0] for v in e.summary.value} for e in events]
    assert [e.step for e in events] == [0, 1, 2]
    assert [v["loss"] for v in values] == [0.0, 0.5, 1.0]
    assert values[0]["samples_per_second"] == 10.0


def test_an_observer_whose_file_cannot_be_written_is_given_up_once() -> None:
    told: list[str] = []
    observe = Steady(JsonLines(Path("/dev/full")), "--metrics", told.append)
    for k in range(3):
        observe(Step(k, 1.0, 10.0, 0.25, 2.0))
    assert len(told) == 1
    assert told[0].startswith("--metrics is given up at step 0: ")
