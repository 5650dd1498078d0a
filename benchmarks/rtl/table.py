"""What a run of the configurations found, as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.rtl.case import Case
from benchmarks.rtl.compare import Comparison
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
        """Differences above the tolerances, in words."""
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
    """Counts and largest differences by group, what is not exact, and the misses."""
    lines = [
        "group  runs  deadlock  interval off  latency off      handshakes off  values off  misses"
    ]
    for group, same in groupby(rows, key=lambda row: row.case.group):
        lines.append(f"{group:6} {_statistics(list(same))}")
    inexact = [row for row in rows if not row.cycles.exact]
    furthest = sorted(inexact, key=lambda r: -r.cycles.different / (r.cycles.handshakes or 1))[:1]
    missed = [row for row in rows if row.misses]
    return "\n".join(
        [
            *lines,
            f"\nof {len(rows)} configurations {_off(rows)}",
            *(f"furthest off: {r.case.name}, {r.case.what}: {_differs(r)}" for r in furthest),
            *(f"miss: {r.case.name} ({', '.join(r.misses)}): {r.case.what}" for r in missed),
        ]
    )


def _off(rows: Sequence[Row]) -> str:
    results = [row.cycles for row in rows]
    interval = max((abs(r.interval_error) for r in results if r.same_verdict), default=0)
    latency = max((abs(r.latency_error) for r in results), default=0)
    different, total = sum(r.different for r in results), sum(r.handshakes for r in results)
    wrong, tokens = sum(row.wrong for row in rows), sum(row.tokens for row in rows)
    stuck, both = sum(r.measured is None for r in results), sum(r.same_verdict for r in results)
    return (
        f"{stuck} deadlock, {both} verdicts are equal; off are the interval by {interval:.3%}, the "
        f"latency by {latency} cycles at most, {different:,} of {total:,} handshakes in "
        f"{sum(not r.exact for r in results)} configurations, {wrong:,} of {tokens:,} values; "
        f"{sum(bool(row.misses) for row in rows)} misses"
    )


def _statistics(rows: Sequence[Row]) -> str:
    results = [row.cycles for row in rows]
    interval = max((abs(r.interval_error) for r in results if r.same_verdict), default=0)
    different, total = sum(r.different for r in results), sum(r.handshakes for r in results)
    wrong, tokens = sum(row.wrong for row in rows), sum(row.tokens for row in rows)
    return (
        f"{len(results):4} {sum(r.measured is None for r in results):9} {interval:13.3%} "
        f"{max((abs(r.latency_error) for r in results), default=0):12} "
        f"{f'{different:,} of {total:,}':>19} {f'{wrong:,} of {tokens:,}':>12} "
        f"{sum(bool(row.misses) for row in rows):6}"
    )


def _differs(row: Row) -> str:
    found = row.cycles
    differs = {
        f"interval {found.interval_error:+.3%}": found.interval_error,
        f"latency {found.latency_error:+}": found.latency_error,
        f"{found.different:,} of {found.handshakes:,} handshakes": found.different,
        f"{found.stall_difference:,} stalled cycles": row.stalls and found.stall_difference,
    }
    return ", ".join(text for text, off in differs.items() if off)
