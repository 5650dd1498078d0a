"""A verification as a table."""

from rich.console import Console

from pipec.compiler.verify import VerifyReport
from pipec.report.table import Table


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
