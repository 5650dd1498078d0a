"""What surrounds the sources: vendor scripts, Makefile, README, host program.

``host/host.cpp`` is written against XRT's native C++ API. The same source runs without a board:
``sim/`` has XRT's headers over a model of a board that loads ``link.cfg``, makes its kernels out of
their own C++ and joins their streams as the file says (``hls/sim/board.h``).
"""

from collections.abc import Mapping, Sequence

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
from pipec.backends.fpga.emit.beside import GMEM, Beside, files_beside
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.link import (
    Around,
    Side,
    Site,
    around,
    block_design,
    link_cfg,
    memory_port,
    sides,
)
from pipec.backends.fpga.emit.source import arguments, facts, top_name
from pipec.backends.fpga.emit.tables import off_chip, on_chip, pointers

SHIPPED = (
    "host/host.h", "sim/board.h", "sim/wire.h", "sim/hls_stream.h", "sim/xrt/xrt_bo.h",
    "sim/xrt/xrt_device.h", "sim/xrt/xrt_kernel.h",
)  # fmt: skip


def host_files(
    design: StageDesign,
    found: Around,
    used: Sequence[Side],
    tolerance: float,
    own: Mapping[str, float],
) -> dict[str, str]:
    """The host program, and the board in software.

    Args:
        design: A stage that infers.
        found: What is around it; movers for all streams to and from the host.
        used: The sides that values cross.
        tolerance: What the host accepts of golden frames.
        own: Values of outputs to what is accepted of them, where that is less.
    """
    known = {**facts(design), "used": used, "movers": found.movers}
    bundles = {p.name: memory_port(p.bundle) for p in pointers(design)}
    pins = {top_name(design): [bundles.get(name, name) for _, name in arguments(design)]}
    pins |= {one.name: [memory_port(GMEM), one.stream, "frames"] for one in found.movers}
    pins |= {side.packets.name: [*side.packets.pins, "frames"] for side in used}
    host_cpp = filled(
        "host.cpp",
        **known,
        tolerance=tolerance,
        own=own,
        places={name: k for k, (_, name) in enumerate(arguments(design))},
        moved={one.port: one.name for one in found.movers},
    )
    return {
        "host/host.cpp": host_cpp,
        "sim/kernels.cpp": filled("kernels.cpp", **known, kernels=pins),
        **{name: own_header(name) for name in SHIPPED},
    }


VENDOR = ("hls_config.cfg", "run_hls.tcl")
"""For ``v++ -c --mode hls``, or for tools before 2023.2, ``vitis_hls -f run_hls.tcl``."""
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
    beside = [*found.movers, *muxes]
    texts = dict[str, str]()
    if site.alone and platform:
        texts["link.cfg"] = link_cfg(design, found)
        texts["link_udp.cfg"] = link_cfg(design, found, udp=True)
    elif site.alone:
        texts["block_design.tcl"] = block_design(design, found)
    if hosted:
        texts |= host_files(design, found, used, tolerance, own or {})
    return {
        "Makefile": makefile(design, beside, hosted=hosted),
        **{
            name: filled(name, **facts(design), platform=platform, style=PIPELINE_STYLE)
            for name in VENDOR
        },
        **texts,
        **files_beside(design, beside, platform=platform),
        "README.md": readme(design, tolerance, site, shares=bool(muxes)),
    }


def makefile(design: StageDesign, beside: Sequence[Beside], *, hosted: bool) -> str:
    """``make csim`` with plain g++, ``make hls`` with the vendor's tool; of a hosted stage more.

    That is ``make xclbin`` and ``make host`` with the vendor's tools, ``make host-sim`` without.
    """
    flags = {
        "flags": (*STANDARD, *FLAGS), "includes": INCLUDES, "sources": SOURCES, "timed": TIMED,
        "bounded": BOUNDED, "sanitized": SANITIZED,
        "configs": ("hls_config.cfg", *(one.config for one in beside)),
    }  # fmt: skip
    words = {name: " ".join(value) for name, value in flags.items()}
    return filled("Makefile", stage=design.name, hosted=hosted, **words)


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
