"""What a GPU shows: prediction against reality, the allocator's peak, offload behind compute.

    python -m benchmarks.gpu                  refused where there is no GPU
    python -m benchmarks.gpu --device cpu     the same road at a size for a CPU

1. Four stages on one device, in one process: the stages, steps and workspaces are measured, the
   step's time and peak bytes predicted, then run.
2. One stage under GPipe with all microbatches in flight: as it is, and with saved values in host
   memory so that a share of the peak suffices. Copies run on streams of their own. How much of
   their time lies beside a computation is read off the predicted timeline, and off a recorded run.
"""

import argparse
import gc
import statistics
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks._exit import exit_status, positive
from benchmarks._models import WORKLOADS, Transformer, Workload, loss_of, tokens
from benchmarks._ranks import pin
from benchmarks.prediction import PASSES, adam
from pipec.cli.profile import this_kind
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.compiler.timeline import plan_timeline
from pipec.errors import CostError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import InputKind, Source
from pipec.passes.insert_offload import InsertOffload
from pipec.plan.model import Plan
from pipec.runtime.allocations import CudaAllocator, counting
from pipec.runtime.device import device_of
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.recording import collect_rows, record
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.timeline import Timeline

MICROBATCHES = 8
SECONDS = 0.5
"""For which each stage is measured."""
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
        model, x, y = self.workload.make_seeded(MICROBATCHES)
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

    def measure(self, plan: Plan, batch: Batch) -> Plan:
        """The plan with its stages' costs here."""
        found = Profiler(plan, batch, Settings(adam), compute=device_of(self.device))
        return found.measure(SECONDS).apply(plan, self.kind)

    def time_step(self, plan: Plan, timeline: Timeline, batch: Batch) -> tuple[float, int, float]:
        """Median seconds of a step, the most bytes held, and the share of copies that is hidden."""
        gc.collect()  # what earlier parts held
        before, order = self.count_bytes(), timeline.schedule
        plan = plan.replace(schedule=order, timeline=timeline)
        pipeline = LocalPipeline(plan, batch, Settings(adam), device=self.device)
        with counting(pipeline.executors[0]) as memory:
            pipeline.round()
            memory.reset()
            pipeline.round()
            peak = memory.peak - before
        took = []
        for _ in range(self.rounds):
            self.wait()
            begin = time.perf_counter()
            pipeline.round()
            self.wait()
            took.append(time.perf_counter() - begin)
        return statistics.median(took), peak, self.measure_overlap(pipeline, order)

    def measure_overlap(self, pipeline: LocalPipeline, order: Schedule) -> float:
        """The share of the copies that lay beside a computation in one more step."""
        record(pipeline)
        pipeline.round()
        rows = collect_rows(pipeline) or {}
        return overlap(order, {int(row[0]): (row[1], row[2]) for row in rows[0].tolist()})

    def count_bytes(self) -> int:
        """Bytes on the GPU now; on a CPU only those of a pipeline are counted."""
        return 0 if self.device == "cpu" else CudaAllocator(torch.device(self.device)).reset()

    def wait(self) -> None:
        """Until the device is idle."""
        if self.device != "cpu":
            torch.cuda.synchronize()


def overlap(order: Schedule, spans: dict[int, tuple[float, float]]) -> float:
    """The share of the time of copies during which the device computes; 1 where there is none.

    Args:
        order: Schedule of one device.
        spans: Place in its row to begin and end.
    """
    copies = {ActionKind.OFFLOAD, ActionKind.FETCH}
    kinds = {place: order[place].kind for place in spans}
    work = [s for place, s in spans.items() if kinds[place].is_compute]
    moved = [s for place, s in spans.items() if kinds[place] in copies]
    beside = sum(max(0.0, min(b, d) - max(a, c)) for a, b in moved for c, d in work)
    whole = sum(b - a for a, b in moved)
    return beside / whole if whole else 1.0


def line(what: str, timeline: Timeline, found: tuple[float, int, float]) -> None:
    """Seconds and bytes, predicted and real."""
    seconds, held = timeline.seconds, timeline.peak_bytes[0]
    took, peak, _ = found
    print(
        f"{what:28} {seconds * 1e3:8.1f} ms predicted {took * 1e3:8.1f} ms measured "
        f"{seconds / took - 1:+6.1%}   {held / 1e6:8.1f} MB predicted {peak / 1e6:8.1f} MB held "
        f"{held / peak - 1:+6.1%}",
        flush=True,
    )


def several_stages(bench: Bench) -> None:
    """Four stages that share one device."""
    plan, batch = bench.plan(4)
    plan = bench.measure(plan, batch)
    order = complete(generate("interleaved", 4, MICROBATCHES, chunks=4), plan)
    timeline = plan_timeline(plan, order)
    line("four stages, one device", timeline, bench.time_step(plan, timeline, batch))


def offload(bench: Bench) -> None:
    """GPipe on one stage, with and without saved values in host memory."""
    plain, batch = bench.plan(1)
    compute = generate("gpipe", 1, MICROBATCHES)
    order = complete(compute, plain)
    plan = bench.measure(plain, batch)
    first = plan_timeline(plan, order)
    alone = bench.time_step(plan, first, batch)
    line("all on the device", first, alone)
    before = plan_timeline(plain, order).peak_bytes[0]
    moved = InsertOffload(SHARE * before, generator="gpipe", microbatches=MICROBATCHES).run(plain)
    nbytes = sum(slot.nbytes for slot in moved.slots) * MICROBATCHES
    plan = bench.measure(moved, batch)
    order = complete(compute, plan)
    timeline = plan_timeline(plan, order)
    took = bench.time_step(plan, timeline, batch)
    line(f"{nbytes / 1e6:.0f} MB to the host", timeline, took)
    spans = enumerate(zip(timeline.begin.tolist(), timeline.end.tolist(), strict=True))
    saved, real = first.peak_bytes[0] - timeline.peak_bytes[0], alone[1] - took[1]
    print(
        f"beside computations lie {overlap(order, dict(spans)):.0%} of the copies as predicted, "
        f"{took[2]:.0%} as recorded; saved are {real / saved:.1%} of the bytes promised"
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
    if device == "cpu":
        return Bench(device, "cpu", WORKLOADS["transformer"], rounds)
    big = Workload(lambda: Transformer(8, 1024, 8000), tokens, 32)
    return Bench(device, this_kind(device), big, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args()
    pin()

    def run() -> None:
        """Both parts."""
        bench = bench_on(options.device, options.rounds)
        several_stages(bench)
        offload(bench)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
