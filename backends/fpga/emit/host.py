"""The host program of a stage on a board with a Vitis platform, and that board in software.

``host/host.cpp`` is written against XRT's native C++ API. The same source runs without a board:
``sim/`` has XRT's headers over a model of a board that loads ``link.cfg``, makes its kernels out of
their own C++ and joins their streams as the file says (``hls/sim/board.h``).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.beside import GMEM
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.link import Around, Side, memory_port
from pipec.backends.fpga.emit.source import accepted, arguments, facts, top_name
from pipec.backends.fpga.emit.tables import pointers

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
    host_cpp = filled(
        "host.cpp",
        **known,
        tolerance=tolerance,
        accepted=partial(accepted, own),
        places={name: k for k, (_, name) in enumerate(arguments(design))},
        moved={one.port: one.name for one in found.movers},
    )
    return {
        "host/host.cpp": host_cpp,
        "sim/kernels.cpp": filled("kernels.cpp", **known, kernels=_pins(design, found, used)),
        **{name: own_header(name) for name in SHIPPED},
    }


def _pins(design: StageDesign, found: Around, used: Sequence[Side]) -> dict[str, list[str]]:
    """Every kernel of the board, and the pins of its arguments."""
    bundles = {p.name: memory_port(p.bundle) for p in pointers(design)}
    pins = {top_name(design): [bundles.get(name, name) for _, name in arguments(design)]}
    pins |= {one.name: [memory_port(GMEM), one.stream, "frames"] for one in found.movers}
    return pins | {side.packets.name: [*side.packets.pins, "frames"] for side in used}
