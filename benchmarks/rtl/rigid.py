"""What rigid pipelines cost beside free-running ones on the same network."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.rtl.compare import predict
from benchmarks.rtl.style import Style
from benchmarks.rtl.table import Row
from benchmarks.rtl.tile import Tile


def prices(rows: Sequence[Row]) -> Iterator[str]:
    """By style and shallowest FIFO: the RTL's longest interval over the free-running estimate."""
    found = defaultdict[tuple[Style, int], list[float]](list)
    stuck = defaultdict[tuple[Style, int], int](int)
    for row in rows:
        bench = row.cycles.bench
        if bench.style is Style.FREE or isinstance(bench.subject, Tile):
            continue
        inner = [f["depth"] for f in bench.subject["fifos"] if f["from"] and f["to"]]
        key = bench.style, min(inner)
        free = predict(dataclasses.replace(bench, style=Style.FREE))
        if free is None:
            continue
        if row.cycles.measured is None:
            stuck[key] += 1
        else:
            found[key].append(row.cycles.measured[0] / free.interval - 1)
    for style in sorted({style for style, _ in found}, key=lambda style: style.number):
        parts = [
            f"{depth}: {max(worse):+.2%}{f' ({n} deadlock)' if (n := stuck[style, depth]) else ''}"
            for (of, depth), worse in sorted(found.items(), key=lambda item: item[0][1])
            if of is style
        ]
        yield f"{style.value} beside free, by depth of the shallowest FIFO: {', '.join(parts)}"
