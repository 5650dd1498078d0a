"""What a GPU shows: prediction against reality, the allocator's peak, offload behind compute.

    python -m benchmarks.gpu                  refused where there is no GPU
    python -m benchmarks.gpu --device cpu     the same road at a size for a CPU

1. Four stages on one device, in one process: the stages, steps and workspaces are measured, the
   step's time and peak bytes predicted, then run.
2. One stage under GPipe with all microbatches in flight: as it is, and with saved values in host
   memory so that a share of the peak suffices. Copies run on a stream of their own: what the step
   takes longer, beside what the copies take alone, says how much of them compute hides.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks._models import Transformer, Workload, loss_of, workload
from benchmarks._ranks import pin
from benchmarks.prediction import PASSES, adam
from pipec.cli.profile import this_kind
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import completed
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.compiler.timeline import plan_timeline
from pipec.errors import CostError, PipecError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import InputKind, Source
from pipec.passes.insert_offload import InsertOffload
from pipec.plan.model import Plan
from pipec.runtime.allocations import counting
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.local import LocalPipeline
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule

MICROBATCHES = 8
SHARE = 0.6
"""Of the peak without offload that the plan with offload may use."""


@dataclass(frozen=True)
class Bench:
    """Where, and what.

    Attributes:
        device: As torch calls it.
        kind: As clusters call it.
        workload: The model.
        rounds: Steps that are timed.
    """

    device: str
    kind: str
    workload: Workload
    rounds: int

    def plan(self, stages: int) -> tuple[Plan, Batch]:
        """A differentiated plan and its data, on the device."""
        model, x, y = self.workload.seeded(MICROBATCHES)
        rows = self.workload.rows
        loss = Loss(loss_of, y[:rows])
        graph = trace(model, (x[:rows],), loss=loss, source=Source("memory", ""))
        names = [i.name for i in graph.inputs_of(InputKind.INPUT)]
        x, y = x.to(self.device), y.to(self.device)

        def batch(k: int) -> dict[str, Tensor]:
            part = slice(k % MICROBATCHES * rows, (k % MICROBATCHES + 1) * rows)
            return dict(zip(names, (x[part], y[part]), strict=True))

        cluster = parse_cluster(f"{stages}x{self.kind}")
        return make_plan(graph, cluster, passes=parse_pipeline(PASSES)), batch

    def measured(self, plan: Plan, batch: Batch) -> Plan:
        """The plan with its stages' costs here."""
        found = Profiler(plan, batch, Settings(adam), compute=device_of(self.device))
        return found.measure(2.0).on(plan, self.kind)

    def run(self, plan: Plan, order: Schedule, batch: Batch) -> tuple[float, int]:
        """Median seconds of a step, and the most bytes held."""
        settings = Settings(adam)
        pipeline = LocalPipeline(plan, batch, settings, schedule=order, device=self.device)
        with counting(pipeline.executors[0]) as memory:
            pipeline.round()
            memory.reset()
            pipeline.round()
            peak = memory.peak
        took = []
        for _ in range(self.rounds):
            self.wait()
            begin = time.perf_counter()
            pipeline.round()
            self.wait()
            took.append(time.perf_counter() - begin)
        return statistics.median(took), peak

    def wait(self) -> None:
        """Until the device is idle."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def copy_seconds(self, nbytes: int) -> float:
        """Of one copy to pinned memory and back, alone."""
        there = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.device != "cpu")
        took = []
        for _ in range(5):
            self.wait()
            begin = time.perf_counter()
            host.copy_(there, non_blocking=True)
            there.copy_(host, non_blocking=True)
            self.wait()
            took.append(time.perf_counter() - begin)
        return statistics.median(took)


def line(what: str, predicted: tuple[float, float], found: tuple[float, float]) -> None:
    """Seconds and bytes, predicted and real."""
    (seconds, held), (took, peak) = predicted, found
    print(
        f"{what:28} {seconds * 1e3:8.1f} ms predicted {took * 1e3:8.1f} ms measured "
        f"{seconds / took - 1:+6.1%}   {held / 1e6:8.1f} MB predicted {peak / 1e6:8.1f} MB held "
        f"{held / peak - 1:+6.1%}",
        flush=True,
    )


def several_stages(bench: Bench) -> None:
    """Four stages that share one device."""
    plan, batch = bench.plan(4)
    plan = bench.measured(plan, batch)
    order = completed(generate("interleaved", 4, MICROBATCHES, chunks=4), plan)
    timeline = plan_timeline(plan, order)
    predicted = timeline.seconds, timeline.peak_bytes[0]
    line("four stages, one device", predicted, bench.run(plan, order, batch))


def offload(bench: Bench) -> None:
    """GPipe on one stage, with and without saved values in host memory."""
    plain, batch = bench.plan(1)
    compute = generate("gpipe", 1, MICROBATCHES)
    order = completed(compute, plain)
    plan = bench.measured(plain, batch)
    timeline = plan_timeline(plan, order)
    whole = timeline.peak_bytes[0]
    alone = bench.run(plan, order, batch)
    line("all on the device", (timeline.seconds, whole), alone)
    before = plan_timeline(plain, order).peak_bytes[0]
    moved = InsertOffload(SHARE * before, generator="gpipe", microbatches=MICROBATCHES).run(plain)
    nbytes = sum(slot.nbytes for slot in moved.slots) * MICROBATCHES
    plan = bench.measured(moved, batch)
    order = completed(compute, plan)
    timeline = plan_timeline(plan, order)
    took = bench.run(plan, order, batch)
    line(f"{nbytes / 1e6:.0f} MB to the host", (timeline.seconds, timeline.peak_bytes[0]), took)
    copies = bench.copy_seconds(nbytes)
    added = max(0.0, took[0] - alone[0])
    print(
        f"the copies alone take {copies * 1e3:.1f} ms, the step takes {added * 1e3:.1f} ms longer: "
        f"{max(0.0, 1 - added / copies):.0%} hidden; peak {took[1] / alone[1]:.2f} of before"
    )


def bench_on(device: str, rounds: int) -> Bench:
    """What runs on a device.

    Raises:
        CostError: There is no such GPU here, or it is of no known kind.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise CostError(
            "this machine has no usable GPU", got=device, hint="--device cpu runs the same road"
        )
    from benchmarks._models import tokens

    if device == "cpu":
        return Bench(device, "cpu", workload("transformer"), rounds)
    big = Workload(lambda: Transformer(12, 1024, 16000), tokens, 64)
    return Bench(device, this_kind(device), big, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pin()
    try:
        bench = bench_on(options.device, options.rounds)
        several_stages(bench)
        offload(bench)
    except PipecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
