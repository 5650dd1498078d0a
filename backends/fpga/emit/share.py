"""Kernels that lead values over one link in packets: ``link/link_tx.cpp`` and ``link_rx.cpp``.

Both ends number the values in the order of their names, so that they agree. What crosses is
explained in ``hls/link/link.h``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.links import PACKET, WINDOW, Frame

HEADER = "link/link.h"


@dataclass(frozen=True)
class Shared:
    """A kernel that joins the ports of one side of a stage to its link.

    Attributes:
        name: Its top function.
        way: ``tx``, or ``rx``.
        ports: Ports of the stage, in the order of their values.
    """

    name: str
    way: str
    ports: tuple[str, ...]

    @property
    def out(self) -> str:
        """Its port that writes to the link."""
        return "out" if self.way == "tx" else "back"

    @property
    def into(self) -> str:
        """Its port that reads from the link."""
        return "back" if self.way == "tx" else "in"

    @property
    def pins(self) -> tuple[str, ...]:
        """Its streams, in the order of its arguments; the number of frames follows them."""
        return (*self.ports, self.into, self.out)


def shared(design: StageDesign, ports: Sequence[str], way: str) -> Shared:
    """The kernel for one side of a stage."""
    values = port_names(design)
    order = sorted(ports, key=lambda p: (values[p].value, p))
    return Shared(identifier(f"{design.name}_link_{way}"), way, tuple(order))


def link_files(design: StageDesign, kernels: Sequence[Shared], *, platform: bool) -> dict[str, str]:
    """The sources of the kernels, and what builds them.

    Args:
        design: The stage.
        kernels: One per side that needs one.
        platform: Whether the board has a Vitis platform.
    """
    found = {HEADER: own_header(HEADER)} if kernels else {}
    for kernel in kernels:
        path = f"link/link_{kernel.way}.cpp"
        found[path] = source(design, kernel)
        built = hls_cfg(design, kernel.name, path, "-Ilink", platform=platform)
        found[f"hls_link_{kernel.way}.cfg"] = built
    return found


def source(design: StageDesign, kernel: Shared) -> str:
    """The kernel's C++."""
    ports, sends = port_names(design), kernel.way == "tx"
    frames = [Frame.of(design.streams[ports[p].stream]) for p in kernel.ports]
    widths = {p: str(f.width) for p, f in zip(kernel.ports, frames, strict=True)}
    widths |= dict.fromkeys((kernel.into, kernel.out), "links::FLIT_BYTES")
    arguments = [f"links::axis_stream<{width}> &{port}" for port, width in widths.items()]
    return filled(
        "link.cpp",
        stage=design.name,
        sends=sends,
        values=[ports[p].value for p in kernel.ports],
        name=kernel.name,
        arguments=[*arguments, "int frames"],
        ports=kernel.ports,
        pins=kernel.pins,
        frames=frames,
        depth=PACKET * (2 if sends else WINDOW),  # two packets before the link, a window behind it
        window=WINDOW,
    )


def product_of(*, platform: bool) -> dict[str, str]:
    """Flow, package format and file suffix of what synthesis exports."""
    names = ("vitis", "xo", "xo") if platform else ("vivado", "ip_catalog", "zip")
    return dict(zip(("flow", "form", "suffix"), names, strict=True))


def period_ns(design: StageDesign) -> str:
    """Clock period in nanoseconds.

    Example:
        >>> period_ns(StageDesign("s", (), {}, (), (), clock_mhz=300.0))
        '3.333'
    """
    return f"{1e3 / design.clock_mhz:.4g}"


def hls_cfg(design: StageDesign, top: str, source: str, flags: str, *, platform: bool) -> str:
    """What builds one small kernel with ``v++ -c --mode hls``: ``hls_link_tx.cfg``."""
    return filled(
        "kernel.cfg", part=design.part, clock=period_ns(design), top=top, source=source,
        flags=flags, **product_of(platform=platform),
    )  # fmt: skip
