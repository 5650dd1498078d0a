"""Prediction against reality: step time and bytes of 6 models under 5 schedules, 2 processes.

    python -m benchmarks.prediction             all 30 cells, about 12 minutes
    python -m benchmarks.prediction --models transformer,cnn --seconds 60
    python -m benchmarks.prediction --processor

Per model, windows of less than half a minute each, as many as fit into the same time: the stages,
steps and messages of a plan are measured on the two ranks (as ``pipec profile DIRECTORY`` does),
then every schedule of this plan is predicted by its simulated timeline with these costs and run.
Nothing is fitted to a run: within a window, prediction comes first. A cell compares the least
prediction with the least run of all windows, since whatever else a machine does only adds time, and
does so to some windows and not to others; the columns ``apart`` tell by how much predictions and
runs of one cell differed. The other summary takes the median over windows of predicted over
measured of the same window, which also holds what the machine did between the two.

With ``--processor`` all is processor time, which other processes lengthen much less: predicted are
the seconds that both ranks compute and handle messages, measured those of all their threads. It
tells nothing of order and waiting; `benchmarks.stub_stages` does.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks._exit import positive
from benchmarks._models import WORKLOADS, Workload, loss_of
from benchmarks._ranks import is_rank, keep, launch, pin, say
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.compiler.timeline import plan_timeline
from pipec.cost.measure import Measuring, measure_costs
from pipec.cost.table import CostTable
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.allocations import counting
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule

SCHEDULES = {"gpipe": 2, "1f1b": 2, "zb-h1": 2, "interleaved": 4, "pipedream": 2}
"""Schedule to its stages on two devices."""
MICROBATCHES, RANKS = 8, 2
PASSES = "simplify,annotate-cost,partition,insert-comm,differentiate,time-stages"


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def node_costs(graph: Graph, inputs: Mapping[str, Tensor]) -> CostTable:
    """What every node takes on rank 0, sent to all ranks."""
    shared: list[CostTable] = []
    if dist.get_rank() == 0:
        how = Measuring(warmup=1, repeats=5, clock=time.thread_time)
        shared = [measure_costs(graph, inputs, "cpu", how)]
    shared = shared or [CostTable({}, {}, {})]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


HEAD = (
    "model        schedule      predicted   measured   error     apart      x bound   "
    "bytes, each rank"
)


def spread_of(seconds: list[float]) -> float:
    """How far a figure of one window is from that of another, at most."""
    return max(seconds) / min(seconds) - 1


@dataclass
class Row:
    """One line of the table; lists are by window, bytes by rank."""

    model: str
    schedule: str
    predicted: list[float]
    measured: list[float]
    bound: list[float]
    predicted_bytes: tuple[float, ...]
    counted_bytes: list[float]

    @property
    def error(self) -> float:
        """Of step time: the least of the windows against the least."""
        return min(self.predicted) / min(self.measured) - 1

    @property
    def paired_error(self) -> float:
        """Of step time, each window against itself, in the median."""
        pairs = zip(self.predicted, self.measured, strict=True)
        return statistics.median(p / m for p, m in pairs) - 1

    @property
    def byte_errors(self) -> list[float]:
        """Of the peak of each rank."""
        pairs = zip(self.predicted_bytes, self.counted_bytes, strict=True)
        return [p / c - 1 for p, c in pairs]

    def __str__(self) -> str:
        predicted, measured = min(self.predicted) * 1e3, min(self.measured) * 1e3
        over = min(self.measured) / min(self.bound)
        counted = zip(self.counted_bytes, self.byte_errors, strict=True)
        return (
            f"{self.model:12} {self.schedule:12} {predicted:7.1f} ms {measured:7.1f} ms "
            f"{self.error:+6.1%}  {spread_of(self.predicted):5.1%} {spread_of(self.measured):5.1%} "
            f"{over:7.2f}   " + "  ".join(f"{c / 1e6:6.1f} MB {e:+6.1%}" for c, e in counted)
        )


@dataclass
class Cell:
    """One model under one schedule.

    Attributes:
        model: Name of the model.
        stages: Stages of its plan.
        order: The schedule.
        pipeline: What runs.
        predicted: Seconds of a step, by window.
        measured: The same, medians of the windows.
        bound: Seconds of the busiest device, by window.
        peaks: Predicted bytes, by rank.
        held: Counted bytes of this rank.
        processor: Whether seconds are those of both processors, without waiting.
    """

    model: str
    stages: int
    order: Schedule
    pipeline: DistributedPipeline
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    peaks: tuple[float, ...] = ()
    held: float = 0.0
    processor: bool = False

    def predict(self, plan: Plan) -> None:
        """By a plan with the costs of this window."""
        timeline = plan_timeline(plan, self.order)
        use = timeline.lane_use
        shares = sum(use[f"{rank}.compute"] for rank in range(RANKS))  # steps too
        self.predicted.append(timeline.seconds * (shares if self.processor else 1.0))
        self.bound.append(float(timeline.busy.max()))
        self.peaks = timeline.peak_bytes

    def count(self) -> None:
        """Bytes of the second of two rounds, after the optimizer's state is there."""
        with counting(self.pipeline.executors[0]) as memory:
            for _ in range(2):
                self.pipeline.round()
            self.held = memory.peak

    def run_rounds(self, rounds: int) -> None:
        """Rounds between two barriers, after one that does not count."""
        self.pipeline.round()
        seconds = []
        for _ in range(rounds):
            dist.barrier()
            begin, computed = time.perf_counter(), time.process_time()
            self.pipeline.round()
            both = torch.tensor(time.process_time() - computed)
            dist.all_reduce(both)
            wall = time.perf_counter() - begin
            seconds.append(float(both) if self.processor else wall)
        self.measured.append(statistics.median(seconds))

    def row(self) -> Row:
        """Figures of all ranks."""
        held: list[float] = [0.0] * RANKS
        dist.all_gather_object(held, self.held)
        return Row(
            self.model, self.order.name, self.predicted, self.measured, self.bound, self.peaks, held
        )


def plans(workload: Workload) -> tuple[dict[int, Plan], Batch]:
    """A plan per number of stages, and the data."""
    model, x, y = workload.make_seeded(MICROBATCHES)
    rows = workload.rows
    graph = trace(model, (x[:rows],), loss=Loss(loss_of, y[:rows]), source=Source("memory", ""))
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]

    def batch(k: int) -> dict[str, Tensor]:
        part = slice(k % MICROBATCHES * rows, (k % MICROBATCHES + 1) * rows)
        return dict(zip(names, (x[part].clone(), y[part].clone()), strict=True))  # as a loader's

    costs, passes = node_costs(graph, batch(0)), parse_pipeline(PASSES)
    clusters = {n: parse_cluster(f"{n}xcpu") for n in sorted(set(SCHEDULES.values()))}
    return {n: make_plan(graph, c, passes=passes, costs=costs) for n, c in clusters.items()}, batch


def cells(name: str, by_stages: dict[int, Plan], batch: Batch, *, processor: bool) -> list[Cell]:
    """All schedules of one model, ready to run; their bytes counted."""
    made = []
    for schedule, stages in SCHEDULES.items():
        plan = by_stages[stages]
        order = complete(generate(schedule, stages, MICROBATCHES), plan)
        pipeline = DistributedPipeline(plan, batch, Settings(adam), schedule=order, device="cpu")
        made.append(Cell(name, stages, order, pipeline, processor=processor))
        made[-1].count()
    return made


def windows(seconds: float, least: int = 3) -> Iterator[int]:
    """Numbers of windows until ``seconds`` are over on rank 0, but at least so many."""
    began = time.perf_counter()
    for window in itertools.count():
        over = torch.tensor(window >= least and time.perf_counter() - began > seconds)
        dist.broadcast(over, src=0)
        if over:
            return
        yield window


def measure(name: str, seconds: float, rounds: int, *, processor: bool) -> list[Row]:
    """Windows of profile, prediction and run, in turn."""
    began = time.perf_counter()
    by_stages, batch = plans(WORKLOADS[name])
    made = cells(name, by_stages, batch, processor=processor)
    say(f"{name}: compiled in {time.perf_counter() - began:.0f} s", end="", file=sys.stderr)
    clock = time.thread_time if processor else time.perf_counter
    profilers = {
        n: Profiler(p, batch, Settings(adam), keep=True, clock=clock) for n, p in by_stages.items()
    }
    for window in windows(seconds):
        began = time.perf_counter()
        turn = window % len(made)
        for stages, profiler in profilers.items():  # runs follow the profile they are held against
            costs = profiler.measure(0.3).apply(by_stages[stages], "cpu")
            for cell in [*made[turn:], *made[:turn]]:  # none is always the last
                if cell.stages == stages:
                    cell.predict(costs)
                    cell.run_rounds(rounds)
        say(
            f", window {window + 1} in {time.perf_counter() - began:.0f} s", end="", file=sys.stderr
        )
    say(file=sys.stderr)
    return [cell.row() for cell in made]


def summary(rows: list[Row], what: str) -> None:
    """Median and worst of the two errors, and how steady the machine was."""
    steady = [spread_of(r.measured) for r in rows]
    for title, errors in (
        (f"{what}, least of the windows", [abs(r.error) for r in rows]),
        (f"{what}, windows in pairs", [abs(r.paired_error) for r in rows]),
        ("peak bytes", [abs(e) for r in rows for e in r.byte_errors]),
    ):
        worst = max(errors)
        say(f"{title}: error {statistics.median(errors):.1%} in the median, {worst:.1%} at worst")
    middle = statistics.median(steady)
    say(f"runs of one cell were {middle:.1%} apart in the median, {max(steady):.1%} at worst")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=90, help="of windows, each model")
    parser.add_argument("--rounds", type=positive, default=2, help="of one window")
    parser.add_argument("--processor", action="store_true", help="processor time alone")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if not is_rank():
        return launch("benchmarks.prediction", RANKS, *sys.argv[1:])
    pin()
    rows: list[Row] = []
    with process_group(device="cpu"):
        for name in options.models.split(","):
            found = measure(name, options.seconds, options.rounds, processor=options.processor)
            say(HEAD)
            for row in found:
                say(row)
            rows += found
        summary(rows, "processor time" if options.processor else "step time")
    keep(
        options.json,
        [asdict(row) | {"error": row.error, "paired_error": row.paired_error} for row in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
