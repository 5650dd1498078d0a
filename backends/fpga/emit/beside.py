"""Kernels beside a stage's own: movers of frames, and packets of several values on one link.

A host reaches memory, and no stream: every port that no link feeds or reads has a kernel
``mover/in_x.cpp``, called with a pointer and the number of frames. Values that share a link have
``link/link_tx.cpp`` and ``link_rx.cpp``, which number them in the order of their names at both
ends. What they do is in ``hls/mover/mover.h`` and ``hls/link/link.h``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipec.backends.fpga.cpp import cpp_type, identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.tables import BEAT_BYTES, BURST
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.links import PACKET, WINDOW, Frame
from pipec.backends.fpga.wire import ports_of

GMEM = "gmem"
"""Bundle of a mover's memory pointer."""


@dataclass(frozen=True)
class Beside(ABC):
    """A small kernel.

    Attributes:
        name: Its top function.
        header: What it includes; ``flags`` says where that is.
    """

    name: str

    header: ClassVar[str]
    flags: ClassVar[str]

    @property
    @abstractmethod
    def path(self) -> str:
        """Its source."""

    @property
    def config(self) -> str:
        """What builds it."""
        return f"hls_{self.path.split('/')[1].removesuffix('.cpp')}.cfg"

    @abstractmethod
    def text(self, design: StageDesign) -> str:
        """Its C++, beside that stage."""


@dataclass(frozen=True)
class Mover(Beside):
    """The kernel for one port of a stage.

    Attributes:
        port: The port.
        memory: The bank of memory that it works in.
    """

    header = "mover/mover.h"
    flags = "-Imover -Isrc -Isrc/engines"

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

    @property
    def path(self) -> str:
        """Its source."""
        return f"mover/{self.port}.cpp"

    @property
    def config(self) -> str:
        """What builds it."""
        return f"hls_move_{self.port}.cfg"

    def text(self, design: StageDesign) -> str:
        """Its C++, beside that stage."""
        stream = ports_of(design)[self.port].stream
        return filled(
            "mover.cpp",
            stage=design.name,
            kernel=self,
            stream=stream,
            element=cpp_type(stream.dtype),
            bundle=GMEM,
            depth=ceil_div(stream.nbytes, BEAT_BYTES),
            burst=BURST,
        )


@dataclass(frozen=True)
class Shared(Beside):
    """A kernel that joins the ports of one side of a stage to its link.

    Attributes:
        way: ``tx``, or ``rx``.
        ports: Ports of the stage, in the order of their values.
    """

    header = "link/link.h"
    flags = "-Ilink"

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

    @property
    def path(self) -> str:
        """Its source."""
        return f"link/link_{self.way}.cpp"

    def text(self, design: StageDesign) -> str:
        """Its C++, beside that stage."""
        known, sends = ports_of(design), self.way == "tx"
        ports = [known[name] for name in self.ports]
        return filled(
            "link.cpp",
            stage=design.name,
            kernel=self,
            values=[p.port.value for p in ports],
            frames=[Frame.of(p.stream) for p in ports],
            depth=PACKET * (2 if sends else WINDOW),  # two packets ahead of the link, or a window
            window=WINDOW,
        )


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


def shared(design: StageDesign, ports: Sequence[str], way: str) -> Shared:
    """The kernel for one side of a stage."""
    known = ports_of(design)
    order = sorted(ports, key=lambda p: (known[p].port.value, p))
    return Shared(identifier(f"{design.name}_link_{way}"), way, tuple(order))


def files_beside(
    design: StageDesign, kernels: Sequence[Beside], *, platform: bool
) -> dict[str, str]:
    """The sources of the kernels, and what builds each with ``v++ -c --mode hls``.

    Args:
        design: The stage.
        kernels: Beside it.
        platform: Whether the board has a Vitis platform.
    """
    found = {kernel.header: own_header(kernel.header) for kernel in kernels}
    for kernel in kernels:
        found[kernel.path] = kernel.text(design)
        found[kernel.config] = filled("kernel.cfg", design=design, kernel=kernel, platform=platform)
    return found
