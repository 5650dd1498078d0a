"""``floorplan.xdc``: engines to super logic regions, for the placer."""

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Engine

FLOORPLAN = "floorplan.xdc"


def floorplan_xdc(design: StageDesign) -> str:
    """Constraints that put the cells of every engine into its region.

    HLS calls the instance of ``mvu_a<cfg::conv1_mvu>`` ``mvu_a_conv1_mvu_U0``; an engine that lies
    in several regions is left to the placer, as are the FIFOs.
    """
    plan = design.floorplan
    lines = [
        f"# Super logic regions of {design.name}, planned from estimates; no placer has seen this.",
        f"# Wires between neighbouring regions: {', '.join(map(str, plan.wires))};"
        f" at most {plan.wire_limit}.",
    ]
    for region, (used, limit) in enumerate(zip(plan.used, plan.limits, strict=True)):
        lines += [
            "",
            f"# SLR{region}: {used.dsp:.0f} of {limit.dsp:.0f} DSP, {used.lut:.0f} of "
            f"{limit.lut:.0f} LUT, {used.bram36:.0f} of {limit.bram36:.0f} BRAM36, "
            f"{used.uram:.0f} of {limit.uram:.0f} URAM",
        ]
        lines += [
            f"set_property USER_SLR_ASSIGNMENT SLR{region} {cells(engine)}"
            for engine in design.engines
            if plan.regions.get(engine.name) == (region,)
        ]
    spread = [e for e in design.engines if len(plan.regions.get(e.name, ())) > 1]
    for engine in spread:
        where = ", ".join(f"SLR{r}" for r in plan.regions[engine.name])
        lines.append(f"# {identifier(engine.name)} is larger than a region: {where}")
    return "\n".join([*lines, ""])


def cells(engine: Engine) -> str:
    """The Tcl expression for the instance of an engine."""
    name = f"{engine.nest.unit(engine).function}_{identifier(engine.name)}"
    return f"[get_cells -quiet -hierarchical -regexp {{.*/{name}(_s)?_U[0-9]+}}]"
