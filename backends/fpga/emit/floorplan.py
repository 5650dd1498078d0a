"""``floorplan.xdc``: engines to super logic regions, for the placer."""

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.source import facts
from pipec.backends.fpga.engines.base import Engine

FLOORPLAN = "floorplan.xdc"


def floorplan_xdc(design: StageDesign) -> str:
    """Constraints that put the cells of every engine into its region.

    HLS calls the instance of ``mvu_a<cfg::conv1_mvu>`` ``mvu_a_conv1_mvu_U0``; an engine that lies
    in several regions is left to the placer, as are the FIFOs.
    """
    return filled(FLOORPLAN, **facts(design), plan=design.floorplan, cells=cells)


def cells(engine: Engine) -> str:
    """The Tcl expression for the instance of an engine."""
    name = f"{engine.nest.unit(engine).function}_{identifier(engine.name)}"
    return f"[get_cells -quiet -hierarchical -regexp {{.*/{name}(_s)?_U[0-9]+}}]"
