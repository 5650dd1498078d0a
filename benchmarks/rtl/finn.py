"""FINN's own RTL, measured under Verilator 5.006, beside ours: the same engines, the same folding.

``mvu_vvu_axi`` of FINN (first input beat to last output beat of one frame) and, for the third row,
of FINN+ 1.1.0 from PyPI; ``ConvolutionInputGenerator_rtl`` as FINN+ 1.6.1 generates it (steady
cycles per frame). Their pipelines are a few registers longer than ours: a constant, not a share.
"""

from collections.abc import Sequence

from benchmarks.rtl.table import Row

MEASURED = {
    "mac01": ("first frame", 648),
    "mac02": ("first frame", 14_408),
    "mac03": ("first frame", 333),
    "window01": ("interval", 4_670),
    "window02": ("interval", 37_114),
}
"""Case to what was measured, and FINN's cycles."""


def lines(rows: Sequence[Row]) -> list[str]:
    """FINN's cycles and ours, for the rows that were run."""
    found = []
    for row in rows:
        measured = row.cycles.measured
        if row.case.name in MEASURED and measured is not None:
            what, theirs = MEASURED[row.case.name]
            ours = measured[what == "first frame"]
            found.append(
                f"{row.case.name:9} {what:12} FINN {theirs:7,}  here {ours:7,}  "
                f"{ours - theirs:+3} cycles, {ours / theirs - 1:+.2%}"
            )
    return found
