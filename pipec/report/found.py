"""What was found, as tables: cycles of emitted stages, a verification, an exploration."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from pipec.cluster.units import show
from pipec.compiler.cycles import StageCycles, TimedCheck
from pipec.compiler.verify import VerifyReport
from pipec.explore.explore import BASELINES, Exploration
from pipec.report.table import Table


def print_cycles(stages: Sequence[StageCycles], console: Console, heaviest: int = 10) -> None:
    """Print interval, latency and bottleneck of every stage, and what its engines wait for."""
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


def print_report(report: VerifyReport, console: Console) -> None:
    """Print the error of every boundary value, and the verdict."""
    table = Table(
        "emitted stages against the original model",
        ("stage", "value", "kind", "dtype", "max error", "largest", "relative", "allowed", ""),
        right=4,
        texts=("value", "allowed"),
        spare=("dtype", "largest", "max error"),
    )
    for b in report.boundaries:
        table.add(
            str(b.stage),
            b.name,
            b.kind,
            b.dtype,
            f"{b.max_abs_error:.3g}",
            f"{b.scale:.3g}",
            f"{b.relative_error:.2g}",
            f"{b.tolerance:.2g} {b.basis}".strip(),
            "unknown" if b.blind else "ok" if b.ok else "off",
        )
    console.print(table)
    wrong = [b.name for b in report.boundaries if not b.ok]
    blind = [b.name for b in report.boundaries if b.blind]
    verdict = f"[red]{len(wrong)} value(s) are off[/]" if wrong else "[green]verified[/]"
    if blind and not wrong:
        verdict = f"[yellow]nothing is known of {len(blind)} value(s)[/], zeros would do"
    if not report.boundaries:
        verdict = "[yellow]nothing was compared[/]"
    if report.drawn:
        names = ", ".join(report.drawn)
        console.print(
            f"not compared, or not with the file, as another engine draws random numbers: {names}"
        )
    worst = max((b.relative_error for b in report.boundaries), default=0.0)
    console.print(
        f"{verdict}: {len(report.boundaries)} values, largest relative error {worst:.2g}, "
        f"tolerance {report.tolerance:.2g}, seed {report.seed}"
    )


def print_exploration(exploration: Exploration, console: Console, top: int = 12) -> None:
    """Print the fastest candidates, the baselines, and a count of what does not fit."""
    best = exploration.best
    table = Table(
        "",
        ("candidate", "step", "samples/s", "bubble", "memory", "why"),
        right=1,
        texts=("candidate", "why"),
        spare=("samples/s", "bubble"),
    )
    shown = list(exploration.predictions[:top])
    shown += [p for p in exploration.predictions[top:] if p.candidate.split]
    shown += [p for p in map(exploration.baseline, BASELINES) if p is not None and p not in shown]
    for p in shown:
        table.add(
            str(p.candidate),
            show(p.seconds, "s") if p.possible else "",
            f"{exploration.batch / p.seconds:.3g}" if p.possible else "",
            f"{p.bubble:.0%}" if p.possible else "",
            show(max(p.peak_bytes), "B") if p.peak_bytes else "",
            exploration.why(p),
        )
    console.print(table)
    timed = sum(p.possible for p in exploration.predictions)
    slower = sum(not p.timed for p in exploration.predictions)
    console.print(
        f"{len(exploration.predictions)} candidates, {timed} timed, {slower} not timed, "
        f"{len(exploration.predictions) - timed - slower} impossible; "
        f"chosen: [bold]{best.candidate}[/]"
    )
    for name in BASELINES if best.candidate.trains else BASELINES[:1]:
        base = exploration.baseline(name)
        lost = "does not fit" if exploration.has_tried(name) else "not tried"
        ratio = f"{base.seconds / best.seconds:.2f}x" if base else lost
        console.print(f"speed-up over {name}: {ratio}")
