"""Makespan and peak of ten published schedule orders: F = dX = dW = 1 per rank, hop cost 0 and 0.1.

The orders of torch.distributed.pipelining come from torch itself, beside ours; the greedy ZB-V
order of the zero-bubble authors' scheduler is recorded in a CSV file.
"""

from pathlib import Path

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pipec.schedule.csv_form import from_csv
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

CELLS = [
    # ours, options, chunks, makespan at 0, at 0.1, peak; torch's name
    ("gpipe", {}, 1, 33.0, 33.6, 8, "GPipe"),
    ("1f1b", {}, 1, 33.0, 34.6, 4, None),
    ("interleaved", {"order": "breadth"}, 2, 28.5, 29.1, 8, "LoopedBFS"),
    ("interleaved", {}, 2, 28.5, 29.9, 5.5, "Interleaved1F1B"),
    ("interleaved", {"split": True}, 2, 25.5, 27.1, 4, "InterleavedZeroBubble"),
    ("zbv", {}, 2, 25.5, 26.8, 4, "ZBVZeroBubble"),
    ("dualpipev", {}, 2, 25.5, 26.8, 4.5, "DualPipeV"),
    ("zb-h1", {}, 1, 27.0, 28.2, 4, None),
    ("zb-h1", {"memory": 2}, 1, 27.0, 27.3, 8, None),
]


def torch_order(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    rows = get_schedule_ops(name, ranks, microbatches, num_stages_per_rank=chunks)
    return from_csv("\n".join(",".join("" if a is None else str(a) for a in r) for r in rows))


def check(schedule: Schedule, chunks: int, free: float, late: float, peak: float) -> None:
    for comm, makespan in ((0.0, free), (0.1, late)):
        part = 1 / chunks
        times = Times.uniform(4 * chunks, part, 2 * part, part, part, comm=comm)
        timeline = simulate(lower(schedule), times)
        assert timeline.seconds == pytest.approx(makespan, abs=1e-9)
        assert max(timeline.peak_in_flight) == peak


@pytest.mark.parametrize(
    ("name", "options", "chunks", "free", "late", "peak", "peer"),
    CELLS,
    ids=[f"{c[0]}{''.join(f'-{v}' for v in c[1].values())}" for c in CELLS],  # type: ignore[attr-defined]
)
def test_cell(
    name: str,
    options: dict[str, object],
    chunks: int,
    free: float,
    late: float,
    peak: float,
    peer: str | None,
) -> None:
    check(generate(name, 4 * chunks, 8, **options), chunks, free, late, peak)
    if peer is not None:
        check(torch_order(peer, 4, 8, chunks), chunks, free, late, peak)


def test_greedy_zbv_order() -> None:
    text = Path(__file__).with_name("greedy_zbv_4x8.csv").read_text()
    check(from_csv(text), 2, 25.5, 27.0, 4)


@pytest.mark.parametrize(
    ("stages", "microbatches", "free", "late"),
    [(4, 8, 33.0, 34.6), (4, 16, 57.0, None), (8, 16, 69.0, 73.0), (8, 32, 117.0, None)],
)
def test_1f1b_at_other_sizes(
    stages: int, microbatches: int, free: float, late: float | None
) -> None:
    schedule = lower(generate("1f1b", stages, microbatches))
    assert simulate(schedule, Times.uniform(stages)).seconds == free
    if late is not None:
        found = simulate(schedule, Times.uniform(stages, comm=0.1)).seconds
        assert found == pytest.approx(late, abs=1e-9)
