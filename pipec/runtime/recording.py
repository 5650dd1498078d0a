"""What really ran: when every action of the last round began and ended, as a trace.

The file is a Chrome trace like that of a prediction (`pipec.simulate.draw_trace`), with the same
devices and lanes, so that `pipec report --trace` can lay one over the other. Clocks of all
processes of one machine agree; those of several machines need not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pipec.files import write_file
from pipec.runtime.runner import Runner
from pipec.schedule.lanes import assign_lanes
from pipec.schedule.schedule import Schedule
from pipec.simulate.draw_trace import complete, lane_names

RECORDED = "recorded"
"""What a trace of a run says of itself, which else looks like one that is predicted."""


def record(pipeline: Runner) -> None:
    """Have every executor of this process keep the times of its last round."""
    for executor in pipeline.executors:
        executor.recorded = []


def collect_rows(pipeline: Runner) -> dict[int, torch.Tensor] | None:
    """Rows of (place in the row, begin, end, bytes saved) by device, on rank 0; else None.

    All ranks must call.
    """
    found = {
        f"recorded {e.device}": torch.tensor(e.recorded, dtype=torch.float64).reshape(-1, 4)
        for e in pipeline.executors
        if e.recorded is not None
    }
    every = pipeline.outputs(found)
    return None if every is None else {int(k.split()[1]): rows for k, rows in every.items()}


def build_trace(schedule: Schedule, rows: Mapping[int, torch.Tensor]) -> dict[str, Any]:
    """The trace as JSON data."""
    queue = assign_lanes(schedule)
    start = min((float(r[:, 1].min()) for r in rows.values() if len(r)), default=0.0)
    events = lane_names(queue)
    for device, table in sorted(rows.items()):
        first = int(schedule.device_ptr[device])
        for place, begin, end, saved in table.tolist():
            index = first + int(place)
            action, where = schedule[index], {"pid": device, "tid": int(queue.of[index])}
            events.append(complete(action, where, (begin - start) * 1e6, (end - begin) * 1e6))
            if action.kind.is_compute:
                counter = {"name": "saved values (bytes)", "ph": "C", "pid": device}
                after = (end - start) * 1e6
                events.append({**counter, "ts": after, "args": {"saved": saved}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {RECORDED: True}}


def write_trace(schedule: Schedule, rows: Mapping[int, torch.Tensor], path: Path) -> None:
    """Write `build_trace`.

    Raises:
        PipecError: The file cannot be written.
    """
    write_file(path, json.dumps(build_trace(schedule, rows)))
