"""What a run of the configurations found, as text and as a page."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.rtl.cases import Case
from benchmarks.rtl.compare import (
    INTERVAL_TOLERANCE,
    LATENCY_TOLERANCE,
    Comparison,
)
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import Tile


@dataclass(frozen=True)
class Row:
    """One configuration: cycles compared, and the tokens that left the stage.

    Attributes:
        case: The configuration.
        cycles: Simulator and RTL.
        tokens: Output tokens compared with numpy; ``wrong`` ones among them.
    """

    case: Case
    cycles: Comparison
    tokens: int = 0
    wrong: int = 0

    @property
    def misses(self) -> tuple[str, ...]:
        """What exceeds the tolerances, in words."""
        return (*self.cycles.misses, *(["values"] if self.wrong else []))

    @property
    def stalls(self) -> str:
        """Stalled cycles that differ, of those of the simulator; nothing where not comparable."""
        counted = self.cycles.bench.style is Style.FREE and not isinstance(
            self.cycles.bench.subject, Tile
        )
        return f"{self.cycles.stall_difference} of {self.cycles.stalls[0]:,}" if counted else ""


def _pair(values: tuple[int, int] | None) -> str:
    return "deadlock" if values is None else f"{values[0]:,} / {values[1]:,}"


def line(row: Row) -> str:
    """One configuration in one line."""
    found = row.cycles
    verdict = ", ".join(row.misses) or ("exact" if found.exact else "within")
    return (
        f"{row.case.name:9} {_pair(found.simulated):>17} {_pair(found.measured):>17} "
        f"{found.interval_error:+8.3%} {found.latency_error:+5} "
        f"{found.different:6}/{found.handshakes:<7} {row.stalls:>14} "
        f"{row.wrong:4}/{row.tokens:<5} {verdict:8} {row.case.what}"
    )


def summary(rows: Sequence[Row]) -> str:
    """Counts, mean and maximum by group, and the misses."""
    lines = ["group    runs dead   interval mean      max  latency  handshakes that differ  misses"]
    for group, same in groupby(rows, key=lambda row: row.case.group):
        lines.append(f"{group:8} {_statistics(list(same))}")
    lines.append(f"{'all':8} {_statistics(rows)}")
    tokens, wrong = sum(row.tokens for row in rows), sum(row.wrong for row in rows)
    lines.append(f"{wrong} of {tokens:,} output tokens differ from numpy's")
    missed = [row for row in rows if row.misses]
    return "\n".join(
        [*lines, *(f"miss: {r.case.name} ({', '.join(r.misses)}): {r.case.what}" for r in missed)]
    )


def _statistics(rows: Sequence[Row]) -> str:
    results = [row.cycles for row in rows]
    errors = [abs(r.interval_error) for r in results if r.same_verdict]
    different, total = sum(r.different for r in results), sum(r.handshakes for r in results)
    return (
        f"{len(results):4} {sum(r.measured is None for r in results):4} "
        f"{sum(errors) / max(len(errors), 1):15.4%} {max(errors, default=0):8.3%} "
        f"{max((abs(r.latency_error) for r in results), default=0):8} "
        f"{f'{different:,} of {total:,}':>23} {sum(bool(row.misses) for row in rows):7}"
    )


def document(rows: Sequence[Row], text: str, simulator: str) -> str:
    """The page: a summary, then all rows."""
    version = subprocess.run(
        [simulator, "--version"], capture_output=True, text=True, check=False
    ).stdout
    parts = [
        "# Cycles against SystemVerilog: all configurations",
        "",
        "Written by `make rtl`; what is compared, and how, is in [fpga_cycles.md](fpga_cycles.md).",
        f"{' '.join(version.split()[:2])}. Limits: interval {INTERVAL_TOLERANCE:.0%}, latency "
        f"{LATENCY_TOLERANCE} cycles or 1 %, equal stalls on every stream",
        "(free-running pipelines), equal deadlock verdicts, equal values. What misses is bold.",
        "",
        "```text",
        text,
        "```",
        "",
        "Interval and latency in cycles, equal in the simulator and in the RTL unless the last",
        "column says how the RTL differs.",
    ]
    for group, same in groupby(rows, key=lambda row: row.case.group):
        parts += [
            "",
            f"## {group}",
            "",
            "name | configuration | interval | latency | handshakes | differs",
            "---|---|---|---|---|---",
            *[_row(row) for row in same],
        ]
    return "\n".join(parts) + "\n"


def _row(row: Row) -> str:
    found = row.cycles
    interval, latency = (
        ("deadlock", "") if found.simulated is None else map("{:,}".format, found.simulated)
    )
    differs = {
        f"interval {found.interval_error:+.3%}": found.interval_error,
        f"latency {found.latency_error:+}": found.latency_error,
        f"{found.different:,} handshakes": found.different,
        f"{found.stall_difference:,} stalled cycles": row.stalls and found.stall_difference,
        f"{row.wrong:,} of {row.tokens:,} values": row.wrong,
        f"**{', '.join(row.misses)}**": row.misses,
    }
    told = ", ".join(text for text, off in differs.items() if off)
    handshakes = f"{found.handshakes:,}" if found.handshakes else ""
    cells = (row.case.name, row.case.what, interval, latency, handshakes, told)
    return " | ".join(cells).rstrip()
