"""A verification as a table."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipec.compiler.verify import VerifyReport


def print_report(report: VerifyReport, console: Console) -> None:
    """Print the error of every boundary value, and the verdict."""
    table = Table(title="emitted stages against the original model", title_justify="left",
                  title_style="bold", box=None, pad_edge=False)  # fmt: skip
    for column in ("stage", "value", "kind", "dtype"):
        table.add_column(column, overflow="fold")
    for column in ("max error", "largest", "relative", "allowed", ""):
        table.add_column(column, justify="right")
    for b in report.boundaries:
        verdict = "ok" if b.ok else "[red]off[/]"
        table.add_row(
            str(b.stage),
            escape(b.name),
            b.kind,
            b.dtype,
            f"{b.max_abs_error:.3g}",
            f"{b.scale:.3g}",
            f"{b.relative_error:.2g}",
            f"{b.tolerance:.2g} {b.basis}".strip(),
            verdict,
        )
    console.print(table)
    wrong = [b.name for b in report.boundaries if not b.ok]
    verdict = f"[red]{len(wrong)} value(s) are off[/]" if wrong else "[green]verified[/]"
    worst = max((b.relative_error for b in report.boundaries), default=0.0)
    console.print(
        f"{verdict}: {len(report.boundaries)} values, largest relative error {worst:.2g}, "
        f"tolerance {report.tolerance:.2g}, seed {report.seed}"
    )
