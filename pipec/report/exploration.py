"""An exploration as a table: what was chosen, and why each other candidate lost."""

from rich.console import Console

from pipec.cluster.units import show
from pipec.explore.explore import BASELINES, Exploration
from pipec.report.table import Table


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
