"""Cycle-by-cycle simulators, as plain as can be: the oracles for those that skip idle cycles."""

from collections.abc import Mapping, Sequence

from benchmarks.rtl.style import Style
from pipec.backends.fpga.runs import Run
from pipec.backends.fpga.simulator.native import Process
from tests.fpga.design.plain import flat


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


def _in(registers: Sequence[Sequence[Sequence[str]]]) -> bool:
    return any(tokens for line in registers for tokens in line)


def naive_rigid(
    processes: Sequence[Process], depths: Mapping[str, int], frames: int, style: Style,
    initial: Mapping[str, int], *, call: bool = False,
) -> dict[str, list[int]] | None:  # fmt: skip
    """The same for pipelines with one enable each: shift registers, clocked one cycle at a time.

    In a ``call`` a process starts nothing behind its last frame, and its registers move on.
    """
    inner = {s for p in processes for s in p.outputs} & {s for p in processes for s in p.inputs}
    count = {s: initial.get(s, 0) for s in inner}
    vis: dict[str, list[int]] = {s: [] for s in inner}
    lines = [[r for r in flat(p.table) for _ in range(r.count)] for p in processes]
    at, wait = [0] * len(processes), [0] * len(processes)
    registers: list[list[list[str]]] = [[[]] * (p.depth - 1) for p in processes]
    quiet = cycle = 0
    ends = [frames * len(runs) for runs in lines]
    while any(a < end for a, end in zip(at, ends, strict=True)) or (call and _in(registers)):
        pops, puts, fired = [], [], False
        for k, p in enumerate(processes):
            run = lines[k][at[k] % len(lines[k])]
            ins = [s for j, s in enumerate(p.inputs) if run.reads >> j & 1 and s in inner]
            outs = [s for j, s in enumerate(p.outputs) if run.writes >> j & 1 and s in inner]
            over = call and at[k] >= ends[k]
            starved = over or not all(count[s] for s in ins)
            leaving = registers[k][-1] if p.depth > 1 else []
            frozen = any(count[s] == depths[s] for s in leaving)
            if frozen or (style is Style.STALL and wait[k] == 0 and starved and not over):
                continue
            room = p.depth > 1 or all(count[s] < depths[s] for s in outs)
            fire = wait[k] == 0 and not starved and room
            puts += leaving
            if fire:
                fired, at[k] = True, at[k] + 1
                pops += ins
                puts += outs if p.depth == 1 else []
                wait[k] = lines[k][at[k] % len(lines[k])].delta
            if p.depth > 1:
                registers[k] = [outs if fire else [], *registers[k][:-1]]
            wait[k] = max(0, wait[k] - 1)
        for s in puts:
            vis[s].append(cycle + 1)
            count[s] += 1
        for s in pops:
            count[s] -= 1
        cycle, quiet = cycle + 1, 0 if fired else quiet + 1
        if quiet > 60:  # longer than any gap or pipeline of the tests
            return None
    return vis
