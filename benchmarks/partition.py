"""Speed and quality of cuts: ``python benchmarks/partition.py [workloads|scaling|chunks|planner]``.

``workloads`` and ``planner`` time the published problems in PIPEC_DATA; ``scaling`` cuts synthetic
graphs of up to 100,000 nodes against the work bound; ``chunks`` compares one and two chunks per
device, with and without OR-tools. Every line states the bound next to the value.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from synthetic import FAMILIES

from pipec.partition import chunk_model
from pipec.partition.chunks import solve_chunks
from pipec.partition.devices import Device
from pipec.partition.replica_dp import Level
from pipec.partition.replicate import plan_replicated
from pipec.partition.solve import solve_contiguous
from pipec.partition.workload import read_workload

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[2] / "shared" / "data"))
# seconds of the exact dynamic program over all ideals (Tarnawski et al., NeurIPS'20, C++), where it
# takes over two seconds, and of PipeDream's optimizer (Narayanan et al., SOSP'19) on four workers
EXACT_DP = {"layer_gnmt_inference": 9.1, "op_bert_l-3_training": 2.93}
OPTIMIZER = {"vgg16": 0.36, "alexnet": 0.28, "resnet50": 0.74, "gnmt": 0.35}


def workloads() -> None:
    """Whole command, start of the interpreter included."""
    for path in sorted((DATA / "dnn-partitioning").glob("*.json")):
        began = perf_counter()
        subprocess.run(["pipec", "partition", str(path), "--json"], check=True, capture_output=True)
        whole = perf_counter() - began
        workload = read_workload(path)
        cut = solve_contiguous(workload.graph, workload.devices(), free_order=True, exactly=False)
        slow = EXACT_DP.get(path.stem)
        ratio = f", exact DP / command {slow / whole:.0f}" if slow else ""
        print(
            f"{path.stem:30} load {cut.max_load:9.4f}  bound {cut.lower_bound:9.4f}  "
            f"solve {cut.seconds:.3f} s  command {whole:.3f} s{ratio}"
        )


def scaling() -> None:
    """Synthetic graphs; communication 0.1 and 2 times the mean node work."""
    for name, make in FAMILIES.items():
        for n in (300, 1_000, 10_000, 100_000):
            for communication in (0.1, 2.0):
                graph = make(n, communication)
                for k in (8, 64):
                    if k * 8 > n:
                        continue
                    cut = solve_contiguous(graph, [Device("gpu")] * k)
                    print(
                        f"{name:16} n {graph.size:6} k {k:2} communication {communication}  "
                        f"over bound {cut.max_load / cut.lower_bound - 1:8.4%}  "
                        f"{cut.seconds:6.2f} s  {cut.method}"
                    )


def chunks() -> None:
    """Two chunks per device on the published workloads, 25 s each."""
    find = chunk_model.find_spec
    for path in sorted((DATA / "dnn-partitioning").glob("*.json")):
        workload = read_workload(path)
        devices = workload.devices(cpus=0)
        one = solve_contiguous(workload.graph, devices, exactly=False)
        line = f"{path.stem:30} contiguous {one.max_load:9.4f}"
        solvers: dict[str, Callable[[str], object]] = {"CP-SAT": find, "HiGHS": lambda _: None}
        for solver, finder in solvers.items():
            chunk_model.find_spec = finder  # type: ignore[assignment]
            two = solve_chunks(workload.graph, devices, 2, time_limit=25)
            line += f"  {solver} {two.max_load:9.4f} [{two.lower_bound:.4f}] {two.seconds:.1f} s"
        print(line)


def planner() -> None:
    """PipeDream's planner on the published profiles."""
    for name, reference in OPTIMIZER.items():
        graph = read_workload(DATA / "pipedream-profiles" / f"{name}.txt").graph
        for workers in (4, 16, 64):
            began = perf_counter()
            plan = plan_replicated(graph, [Level(workers, 1e9)])
            seconds = perf_counter() - began
            ratio = f"  reference / ours {reference / seconds:.0f}" if workers == 4 else ""
            print(
                f"{name:9} {workers:2} workers  {plan.configuration:32} "
                f"{plan.seconds:.6f} s per minibatch  solved in {seconds:.4f} s{ratio}"
            )


if __name__ == "__main__":
    parts = {f.__name__: f for f in (workloads, scaling, chunks, planner)}
    for part in sys.argv[1:] or list(parts):
        parts[part]()
