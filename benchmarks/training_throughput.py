"""Throughput of training against torch.distributed.pipelining and DeepSpeed, 2 processes on gloo.

    python -m benchmarks.training_throughput                 all cells, about 15 minutes
    python -m benchmarks.training_throughput --cells cnn:1f1b,edsr:1f1b:ours --windows 4

Same model, optimizer, threads and, unless a cell says ``ours``, the same cut as torch. All run in
the same two processes and take turns, so that a busy machine slows all; a ratio is the median of
those of neighbouring windows, with its quartiles. The bound is the schedule's own: its makespan
with the processor time of our stages, messages for free. In cells that say ``ours`` we cut by
measured costs, torch by equal numbers of layers; the ideal ratio is that of the bounds of both
cuts, profiled in the same minute: what a ratio has beyond it is not the cut's merit.

DeepSpeed's PipelineModule takes part under 1F1B, which is its only schedule, with the models that
are a chain of layers, once per way in which it cuts; the better way counts
(`benchmarks/_deepspeed.py` says how to install it).
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks._deepspeed import METHODS, deepspeed_step, find_deepspeed, layers_of
from benchmarks._exit import positive
from benchmarks._ranks import is_rank, keep, launch, pin, quartiles, say
from benchmarks._uneven import workload
from benchmarks.prediction import PASSES, node_costs
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source, origin
from pipec.plan.model import Partition, Plan, cut_stages
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Placement, Schedule
from pipec.simulate.simulate import simulate

MICROBATCHES, LR = 8, 0.01
SCHEDULES = {"1f1b": 2, "gpipe": 2, "interleaved": 4}
"""Schedule to its stages on two ranks."""
CELLS = (
    "transformer:1f1b,transformer:gpipe,transformer:interleaved,cnn:1f1b,cnn:gpipe,"
    "cnn:interleaved,gpt2:1f1b:ours,distilgpt2:1f1b:ours,edsr:1f1b:ours,densenet:1f1b:ours,"
    "tiny_yolo:1f1b:ours,unet:1f1b:ours"
)
Step = Callable[[], float | None]


@dataclass(frozen=True)
class Cell:
    """One comparison: a model under a schedule, and who cuts.

    Attributes:
        model: Its name.
        schedule: The schedule's name.
        ours: Whether our side cuts by itself.
    """

    model: str
    schedule: str
    ours: bool

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """From ``model:schedule`` or ``model:schedule:ours``."""
        model, schedule, *rest = text.split(":")
        return cls(model, schedule, rest == ["ours"])

    @property
    def stages(self) -> int:
        """How many there are."""
        return SCHEDULES[self.schedule]

    def choose_cuts(self, model: nn.Module) -> list[str]:
        """Layers at which equal numbers of layers begin."""
        layers = model.layers
        assert isinstance(layers, nn.ModuleList)
        return [f"layers.{k * len(layers) // self.stages}" for k in range(1, self.stages)]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR)


def cut_at(graph: Graph, layers: Sequence[str], cluster: str, schedule: str) -> Plan:
    """A plan whose stages begin at the named layers."""
    names = [n.name for n in graph.calls]
    of = [origin(n).name for n in graph.calls]
    starts = [next(k for k, o in enumerate(of) if f"{o}.".startswith(f"{at}.")) for at in layers]
    edges = [0, *starts, len(names)]
    rows = [names[a:b] for a, b in pairwise(edges)]
    stage_of = {name: k for k, row in enumerate(rows) for name in row}
    seconds, stages = (1.0,) * len(rows), cut_stages(graph, stage_of, len(rows))
    partition = Partition(stage_of, seconds, 1.0, proven=False, answers="", method="by name")
    place = Placement.together(generate(schedule, len(rows), MICROBATCHES).placement.forward)
    plan = Plan(graph, parse_cluster(cluster), partition=partition, stages=stages, placement=place)
    return make_stages(plan)


def make_stages(plan: Plan) -> Plan:
    """Costs, placement, channels and backward graphs of a plan that is cut."""
    for each in parse_pipeline("annotate-cost,insert-comm,differentiate,time-stages"):
        plan = each.run(plan)
    return plan


@dataclass(frozen=True)
class Ours:
    """Our side.

    Attributes:
        step: Trains one step.
        bound: Seconds that the schedule takes at least.
        uniform: The same of the cut that torch makes.
    """

    step: Step
    bound: float
    uniform: float


def ours(cell: Cell, model: nn.Module, x: Tensor, y: Tensor) -> Ours:
    """Our side of a comparison."""
    chosen, cluster = workload(cell.model), f"{cell.stages}xcpu"
    rows, source = chosen.rows, Source("memory", "")
    graph = trace(model, (x[:rows],), loss=Loss(chosen.loss, y[:rows]), source=source)
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]

    def batch(k: int) -> dict[str, Tensor]:
        part = slice(k % MICROBATCHES * rows, (k % MICROBATCHES + 1) * rows)
        return dict(zip(names, (x[part], y[part]), strict=True))

    plan = cut_at(graph, cell.choose_cuts(model), cluster, cell.schedule)
    order, bound = bound_seconds(cell, plan, batch)
    uniform = bound
    if cell.ours:
        costs = node_costs(graph, batch(0))
        passes = parse_pipeline(PASSES)
        plan = make_plan(graph, parse_cluster(cluster), passes=passes, costs=costs)
        order, bound = bound_seconds(cell, plan, batch)
    pipeline = DistributedPipeline(plan, batch, Settings(sgd), schedule=order, device="cpu")

    def step() -> float | None:
        losses = pipeline.round().losses
        return float(sum(losses.values())) / len(losses) if losses else None

    return Ours(step, bound, uniform)


def bound_seconds(cell: Cell, plan: Plan, batch: Batch) -> tuple[Schedule, float]:
    """A plan's schedule, and the seconds that it takes at least with its stages as measured."""
    order = complete(generate(cell.schedule, cell.stages, MICROBATCHES), plan)
    measured = Profiler(plan, batch, Settings(sgd), clock=time.thread_time).measure(0.5)
    assert plan.costs is not None
    known = plan.replace(costs=measured.add_to(plan.costs, plan, "cpu"))
    return order, simulate(order, plan_facts(known).times(order)).seconds


def theirs(cell: Cell, cut: Sequence[str], model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """torch.distributed.pipelining, cut before the named layers."""
    from torch.distributed.pipelining import (
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        SplitPoint,
        pipeline,
    )

    rank, chosen = dist.get_rank(), workload(cell.model)
    rows, loss_of = chosen.rows, chosen.loss
    spec = dict.fromkeys(cut, SplitPoint.BEGINNING)
    pipe = pipeline(model, mb_args=(x[:rows],), split_spec=spec)
    own = range(rank, cell.stages, dist.get_world_size())
    stages: list[Any] = [pipe.build_stage(k, torch.device("cpu")) for k in own]
    runner = (
        ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss_of)
        if cell.schedule == "interleaved"
        else {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[cell.schedule](
            stages[0], MICROBATCHES, loss_fn=loss_of
        )
    )
    optimizer = sgd([p for s in stages for p in s.submod.parameters()])

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            runner.step(x)
        else:
            runner.step(target=y, losses=losses)
        optimizer.step()
        return float(sum(losses)) / len(losses) if losses else None

    return step


def time_step(step: Step, repeats: int) -> tuple[float, float | None]:
    """Seconds of one step, all ranks together, and the last loss."""
    dist.barrier()
    begin, loss = time.perf_counter(), None
    for _ in range(repeats):
        loss = step()
    dist.barrier()
    return (time.perf_counter() - begin) / repeats, loss


def contenders(cell: Cell, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Step]:
    """The steps of the others, by name."""
    found = {"torch": theirs(cell, cell.choose_cuts(model), copy.deepcopy(model), x, y)}
    layers = layers_of(copy.deepcopy(model))
    if cell.schedule == "1f1b" and layers is not None and find_deepspeed():
        for method in METHODS:
            found[f"DeepSpeed {method}"] = deepspeed_step(cell.model, layers, x, y, method, LR)
            layers = layers_of(copy.deepcopy(model))
            assert layers is not None
    return found


def compare(cell: Cell, windows: int, repeats: int) -> dict[str, object]:
    """Medians of all, and of our ratios to the others."""
    model, x, y = workload(cell.model).make_seeded(MICROBATCHES)
    own = ours(cell, copy.deepcopy(model), x, y)
    steps = {"pipec": own.step, **contenders(cell, model, x, y)}
    losses = {name: time_step(step, 2)[1] for name, step in steps.items()}
    took: dict[str, list[float]] = {name: [] for name in steps}
    for window in range(windows):
        for name in steps if window % 2 == 0 else reversed(steps):
            took[name].append(time_step(steps[name], repeats)[0])
    gathered: list[dict[str, float | None]] = [{}] * dist.get_world_size()
    dist.all_gather_object(gathered, losses)
    first = took["pipec"]
    ratios = {
        name: quartiles([b / a for a, b in zip(first, took[name], strict=True)])
        for name in steps
        if name != "pipec"
    }
    return {
        "cell": f"{cell.model} {cell.schedule}{', our cut' if cell.ours else ''}",
        "speed": {name: len(x) / statistics.median(t) for name, t in took.items()},
        "ratios": ratios,
        "bound": own.bound / statistics.median(first),
        "ideal": own.uniform / own.bound if cell.ours else None,
        "losses": gathered[-1],
    }


def show(r: dict[str, Any]) -> None:
    """One line for us, and one for each of the others."""
    ideal = f", ideal ratio of the cuts {r['ideal']:.3f}" if r["ideal"] else ""
    say(
        f"{r['cell']:26} pipec {r['speed']['pipec']:7.1f} samples/s, "
        f"{r['bound']:.0%} of its bound{ideal}, loss {r['losses']['pipec']:.5f}"
    )
    for name, (low, middle, high) in r["ratios"].items():
        say(
            f"  {name:24} {r['speed'][name]:13.1f} samples/s, ratio {middle:.3f} "
            f"({low:.3f} to {high:.3f}), loss {r['losses'][name]:.5f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--windows", type=positive, default=10)
    parser.add_argument("--repeats", type=positive, default=2)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if not is_rank():
        return launch("benchmarks.training_throughput", 2, *sys.argv[1:])
    pin()
    rows = []
    with process_group(device="cpu"):
        for text in options.cells.split(","):
            rows.append(compare(Cell.parse(text), options.windows, options.repeats))
            show(rows[-1])
    keep(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
