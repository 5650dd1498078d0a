"""What a run of the configurations found, as text and as a page."""

import subprocess
from collections.abc import Sequence
from itertools import groupby

from benchmarks.rtl.cases import Case
from pipec.backends.fpga.rtl.compare import (
    INTERVAL_TOLERANCE,
    LATENCY_TOLERANCE,
    Comparison,
)
from pipec.backends.fpga.rtl.generate import Style

Found = Sequence[tuple[Case, Comparison]]


def _pair(values: tuple[int, int] | None) -> str:
    return "deadlock" if values is None else f"{values[0]:,} / {values[1]:,}"


def line(case: Case, result: Comparison) -> str:
    """One configuration in one line."""
    verdict = ", ".join(result.misses) or ("exact" if result.exact else "within")
    return (
        f"{case.name:9} {_pair(result.simulated):>17} {_pair(result.measured):>17} "
        f"{result.interval_error:+8.3%} {result.latency_error:+5} "
        f"{result.different:6}/{result.handshakes:<7} {result.stall_difference:6} "
        f"{verdict:8} {case.what}"
    )


def summary(found: Found) -> str:
    """Counts, mean and maximum by group, and the misses."""
    lines = []
    for group, same in groupby(found, key=lambda pair: pair[0].group):
        lines.append(f"{group:8} {_statistics(list(same))}")
    lines.append(f"{'all':8} {_statistics(found)}")
    misses = [(case, result) for case, result in found if result.misses]
    lines += [f"miss: {c.name} ({', '.join(r.misses)}): {c.what}" for c, r in misses]
    return "\n".join(lines)


def _statistics(found: Found) -> str:
    results = [result for _, result in found]
    errors = [abs(r.interval_error) for r in results if r.same_verdict]
    latencies = [abs(r.latency_error) for r in results]
    deadlocks = sum(r.measured is None for r in results)
    return (
        f"{len(results)} configurations, {deadlocks} of them deadlocks; "
        f"interval off by {sum(errors) / max(len(errors), 1):.4%} on average, "
        f"{max(errors, default=0):.3%} at most; latency by {max(latencies, default=0)} cycles; "
        f"{sum(r.different for r in results):,} of {sum(r.handshakes for r in results):,} "
        f"handshakes differ; {sum(bool(r.misses) for r in results)} misses"
    )


def document(found: Found, simulator: str) -> str:
    """The page with all rows."""
    version = subprocess.run([simulator, "--version"], capture_output=True, text=True, check=True)
    parts = [
        "# Cycles against SystemVerilog",
        "",
        "Written by `make rtl`; what is compared and how is in [fpga_cycles.md](fpga_cycles.md).",
        f"{version.stdout.splitlines()[0]}. Limits: interval {INTERVAL_TOLERANCE:.0%}, latency "
        f"{LATENCY_TOLERANCE} cycles or 1 %,",
        "stalls of free-running pipelines equal on every stream, deadlock verdicts equal.",
        "",
        "```text",
        summary(found),
        "```",
        "",
        "Interval and latency in cycles, simulated and in RTL; handshakes whose cycle differs;",
        "stalled cycles that differ, summed over the streams.",
    ]
    for group, same in groupby(found, key=lambda pair: pair[0].group):
        parts += [
            "",
            f"## {group}",
            "",
            "| | configuration | simulator | RTL | interval | latency | handshakes | stalls | |",
            "|---|---|---|---|---|---|---|---|---|",
            *[_row(case, result) for case, result in same],
        ]
    return "\n".join(parts) + "\n"


def _row(case: Case, result: Comparison) -> str:
    verdict = "**" + ", ".join(result.misses) + "**" if result.misses else ""
    stalls = str(result.stall_difference) if result.bench.style is Style.FREE else "-"
    return (
        f"| {case.name} | {case.what} | {_pair(result.simulated)} | {_pair(result.measured)} | "
        f"{result.interval_error:+.3%} | {result.latency_error:+} | "
        f"{result.different} of {result.handshakes:,} | {stalls} | {verdict} |"
    )
