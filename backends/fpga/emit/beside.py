"""Kernels beside a stage's own: movers of frames, and packets of several values on one link.

A host reaches memory, and no stream: every port that no link feeds or reads has a kernel
``mover/in_x.cpp``, called with a pointer and the number of frames. Values that share a link have
``link/link_tx.cpp`` and ``link_rx.cpp``, which number them in the order of their names at both
ends. What they do is in ``hls/mover/mover.h`` and ``hls/link/link.h``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import fill_template, own_header
from pipec.backends.fpga.engines.parts import BURST
from pipec.backends.fpga.links import PACKET, WINDOW, Frame
from pipec.backends.fpga.tables import BEAT_BYTES
from pipec.backends.fpga.wire import ports_of

GMEM = "gmem"
"""Bundle of a mover's memory pointer."""


@dataclass(frozen=True)
class Beside:
    """A small kernel: a mover of one port, or one that joins the ports of a side to its link.

    Attributes:
        stage: The stage that it stands beside.
        label: What it does: ``move_in_x``, ``link_tx``.
        ports: Ports of the stage, in the order of their values.
        memory: Bank of memory that a mover works in; empty on a link.
    """

    stage: str
    label: str
    ports: tuple[str, ...]
    memory: str = ""

    @property
    def name(self) -> str:
        """Its top function."""
        return identifier(f"{self.stage}_{self.label}")

    @property
    def folder(self) -> str:
        """Its folder; a header of that name lies there."""
        return "mover" if self.memory else "link"

    @property
    def path(self) -> str:
        """Its source."""
        return f"{self.folder}/{self.label.removeprefix('move_')}.cpp"

    @property
    def config(self) -> str:
        """The configuration file that builds it."""
        return f"hls_{self.label}.cfg"

    @property
    def feeds(self) -> bool:
        """Whether it writes to the stage."""
        return self.label.startswith("move_in_") or self.label == "link_rx"

    @property
    def stream(self) -> str:
        """The stream of a mover."""
        return "out" if self.feeds else "in"

    @property
    def ends(self) -> tuple[str, str]:
        """Where a kernel on a link reads from it and writes to it: credits go the other way."""
        return ("in", "back") if self.feeds else ("back", "out")

    @property
    def pins(self) -> tuple[str, ...]:
        """Pins of its arguments in their order; the number of frames follows them."""
        return (f"m_axi_{GMEM}", self.stream) if self.memory else (*self.ports, *self.ends)


def movers(design: StageDesign, ports: Sequence[str], banks: Sequence[str]) -> tuple[Beside, ...]:
    """A mover for each of these ports, in the banks that the stage itself reads least from.

    The first bank, where the images of the tables are, comes last of equals.
    """
    slots = {bank: sum(p.slots for p in design.ddr if p.bank == bank) for bank in banks}
    order = sorted([*banks[1:], *banks[:1]], key=lambda bank: slots[bank])
    return tuple(
        Beside(design.name, f"move_{port}", (port,), order[k % len(order)])
        for k, port in enumerate(ports)
    )


def share(design: StageDesign, ports: Sequence[str], way: str) -> Beside:
    """The kernel for one side of a stage."""
    known = ports_of(design)
    order = sorted(ports, key=lambda p: (known[p].port.value, p))
    return Beside(design.name, f"link_{way}", tuple(order))


def files_beside(
    design: StageDesign, kernels: Sequence[Beside], *, platform: bool
) -> dict[str, str]:
    """The sources of the kernels, and what builds each with ``v++ -c --mode hls``."""
    found, known = dict[str, str](), ports_of(design)
    facts = {
        "design": design, "platform": platform, "bundle": GMEM, "beat": BEAT_BYTES, "burst": BURST,
        "packet": PACKET, "window": WINDOW,
    }  # fmt: skip
    for kernel in kernels:
        ports = [known[name] for name in kernel.ports]
        own = {"kernel": kernel, "ports": ports, "frames": [Frame.of(p.stream) for p in ports]}
        header = f"{kernel.folder}/{kernel.folder}.h"
        found[header] = own_header(header)
        found[kernel.path] = fill_template(f"{kernel.folder}.cpp", **facts, **own)
        found[kernel.config] = fill_template("kernel.cfg", **facts, **own)
    return found
