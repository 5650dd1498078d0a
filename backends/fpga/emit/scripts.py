"""What surrounds the sources: vendor scripts, Makefile, README."""

from collections.abc import Mapping, Sequence

from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.csim.build import (
    BOUNDED,
    FLAGS,
    INCLUDES,
    SANITIZED,
    SOURCES,
    STANDARD,
    TIMED,
)
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.block import block_design
from pipec.backends.fpga.emit.floorplan import FLOORPLAN, floorplan_xdc
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.host import host_files
from pipec.backends.fpga.emit.link import Around, Site, around, link_cfg, link_udp_cfg, sides
from pipec.backends.fpga.emit.mover import mover_files
from pipec.backends.fpga.emit.readme import readme
from pipec.backends.fpga.emit.share import Shared, link_files, period_ns, product_of
from pipec.backends.fpga.emit.source import top_name

PIPELINE_STYLE = "frp"
"""Free-running pipelines, which all cycles are for; without a word the tool chooses,
by version and pipeline. It does not make one of a pipeline on m_axi, and says so (UG1448)."""


def scripts(
    design: StageDesign, tolerance: float, site: Site, own: Mapping[str, float] | None = None
) -> dict[str, str]:
    """File name to text of everything around the sources.

    Args:
        design: The stage.
        tolerance: What its test bench accepts.
        own: Values of outputs to what is accepted of them, where that is less.
        site: Where it is to run.
    """
    platform, hosted = site.platform, site.has_host
    found = around(design, site)
    used = sides(design, found)
    muxes = [side.packets for side in used if platform or side.mux is not None]
    texts = _board(design, found, site)
    if design.floorplan.regions:
        texts[FLOORPLAN] = floorplan_xdc(design)
    if hosted:
        texts |= host_files(design, found, used, tolerance, own or {})
    return {
        "Makefile": makefile(design, found, muxes, hosted=hosted),
        "hls_config.cfg": _of_vendor("hls_config.cfg", design, platform=platform),
        "run_hls.tcl": _of_vendor("run_hls.tcl", design, platform=platform),
        **texts,
        **link_files(design, muxes, platform=platform),
        **mover_files(design, found.movers),
        "README.md": readme(design, tolerance, site, shares=bool(muxes)),
    }


def _board(design: StageDesign, found: Around, site: Site) -> dict[str, str]:
    """The files that join a kernel that stands alone on its board to what is around it."""
    if not site.alone:
        return {}
    if not site.platform:
        return {"block_design.tcl": block_design(design, found)}
    return {"link.cfg": link_cfg(design, found), "link_udp.cfg": link_udp_cfg(design, found)}


def makefile(design: StageDesign, found: Around, packets: Sequence[Shared], *, hosted: bool) -> str:
    """``make csim`` with plain g++, ``make hls`` with the vendor's tool; of a hosted stage more.

    That is ``make xclbin`` and ``make host`` with the vendor's tools, ``make host-sim`` without.
    """
    configs = ["hls_config.cfg", *(f"hls_move_{one.port}.cfg" for one in found.movers)]
    configs += [f"hls_link_{one.way}.cfg" for one in packets]
    flags = {
        "flags": (*STANDARD, *FLAGS), "includes": INCLUDES, "sources": SOURCES, "timed": TIMED,
        "bounded": BOUNDED, "sanitized": SANITIZED, "configs": configs,
    }  # fmt: skip
    words = {name: " ".join(value) for name, value in flags.items()}
    return filled("Makefile", stage=design.name, hosted=hosted, **words)


def _of_vendor(name: str, design: StageDesign, *, platform: bool) -> str:
    """For ``v++ -c --mode hls``, or for tools before 2023.2, ``vitis_hls -f run_hls.tcl``."""
    return filled(
        name, stage=design.name, board=comment(design.device), part=design.part,
        clock=period_ns(design), top=top_name(design), style=PIPELINE_STYLE,
        **product_of(platform=platform),
    )  # fmt: skip
