"""How pipelines of the Verilog stall."""

from enum import StrEnum


class Style(StrEnum):
    """How pipelines stall; Vitis HLS's ``PIPELINE style`` in brackets.

    ``FREE`` (frp): never in flight; an iteration starts only when its results have a slot (what
    emitted scripts ask for). ``FLUSH`` (flp): a full output freezes the whole pipeline, an empty
    input lets bubbles in. ``STALL`` (stp, the default): an empty input freezes it too (all
    estimates).
    """

    FREE = "free"
    FLUSH = "flush"
    STALL = "stall"

    @property
    def number(self) -> int:
        """The parameter ``STYLE`` of ``stream.sv``."""
        return list(Style).index(self)
