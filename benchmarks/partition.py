"""Speed and quality of cuts: ``python -m benchmarks.partition [PART ...]``.

``workloads`` times the published problems in PIPEC_DATA beside an exact dynamic program over all
ideals that runs on the spot (at most 120 s each); ``planner`` times PipeDream's beside published
seconds; ``generated`` cuts graphs like the published ones and random DAGs, beside the same
program; ``scaling`` cuts synthetic graphs of up to 100,000 nodes against the work bound; ``chunks``
compares one and two chunks per device. Every line states the bound next
to the value. Seconds are of the processor, so that what else runs on the machine does not count.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from benchmarks.synthetic import FAMILIES
from pipec.partition.chunks.solve import solve_chunks
from pipec.partition.costgraph import CostGraph
from pipec.partition.devices import Device
from pipec.partition.formats.workload import Workload, read_workload
from pipec.partition.replicas.plan import ReplicatedPlan, plan_replicated
from pipec.partition.replicas.recurrence import Level
from pipec.partition.solve import solve_contiguous
from pipec.partition.units import make_units
from tests.partition.families import branches, priced, scattered, trained

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[2] / "shared" / "data"))
DEVICES, GENERATED_SECONDS, RUNS = 4, 20, 3
EXACT_SECONDS = 120  # the exact dynamic program does not end on layer_inceptionv3_inference
# published figures, not of this run: seconds of PipeDream's optimizer (Narayanan et al., SOSP'19,
# its Python program) on four workers, read once on a two-core machine
OPTIMIZER = {"vgg16": 0.36, "alexnet": 0.28, "resnet50": 0.74, "gnmt": 0.35}


def _children() -> float:
    """Processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def exact_dp(workload: Workload, program: Path, most: float = EXACT_SECONDS) -> tuple[float, float]:
    """Optimum and seconds of the peer, ``exact_dp.cpp``, as a whole process."""
    graph = workload.graph
    units = make_units(graph, graph.seconds[None])
    bytes_ = np.where(np.isfinite(units.weight_bytes), units.weight_bytes, 0.0)
    limit = min(workload.memory_bytes, 1e300)
    lines = [f"{units.size} {workload.accelerators} {workload.cpus} {limit!r}"]
    work = np.minimum(units.work, 1e200)
    lines += [f"{a!r} {b!r} {c!r}" for a, b, c in zip(*work.tolist(), bytes_.tolist(), strict=True)]
    lines += [str(len(units.edges)), *(f"{u} {v}" for u, v in units.edges.tolist())]
    lines += [str(len(units.pin_ptr) - 1)]
    for price, a, b in zip(units.cost[0], units.pin_ptr[:-1], units.pin_ptr[1:], strict=True):
        lines.append(f"{float(price)!r} {b - a} " + " ".join(map(str, units.pin[a:b].tolist())))
    began = _children()
    run = subprocess.run(
        [str(program)],
        input="\n".join(lines),
        check=True,
        capture_output=True,
        text=True,
        timeout=most,
    )
    return float(run.stdout.split()[0]), _children() - began


def _compile(folder: str) -> Path:
    program = Path(folder, "exact_dp")
    source = Path(__file__).with_name("exact_dp.cpp")
    subprocess.run(["g++", "-O3", "-std=c++17", str(source), "-o", str(program)], check=True)
    return program


def workloads() -> None:
    """Whole command, start of the interpreter included, beside the exact dynamic program."""
    with TemporaryDirectory() as folder:
        program = _compile(folder)
        for path in sorted((DATA / "dnn-partitioning").glob("*.json")):
            command = [
                str(Path(sys.executable).with_name("pipec")),
                "partition",
                str(path),
                "--json",
            ]
            began = _children()
            run = subprocess.run(command, check=True, capture_output=True)
            whole = _children() - began
            cut = json.loads(run.stdout)
            line = (
                f"{path.stem:30} load {cut['max_load']:9.4f}  bound {cut['lower_bound']:9.4f}  "
                f"command {whole:.3f} s"
            )
            try:
                optimum, slow = exact_dp(read_workload(path), program)
                line += f"  exact DP {optimum:9.4f} in {slow:.3f} s, {slow / whole:.1f} times ours"
            except subprocess.TimeoutExpired:
                line += f"  exact DP not done in {EXACT_SECONDS} s"
            print(line, flush=True)


def scaling() -> None:
    """Synthetic graphs; communication 0.1 and 2 times the mean node work."""
    for name, make in FAMILIES.items():
        for n in (300, 1_000, 10_000, 100_000):
            for communication in (0.1, 2.0):
                graph = make(n, communication)
                for k in (8, 64):
                    if k * 8 > n:
                        continue
                    began = process_time()
                    cut = solve_contiguous(graph, [Device("gpu")] * k)
                    seconds = process_time() - began
                    print(
                        f"{name:16} n {graph.size:6} k {k:2} communication {communication}  "
                        f"over bound {cut.max_load / cut.lower_bound - 1:8.4%}  "
                        f"{seconds:6.2f} s  {cut.method}"
                    )


def _generate() -> Iterator[tuple[str, CostGraph]]:
    for modules, communication in ((4, 0.3), (8, 0.3), (8, 1.0), (20, 0.3)):
        shape = branches(modules, 4, 4, modules)
        for kind, make in (("inference", priced), ("training", trained)):
            yield f"{modules} modules, {kind}, {communication}", make(shape, communication, 1)
    for size, degree in ((24, 3), (40, 4), (60, 4), (100, 6)):
        for communication in (0.1, 0.5):
            shape = scattered(size, degree, size)
            yield f"random DAG, {communication}", priced(shape, communication, 1)


def run_generated() -> None:
    """Inception-like graphs, their training, and random DAGs, beside the exact dynamic program."""
    with TemporaryDirectory() as folder:
        program = _compile(folder)
        for name, graph in _generate():
            began = process_time()
            cut = solve_contiguous(graph, [Device("gpu")] * DEVICES, exactly=False, time_limit=20)
            seconds = process_time() - began
            line = (
                f"{name:32} nodes {graph.size:4}  load {cut.max_load:8.4f}  bound "
                f"{cut.lower_bound:8.4f}  gap {cut.gap:7.3%}  {seconds:6.2f} s"
            )
            both = replace(graph, classes=("gpu", "cpu"), work=np.repeat(graph.work, 2, axis=0))
            workload = Workload(both, priced=True, accelerators=DEVICES)
            try:
                optimum, slow = exact_dp(workload, program, GENERATED_SECONDS)
                line += f"  exact DP {optimum:8.4f} in {slow:.2f} s"
            except subprocess.TimeoutExpired:
                line += f"  exact DP not done in {GENERATED_SECONDS} s"
            print(line, flush=True)


def chunks() -> None:
    """Two chunks per device on the published workloads, 25 s each."""
    for path in sorted((DATA / "dnn-partitioning").glob("*.json")):
        workload = read_workload(path)
        devices = workload.devices(cpus=0)
        one = solve_contiguous(workload.graph, devices, exactly=False)
        line = f"{path.stem:30} contiguous {one.max_load:9.4f}"
        began = process_time()
        two = solve_chunks(workload.graph, devices, 2, time_limit=25)
        seconds = process_time() - began
        line += f"  two {two.max_load:9.4f} [{two.lower_bound:.4f}] {seconds:.1f} s"
        print(line)


def _plan(graph: CostGraph, workers: int) -> tuple[float, ReplicatedPlan]:
    began = process_time()
    plan = plan_replicated(graph, [Level(workers, 1e9)])
    return process_time() - began, plan


def planner() -> None:
    """PipeDream's planner on the published profiles."""
    for name, reference in OPTIMIZER.items():
        graph = read_workload(DATA / "pipedream-profiles" / f"{name}.txt").graph
        for workers in (4, 16, 64):
            plans = [_plan(graph, workers) for _ in range(RUNS)]
            seconds, plan = min(plans, key=itemgetter(0))  # the first one also imports
            ratio = (
                f"  published optimizer / ours {reference / seconds:.0f}" if workers == 4 else ""
            )
            print(
                f"{name:9} {workers:2} workers  {plan.configuration:32} "
                f"{plan.seconds:.6f} s per minibatch  solved in {seconds:.4f} s{ratio}"
            )


if __name__ == "__main__":
    parts = {f.__name__: f for f in (workloads, run_generated, scaling, chunks, planner)}
    for part in sys.argv[1:] or list(parts):
        parts[part]()
