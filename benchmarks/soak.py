"""A long run holds no more than a short one: memory, threads and descriptors over 20,000 steps.

    python -m benchmarks.soak [--schedule 1f1b] [--steps 20000] [--every 100]

Two ranks train a small classifier through `pipec.Pipeline`: every fifth batch is short, a
checkpoint is written every so many steps, and the model is evaluated at every tenth of the way.
Each tenth is a row; what is held in the last one is compared with the second, where every cache is
full.
"""

import argparse
import gc
import os
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import pipec
from benchmarks._exit import positive
from benchmarks._ranks import is_rank, launch, pin, say
from pipec.runtime.agreement import exchange

LOSS, ROWS = nn.functional.cross_entropy, 16
RESIDENT = 0.01
"""Share of itself by which resident memory may grow from the second tenth to the last."""


def plan(schedule: str) -> tuple[nn.Module, pipec.Plan]:
    """A classifier with statistics and dropout, over two ranks."""
    torch.manual_seed(0)
    layers = [
        part
        for k in range(5)
        for part in (nn.Linear(256 if k else 8, 256), nn.BatchNorm1d(256), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(256, 3))
    loss = LOSS, torch.randint(0, 3, (ROWS,))
    return model, pipec.compile(
        model, torch.randn(ROWS, 8), loss=loss, devices="2xcpu", schedule=schedule, microbatches=4
    )


def batch(number: int) -> dict[str, Tensor]:
    """Four microbatches; every fifth batch is short by two rows."""
    g, rows = torch.Generator().manual_seed(number), 4 * ROWS - 2 * (number % 5 == 4)
    return {
        "input": torch.randn(rows, 8, generator=g),
        "target": torch.randint(0, 3, (rows,), generator=g),
    }


def count_held() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    objects = gc.get_objects()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "resident": resident,
        "tensors": sum(t.nbytes for t in objects if type(t) is Tensor),
        "objects": len(objects),
        "threads": len([*Path("/proc/self/task").iterdir()]),
        "descriptors": len([*Path("/proc/self/fd").iterdir()]),
    }


def train(schedule: str, steps: int, every: int, folder: Path) -> list[list[dict[str, int]]]:
    """Counts of every rank after every tenth of the steps."""
    model, made = plan(schedule)
    rows = []
    with pipec.Pipeline(
        made, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3), model=model,
        loss=LOSS, timeout=timedelta(minutes=10),
    ) as pipeline:  # fmt: skip
        for k in range(steps):
            pipeline.step(batch(k))
            if (k + 1) % every == 0:
                pipeline.save(folder)
            if (k + 1) % (steps // 10) == 0:
                pipeline.evaluate([batch(0), batch(4)])
                ranks = exchange(count_held())
                rows.append(ranks)
                for rank, row in enumerate(ranks):
                    say(f"step {k + 1:6}  rank {rank}  {format_row(row)}")
    return rows


def format_row(row: dict[str, int]) -> str:
    """The counts, as a line."""
    return (
        f"resident {row['resident'] / 2**20:6.1f} MiB  tensors {row['tensors']:6} B  "
        f"objects {row['objects']:7}  threads {row['threads']:3}  "
        f"descriptors {row['descriptors']:3}"
    )


def find_growth(rows: list[list[dict[str, int]]], steps: int) -> list[str]:
    """The counts that grew from the second tenth to the last, in words."""
    found = []
    for rank, (early, late) in enumerate(zip(rows[1], rows[-1], strict=True)):
        bounds = {"resident": early["resident"] * RESIDENT, "objects": steps / 100}
        found += [
            f"rank {rank}: {name} from {early[name]} to {late[name]}"
            for name in early
            if late[name] - early[name] > bounds.get(name, 0)
        ]
    return found


def main() -> int:
    """Launch the ranks; in one of them, run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=positive, default=20_000)
    parser.add_argument("--every", type=positive, default=100)
    parser.add_argument("--folder")
    given = parser.parse_args()
    if not is_rank():
        with TemporaryDirectory() as folder:
            words = [*sys.argv[1:], "--folder", folder]
            return launch("benchmarks.soak", 2, *words, timeout=7200)
    pin()
    rows = train(given.schedule, given.steps, given.every, Path(given.folder))
    bad = find_growth(rows, given.steps)
    saved = f"{given.steps // given.every} checkpoints"
    say(f"{given.schedule}, {given.steps} steps, {saved}: {'; '.join(bad) or 'nothing grew'}")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
