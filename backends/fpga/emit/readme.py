"""The README of a stage: what it is, how it is run, what was checked and what was not."""

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.source import facts
from pipec.backends.fpga.emit.tables import off_chip, on_chip, pointers


def readme(design: StageDesign, tolerance: float, site: Site, *, shares: bool) -> str:
    """The text of ``README.md``.

    Args:
        design: The stage.
        tolerance: What its test bench accepts.
        site: Where it is to run.
        shares: Whether kernels in ``link/`` lead values over its links.
    """
    known = facts(design)
    return filled(
        "README.md",
        **{**known, "board": design.device or "a board", "part": design.part or "part not set"},
        site=site,
        tolerance=tolerance,
        shares=shares,
        chip=f"{sum(t.weight.bits for t in on_chip(design)) / 8e6:.3f}",
        ddr=f"{sum(w.bits for _, _, w in off_chip(design)) / 8e6:.3f}",
        buffers=[p for p in pointers(design) if p.mover and p.port],
    )
