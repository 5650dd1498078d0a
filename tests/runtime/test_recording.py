"""What really ran, beside the prediction: every action once, in order, on its own lane."""

from pathlib import Path

import torch
from torch import nn

import pipec
from pipec.report.extras import read_trace
from pipec.runtime.executor import Settings
from pipec.runtime.recording import collect_rows, record, write_trace
from pipec.runtime.runner import LocalPipeline


def test_every_action_is_recorded_once_and_read_by_the_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), torch.randn(2, 8)
    plan = pipec.compile(
        model, x, "2xcpu", loss=lambda y: y.square().mean(), schedule="1f1b", microbatches=3
    )
    pipeline = LocalPipeline(
        plan, lambda _: {"input": x}, Settings(lambda p: torch.optim.SGD(p, lr=0.1))
    )
    record(pipeline)
    pipeline.run(2)
    rows = collect_rows(pipeline)
    assert rows is not None
    schedule = pipeline.program.schedule
    for device, table in rows.items():
        places = table[:, 0].tolist()
        assert places == list(range(len(schedule.row(device))))
        assert bool((table[:, 2] >= table[:, 1]).all())
        assert bool((table[1:, 1] >= table[:-1, 2]).all())
    write_trace(schedule, rows, tmp_path / "trace.json")
    found = read_trace(tmp_path / "trace.json", schedule)
    assert len(found["actions"]) == len(schedule)
    kinds = {(row[0], row[2], row[3], row[4]) for row in found["actions"]}
    assert {(0, "F", 0, m) for m in range(3)} <= kinds
    lanes = {(row[0], row[1]) for row in found["actions"]}
    assert plan.timeline is not None
    assert lanes <= {(lane.device, lane.name) for lane in plan.timeline.lanes.names}
