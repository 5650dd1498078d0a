"""Prediction against reality: step time and bytes of 6 models under 5 schedules, 2 processes.

    python -m benchmarks.prediction             everything, about 6 minutes on a calm machine
    python -m benchmarks.prediction --models transformer,cnn --windows 3

Before anything is predicted, the stages, steps and messages of each plan are measured on the same
two ranks (as ``pipec profile DIRECTORY`` does); a prediction is the plan's simulated timeline with
these costs. Nothing is fitted to the steps that are then run. The schedules of a model take turns.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks._models import WORKLOADS, Workload, loss_of
from benchmarks._ranks import keep, launch, launched, pin, say
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import completed
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import profile
from pipec.compiler.timeline import plan_timeline
from pipec.cost.count import count
from pipec.cost.measure import Measuring, measure
from pipec.cost.table import CostTable
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.allocations import counting
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.timeline import Timeline

SCHEDULES = {"gpipe": 2, "1f1b": 2, "zb-h1": 2, "interleaved": 4, "pipedream": 2}
"""Schedule to its stages on two devices."""
MICROBATCHES, RANKS = 8, 2
PASSES = "simplify,annotate-cost,partition,insert-comm,differentiate,time-stages"


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def node_costs(graph: Graph, inputs: Mapping[str, Tensor]) -> CostTable:
    """What every node takes on rank 0, told to all ranks."""
    told: list[dict[str, float]] = [{}]
    if dist.get_rank() == 0:
        told = [measure(graph, inputs, Measuring(warmup=1, repeats=5))]
    dist.broadcast_object_list(told, src=0)
    return CostTable(count(graph), {"cpu": told[0]}, {"cpu": "measured"})


@dataclass
class Cell:
    """One model under one schedule."""

    model: str
    schedule: str
    timeline: Timeline
    pipeline: DistributedPipeline
    seconds: list[float] = field(default_factory=list)
    held: float = 0.0

    def run(self, rounds: int) -> None:
        """Rounds between two barriers, after one that does not count."""
        self.pipeline.round()
        for _ in range(rounds):
            dist.barrier()
            begin = time.perf_counter()
            self.pipeline.round()
            dist.barrier()
            self.seconds.append(time.perf_counter() - begin)

    def row(self) -> dict[str, object]:
        """Figures of all ranks."""
        measured = statistics.median(self.seconds)
        told: list[float] = [0.0] * RANKS
        dist.all_gather_object(told, self.held)
        return {
            "model": self.model,
            "schedule": self.schedule,
            "predicted_seconds": self.timeline.seconds,
            "measured_seconds": measured,
            "fastest_seconds": min(self.seconds),
            "bound_seconds": float(self.timeline.busy.max()),
            "predicted_bytes": list(self.timeline.peak_bytes),
            "counted_bytes": told,
        }


def plans(workload: Workload) -> tuple[dict[int, Plan], Batch]:
    """A measured plan per number of stages, and the data."""
    model, x, y = workload.seeded(MICROBATCHES)
    rows = workload.rows
    graph = trace(model, (x[:rows],), loss=Loss(loss_of, y[:rows]), source=Source("memory", ""))
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]

    def batch(k: int) -> dict[str, Tensor]:
        part = slice(k % MICROBATCHES * rows, (k % MICROBATCHES + 1) * rows)
        return dict(zip(names, (x[part], y[part]), strict=True))

    costs = node_costs(graph, batch(0))
    found = {}
    for stages in sorted(set(SCHEDULES.values())):
        cluster = parse_cluster(f"{stages}xcpu")
        plan = make_plan(graph, cluster, passes=parse_pipeline(PASSES), costs=costs)
        found[stages] = profile(plan, batch, Settings(adam), budget=1.0).on(plan, "cpu")
    return found, batch


def cells(name: str, windows: int, rounds: int) -> list[dict[str, object]]:
    """All schedules of one model."""
    began = time.perf_counter()
    by_stages, batch = plans(WORKLOADS[name])
    say(f"{name}: compiled and measured in {time.perf_counter() - began:.0f} s")
    made = []
    for schedule, stages in SCHEDULES.items():
        plan = by_stages[stages]
        order: Schedule = completed(generate(schedule, stages, MICROBATCHES), plan)
        pipeline = DistributedPipeline(plan, batch, Settings(adam), schedule=order, device="cpu")
        made.append(Cell(name, schedule, plan_timeline(plan, order), pipeline))
    for cell in made:
        with counting(cell.pipeline.executor) as memory:
            for _ in range(2):
                cell.pipeline.round()
            cell.held = memory.peak
    for _ in range(windows):
        for cell in made:
            cell.run(rounds)
    return [cell.row() for cell in made]


def table(rows: list[dict[str, object]]) -> None:
    """One line per cell, then the errors' median and worst."""
    say("model        schedule      predicted   measured   error   x bound    bytes, each rank")
    for r in rows:
        error = r["predicted_seconds"] / r["measured_seconds"] - 1  # type: ignore[operator]
        over = r["measured_seconds"] / r["bound_seconds"]  # type: ignore[operator]
        pairs = zip(r["predicted_bytes"], r["counted_bytes"], strict=True)  # type: ignore[call-overload]
        bytes_ = "  ".join(f"{c / 1e6:6.1f} MB {p / c - 1:+6.1%}" for p, c in pairs)
        say(
            f"{r['model']:12} {r['schedule']:12} {r['predicted_seconds'] * 1e3:7.1f} ms "  # type: ignore[operator]
            f"{r['measured_seconds'] * 1e3:7.1f} ms  {error:+6.1%}  {over:7.2f}    {bytes_}"  # type: ignore[operator]
        )


def summary(rows: list[dict[str, object]]) -> None:
    """Median and worst of the two errors."""
    times = [abs(r["predicted_seconds"] / r["measured_seconds"] - 1) for r in rows]  # type: ignore[operator]
    held = [
        abs(p / c - 1)
        for r in rows
        for p, c in zip(r["predicted_bytes"], r["counted_bytes"], strict=True)  # type: ignore[call-overload]
    ]
    for what, errors in (("step time", times), ("peak bytes", held)):
        worst = max(errors)
        say(f"{what}: error {statistics.median(errors):.1%} in the median, {worst:.1%} at worst")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(WORKLOADS))
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="of one window")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if not launched():
        return launch("benchmarks.prediction", RANKS, *sys.argv[1:])
    pin()
    rows: list[dict[str, object]] = []
    with process_group(device="cpu"):
        for name in options.models.split(","):
            found = cells(name, options.windows, options.rounds)
            table(found)
            rows += found
        summary(rows)
    keep(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
