"""Kernels that move a stage's frames between memory and its streams: ``mover/in_x.cpp``.

A host reaches memory, and no stream: every port that no link feeds or reads has such a kernel,
called with a pointer and the number of frames. What they do is in ``hls/mover/mover.h``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.share import hls_cfg
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.emit.tables import BEAT_BYTES, BURST
from pipec.backends.fpga.engines.tiles import ceil_div

HEADER = "mover/mover.h"
GMEM = "gmem"
"""Bundle of a mover's memory pointer."""


@dataclass(frozen=True)
class Mover:
    """The kernel for one port of a stage.

    Attributes:
        name: Its top function.
        port: The port.
        memory: The bank of memory that it works in.
    """

    name: str
    port: str
    memory: str

    @property
    def feeds(self) -> bool:
        """Whether the port is an input of the stage."""
        return self.port.startswith("in_")

    @property
    def stream(self) -> str:
        """Its own stream port."""
        return "out" if self.feeds else "in"


def movers(design: StageDesign, ports: Sequence[str], banks: Sequence[str]) -> tuple[Mover, ...]:
    """A mover for each of these ports, in the banks that the stage itself reads least from.

    The first bank, where the images of the tables are, comes last of equals.

    Args:
        design: The stage.
        ports: Names of its ports.
        banks: Names of the board's memory ports.
    """
    slots = {bank: sum(p.slots for p in design.ddr if p.bank == bank) for bank in banks}
    order = sorted([*banks[1:], *banks[:1]], key=lambda bank: slots[bank])
    return tuple(
        Mover(identifier(f"{design.name}_move_{port}"), port, order[k % len(order)])
        for k, port in enumerate(ports)
    )


def mover_files(design: StageDesign, kernels: Sequence[Mover]) -> dict[str, str]:
    """The sources of the movers, and what builds them.

    Args:
        design: The stage.
        kernels: Its movers.
    """
    found = {HEADER: own_header(HEADER)} if kernels else {}
    for kernel in kernels:
        path, flags = f"mover/{kernel.port}.cpp", "-Imover -Isrc -Isrc/engines"
        found[path] = source(design, kernel)
        built = hls_cfg(design, kernel.name, path, flags, platform=True)
        found[f"hls_move_{kernel.port}.cfg"] = built
    return found


def source(design: StageDesign, kernel: Mover) -> str:
    """The kernel's C++."""
    stream = design.streams[port_names(design)[kernel.port].stream]
    return filled(
        "mover.cpp",
        stage=design.name,
        kernel=kernel,
        stream=stream,
        element=cpp_type(stream.dtype),
        bundle=GMEM,
        depth=ceil_div(stream.nbytes, BEAT_BYTES),
        burst=BURST,
    )
