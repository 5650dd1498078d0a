"""A cycle-by-cycle simulator, as plain as can be: the oracle for the fast one."""

from collections.abc import Mapping, Sequence

from pipec.backends.fpga.cycles import Process
from pipec.backends.fpga.runs import Run, flat


def naive(
    processes: Sequence[Process], depths: Mapping[str, int], frames: int, limit: int = 100_000
) -> dict[str, list[int]] | None:
    """Visibility cycles of every token of every stream; None if it deadlocks."""
    fires: list[list[Run]] = [
        [Run(1, r.delta, r.reads, r.writes) for _ in range(frames) for r in flat(p.table)
         for _ in range(r.count)]
        for p in processes
    ]  # fmt: skip
    writer = {s: p for p in processes for s in p.outputs}
    reader = {s for p in processes for s in p.inputs}
    inner = [s for s in writer if s in reader]
    vis: dict[str, list[int]] = {s: [] for s in inner}
    pops: dict[str, list[int]] = {s: [] for s in inner}
    last: list[int | None] = [None] * len(processes)
    at = [0] * len(processes)
    quiet = 0
    for cycle in range(limit):
        ready = []
        for k, p in enumerate(processes):
            if at[k] == len(fires[k]):
                continue
            run, before = fires[k][at[k]], last[k]
            if before is not None and cycle < before + run.delta:
                continue
            ins = [s for j, s in enumerate(p.inputs) if run.reads >> j & 1 and s in vis]
            outs = [s for j, s in enumerate(p.outputs) if run.writes >> j & 1 and s in vis]
            tokens = all(len(vis[s]) > len(pops[s]) and vis[s][len(pops[s])] <= cycle for s in ins)
            slots = all(
                len(vis[s]) - sum(t < cycle for t in pops[s]) < depths[s] + p.depth for s in outs
            )
            if tokens and slots:
                ready.append((k, ins, outs))
        for k, ins, outs in ready:
            for s in ins:
                pops[s].append(cycle)
            for s in outs:
                vis[s].append(cycle + processes[k].depth)
            last[k], at[k] = cycle, at[k] + 1
        if all(a == len(f) for a, f in zip(at, fires, strict=True)):
            return vis
        quiet = 0 if ready else quiet + 1
        if quiet > 2_000:
            return None
    raise AssertionError("did not end")
