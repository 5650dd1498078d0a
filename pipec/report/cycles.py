"""Cycles of emitted stages as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.report.table import Table


def print_cycles(stages: Sequence[StageCycles], console: Console, heaviest: int = 10) -> None:
    """Print interval, latency and bottleneck of every stage, and what its engines wait for.

    Args:
        stages: What was simulated.
        console: The console to print to.
        heaviest: How many engines of each stage to list, those that wait least first.
    """
    for c in stages:
        console.print(_stage_table(c, heaviest))
        seconds = c.interval / c.clock_mhz / 1e6
        lasting = (
            "every later frame repeats" if c.steady else "streams still fill: not proved to repeat"
        )
        less = c.free_interval / c.interval - 1
        console.print(
            f"interval {c.interval:,} cycles, {1 / seconds:,.1f} frames/s at {c.clock_mhz:g} MHz; "
            f"latency {c.latency:,}; bottleneck {escape(c.bottleneck)}; "
            f"{c.handshakes:,} handshakes per frame; {lasting}; "
            f"with free-running pipelines {c.free_interval:,} ({less:+.1%})\n"
        )


def _stage_table(c: StageCycles, heaviest: int) -> Table:
    columns = ("engine", "busy", "waits for tokens", "for room", "most for")
    texts = ("engine", "most for")
    table = Table(f"{c.stage}: cycles per frame", columns, right=1, texts=texts)
    for e in sorted(c.engines, key=lambda e: (e.empty + e.full, -e.busy))[:heaviest]:
        row = (f"{e.busy:,}", f"{e.empty:,}", f"{e.full:,}")
        table.add(e.name, *row, e.waits_for)
    return table


def print_checks(checks: Sequence[TimedCheck], console: Console) -> None:
    """Print how the emitted code's handshakes compare with the simulator's."""
    title = "emitted code, run with time, against the simulator"
    columns = ("stage", "frames", "handshakes", "frames end at", "")
    table = Table(title, columns, right=1, texts=("frames end at", ""))
    for c in checks:
        verdict = "ok" if c.ok else f"{len(c.differing)} streams differ"
        ends = " ".join(f"{end:,}" for end in c.ends)
        table.add(c.stage, str(c.frames), f"{c.handshakes:,}", ends, verdict)
    console.print(table)
    wrong = [f"{c.stage}: {', '.join(c.differing[:5])}" for c in checks if not c.ok]
    console.print(
        f"[red]other cycles on[/] {escape('; '.join(wrong))}"
        if wrong
        else "[green]every handshake has the same cycle[/]"
    )
