"""Stub stages that sleep, on up to 8 ranks: makespan of every schedule beside the simulator's.

    python -m benchmarks.stub_stages            8 ranks, all schedules
    python -m benchmarks.stub_stages --ranks 4 --schedules 1f1b,zbv

A sleeping stage leaves the processor to others, so eight ranks fit on two cores, and what is seen
is order and waiting alone. Stages are unlike each other (their times are below). Two predictions
stand beside each makespan: of the times that stages are set to sleep (``asked``), and of what
``pipec profile`` finds on these ranks before anything is run (``predicted``): how long a stage
really sleeps, the interpreter, what a message takes at both ends and in between.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

from benchmarks._exit import positive
from benchmarks._models import loss_of
from benchmarks._ranks import is_rank, keep, launch, pin, say
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.compiler.timeline import plan_timeline
from pipec.errors import PipecError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.stage import Callables
from pipec.schedule.registry import generate, names, stages_on
from pipec.schedule.schedule import Schedule
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

PASSES = "simplify,annotate-cost,partition,insert-comm,differentiate,time-stages"
SHARES = {"F": 1.0, "B": 2.0, "I": 1.1, "W": 0.9}


class Tower(nn.Module):
    """Layers of growing width, so that no two stages have the same graph."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        widths = range(4, 5 + stages)
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def unit(stage: int) -> float:
    """How long a stage takes, relative to others: 0.8 to 1.2 in an uneven order."""
    return 0.8 + 0.1 * (stage * 3 % 5)


def plan_of(stages: int) -> tuple[Plan, Batch]:
    """A tower that is cut behind every layer."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 4), torch.randint(0, 4, (2,))
    loss = Loss(loss_of, y)
    graph = trace(Tower(stages), (x,), loss=loss, source=Source("memory", ""))
    plan = make_plan(graph, parse_cluster(f"{stages}xcpu"), passes=parse_pipeline(PASSES))
    given = dict(zip([i.name for i in graph.inputs_of(InputKind.INPUT)], (x, y), strict=True))
    return plan, lambda _: given


def times_of(stages: int, seconds: float) -> Times:
    """The times of all stages, as the simulator takes them."""
    columns = ([seconds * s * unit(k) for k in range(stages)] for s in SHARES.values())
    return Times.of_stages(*columns)


def sleepers(plan: Plan, seconds: float) -> Settings:
    """Stages that sleep as long as `times_of` says, and yield zeros."""
    took: dict[int, float] = {}
    for stage in plan.stages:
        assert stage.training is not None
        for kind, share in SHARES.items():
            module = getattr(stage.training.lower(), kind).module
            assert id(module) not in took, "two stages share a graph"
            took[id(module)] = seconds * share * unit(stage.index)

    def stub(module: fx.GraphModule) -> Callables:
        node = next(n for n in module.graph.nodes if n.op == "output")
        values = [o.meta["val"] for o in node.args[0]]
        results = tuple(torch.zeros(v.shape, dtype=v.dtype) for v in values)
        wanted = took[id(module)]

        def asleep(*_: Tensor) -> tuple[Tensor, ...]:
            time.sleep(wanted)
            return results

        return asleep

    return Settings(None, compiled=stub)


def makespan(pipeline: DistributedPipeline, rounds: int) -> float:
    """Median seconds of a round, from a common start to the last rank's end."""
    pipeline.round()
    found = []
    for _ in range(rounds):
        dist.barrier()
        begin = time.perf_counter()
        pipeline.round()
        dist.barrier()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


@dataclass
class Stubs:
    """Stages that sleep, and what was measured of them.

    Attributes:
        plan: With the measured costs.
        batch: The data.
        settings: With stages that sleep.
    """

    plan: Plan
    batch: Batch
    settings: Settings

    @classmethod
    def of(cls, stages: int, seconds: float) -> "Stubs":
        """Stages of a tower, measured on all ranks."""
        plan, batch = plan_of(stages)
        settings = sleepers(plan, seconds)
        devices = max(stages, dist.get_world_size())  # PipeFB runs a stage on two
        plan = plan.replace(cluster=parse_cluster(f"{devices}xcpu"))
        return cls(Profiler(plan, batch, settings).measure(0.0).apply(plan, "cpu"), batch, settings)


def suitable(wanted: Sequence[str], microbatches: int) -> Iterator[tuple[str, Schedule]]:
    """Schedules of compute actions that these ranks can run; of the others, why not."""
    world = dist.get_world_size()
    for name in wanted:
        try:
            compute = generate(name, stages_on(name, world, microbatches), microbatches)
        except PipecError as error:
            say(f"{name:14} cannot serve {world} ranks: {str(error).splitlines()[0]}")
            continue
        if compute.lanes.compute == "split" or not compute.training:
            say(f"{name:14} not for ranks that do one thing at a time")
            continue
        yield name, compute


def run_all(
    wanted: Sequence[str], microbatches: int, seconds: float, rounds: int
) -> list[dict[str, object]]:
    """A row per schedule."""
    stubs, rows = dict[int, Stubs](), list[dict[str, object]]()
    say("schedule        stages  actions      asked   predicted    measured   error  (of asked)")
    for name, compute in suitable(wanted, microbatches):
        stages = compute.stages
        if stages not in stubs:
            stubs[stages] = Stubs.of(stages, seconds)
        it = stubs[stages]
        order = complete(compute, it.plan)
        requested = simulate(order, times_of(stages, seconds)).seconds
        predicted = plan_timeline(it.plan, order).seconds
        pipeline = DistributedPipeline(it.plan, it.batch, it.settings, schedule=order, device="cpu")
        measured = makespan(pipeline, rounds)
        figures = f"{requested:8.3f} s {predicted:9.3f} s {measured:9.3f} s"
        errors = f"{predicted / measured - 1:+7.2%}  {requested / measured - 1:+7.2%}"
        say(f"{name:14} {stages:7} {len(order):8} {figures} {errors}")
        rows.append(
            {"schedule": name, "stages": stages, "asked": requested}
            | {"predicted": predicted, "measured": measured}
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=positive, default=8)
    parser.add_argument("--microbatches", type=positive, default=16)
    parser.add_argument("--milliseconds", type=float, default=30.0, help="of a forward")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--schedules", default="", help="all by default")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    if not is_rank():
        return launch("benchmarks.stub_stages", options.ranks, *sys.argv[1:])
    pin()
    wanted = [n for n in options.schedules.split(",") if n] or list(names())
    with process_group(device="cpu"):
        rows = run_all(wanted, options.microbatches, options.milliseconds / 1e3, options.rounds)
        for what in ("predicted", "asked"):
            errors = [abs(r[what] / r["measured"] - 1) for r in rows]  # type: ignore[operator]
            middle = f"{statistics.median(errors):.2%} in the median, {max(errors):.2%} at worst"
            say(f"{what}: {middle}, {len(errors)} schedules on {options.ranks} ranks")
    keep(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
