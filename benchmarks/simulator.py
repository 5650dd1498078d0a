"""Speed and memory of the schedule simulator, beside torch's step counter in the same run.

    python benchmarks/simulator.py            the ratios, then the large schedule
    python benchmarks/simulator.py --quick    the ratios alone

Ours: real times, dependencies and lanes built, five lanes per device. Theirs:
`torch.distributed.pipelining.schedules._simulate_comms_compute`, which counts steps of one lane
per device and knows no times. Both get a 1F1B schedule with its sends and receives inserted.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipec.schedule.comm import insert_comm
from pipec.schedule.csv_form import to_csv
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

RATIO_SIZES = ((8, 64), (16, 128), (32, 256), (64, 256), (64, 512), (128, 512))
LARGE = ((512, 409), (512, 1024), (512, 4096))


def best(function: Callable[[], object], repeats: int = 3) -> float:
    """Fewest processor seconds of several tries; both sides run on one thread."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def torch_seconds(schedule: Schedule) -> float:
    """Seconds of torch's dry run of the same rows."""
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    rows = {
        rank: [_Action.from_str(cell) for cell in line.split(",")]
        for rank, line in enumerate(to_csv(schedule).splitlines())
    }
    return best(lambda: _simulate_comms_compute(rows, lambda s: s, schedule.stages))


def ratios() -> None:
    """How many times as fast as torch, by size."""
    print("stages x microbatches   actions   torch ms   ours ms   ratio")
    for stages, microbatches in RATIO_SIZES:
        schedule = insert_comm(generate("1f1b", stages, microbatches))
        times = Times.uniform(stages, comm=0.1)
        ours = best(lambda s=schedule, t=times: simulate(s, t).seconds)  # type: ignore[misc]
        theirs = torch_seconds(schedule)
        size = f"{stages} x {microbatches}"
        print(
            f"{size:>21} {len(schedule):>9} {theirs * 1e3:>10.1f} {ours * 1e3:>9.1f}"
            f" {theirs / ours:>7.1f}"
        )


def processor() -> np.ndarray:
    """Seconds of this process so far: its own, and the system's on its behalf (fresh memory)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([used.ru_utime, used.ru_stime])


def peak_bytes() -> int:
    """Most memory of this process; getrusage would count the process that started it too."""
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)
    return int(line.split()[1]) * 1024


def large(stages: int, microbatches: int) -> None:
    """Seconds of every part and the peak memory of this process, for one size."""
    marks = [processor()]
    plain = generate("1f1b", stages, microbatches)
    marks.append(processor())
    schedule = insert_comm(plain)
    del plain
    marks.append(processor())
    timeline = simulate(schedule, Times.uniform(stages, comm=0.1))
    marks.append(processor())
    peak = peak_bytes() / 1e9
    actions = len(schedule)
    parts = zip(("generate", "sends", "simulate"), np.diff(marks, axis=0), strict=True)
    text = ", ".join(f"{name} {took.sum():.2f} s" for name, took in parts)
    own, system = (marks[-1] - marks[0]) / actions * 1e9
    print(
        f"{stages} x {microbatches}: {actions / 1e6:.2f} M actions, {text}; per action {own:.0f} ns"
        f" and {system:.0f} ns of the system for fresh memory; peak {peak:.2f} GB; "
        f"makespan {timeline.seconds:.1f}"
    )


def main() -> None:
    """Print the table; each large size in a process of its own, so that its memory is its own."""
    if len(sys.argv) == 3:
        large(int(sys.argv[1]), int(sys.argv[2]))
        return
    ratios()
    if "--quick" not in sys.argv:
        print()
        for stages, microbatches in LARGE:
            subprocess.run([sys.executable, __file__, str(stages), str(microbatches)], check=True)
        print(
            "The cost grows with steps x lanes: a step takes the turn of every lane that is not "
            "done. Filling and draining the pipe takes steps in which few lanes move, so the cost "
            "per action falls towards that of a full pipe as microbatches are added. The system's "
            "part does not: arrays of more than 32 MB are mapped and zeroed anew each time."
        )


if __name__ == "__main__":
    main()
