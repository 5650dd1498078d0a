"""What surrounds the sources: vendor scripts, Makefile, README, host program.

``host/host.cpp`` is written against XRT's native C++ API. The same source runs without a board:
``sim/`` has XRT's headers over a model of a board that loads ``link.cfg``, makes its kernels out of
their own C++ and joins their streams as the file says (``hls/sim/board.h``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
from pipec.backends.fpga.emit.beside import Beside, files_beside
from pipec.backends.fpga.emit.headers import fill_template, own_header
from pipec.backends.fpga.emit.link import Site, block_design, connect, link_cfg, memory_port, sides
from pipec.backends.fpga.emit.source import arguments, top_name
from pipec.backends.fpga.tables import off_chip, on_chip, pointers

HOSTED = ("host/host.cpp", "sim/kernels.cpp")
"""The host program, and the board in software; what they include follows."""
SHIPPED = (
    "host/host.h", "sim/board.h", "sim/wire.h", "sim/hls_stream.h", "sim/xrt/xrt_bo.h",
    "sim/xrt/xrt_device.h", "sim/xrt/xrt_kernel.h",
)  # fmt: skip


VENDOR = ("hls_config.cfg", "run_hls.tcl")
"""For ``v++ -c --mode hls``, or for tools before 2023.2, ``vitis_hls -f run_hls.tcl``."""
PIPELINE_STYLE = "frp"
"""Free-running pipelines, never slower than the rigid ones that all cycles are for; the tool does
not make one of a pipeline on m_axi, and says so (UG1448)."""


def scripts(design: StageDesign, site: Site, known: Mapping[str, Any]) -> dict[str, str]:
    """File name to text of everything around the sources; of `facts` and what its bench accepts."""
    found = connect(design, site)
    used = sides(design, found)
    muxes = [side.packets for side in used if site.platform or side.mux is not None]
    beside = [*found.movers, *muxes]
    data = {
        **known, "used": used, "movers": found.movers, "shares": bool(muxes),
        "style": PIPELINE_STYLE, "flags": (*STANDARD, *FLAGS), "includes": INCLUDES,
        "sources": SOURCES, "timed": TIMED, "bounded": BOUNDED, "sanitized": SANITIZED,
        "configs": ("hls_config.cfg", *(one.config for one in beside)),
        "chip": sum(t.weight.bits for t in on_chip(design)) / 8e6,
        "ddr": sum(w.bits for _, _, w in off_chip(design)) / 8e6,
        "places": {name: k for k, (_, name) in enumerate(known["arguments"])},
        "moved": {one.ports[0]: one.name for one in found.movers},
    }  # fmt: skip
    texts = {name: fill_template(name, **data) for name in ("Makefile", "README.md", *VENDOR)}
    if site.alone and site.platform:
        texts["link.cfg"] = link_cfg(design, found)
        texts["link_udp.cfg"] = link_cfg(design, found, udp=True)
    elif site.alone:
        texts["block_design.tcl"] = block_design(design, found)
    if site.has_host:
        pins = _pins(design, [*found.movers, *(side.packets for side in used)])
        texts |= {name: fill_template(name.split("/")[1], **data, kernels=pins) for name in HOSTED}
        texts |= {name: own_header(name) for name in SHIPPED}
    return texts | files_beside(design, beside, platform=site.platform)


def _pins(design: StageDesign, beside: Sequence[Beside]) -> dict[str, list[str]]:
    """Kernel of a board to the pins of its arguments, as ``link.cfg`` names them."""
    bundles = {p.name: memory_port(p.bundle) for p in pointers(design)}
    found = {top_name(design): [bundles.get(name, name) for _, name in arguments(design)]}
    return found | {one.name: [*one.pins, "frames"] for one in beside}
