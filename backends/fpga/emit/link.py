"""What surrounds the kernels on their board: memories and links, for ``v++`` or for Vivado.

A kernel has one instance, called after it; a stream's pin is called after the argument of its C++,
a memory's after its bundle. `v++` reads these names in ``link.cfg`` and ``connections.cfg``, and so
does the board in software (``hls/sim/board.h``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipec.backends.fpga.banks import banks_of
from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.emit.beside import GMEM, Beside, movers, share
from pipec.backends.fpga.emit.headers import fill_template
from pipec.backends.fpga.emit.source import top_name
from pipec.backends.fpga.links import AURORA_BYTES, FLIT_BYTES, Frame, needs_packets
from pipec.backends.fpga.tables import pointers
from pipec.backends.fpga.wire import ports_of
from pipec.cluster.device import PROCESSOR_PORTS, FpgaResources


def instance(kernel: str) -> str:
    """The only instance of a kernel."""
    return f"{kernel}_1"


def pin(kernel: str, port: str) -> str:
    """A pin of a kernel's instance, such as ``stage0_top_1.m_axi_gmem_tables``."""
    return f"{instance(kernel)}.{port}"


def memory_port(bundle: str) -> str:
    """The port of a bundle of memory pointers."""
    return f"m_axi_{bundle}"


@dataclass(frozen=True)
class Site:
    """Where a stage is to run, as far as its design does not say.

    Attributes:
        platform: Whether the board has a Vitis platform; an IP is exported where it has none.
        crossing: Values that come from or go to another board.
        banks: Names of the board's memory ports.
        hosted: Whether it gets a host program, where the board has a Vitis platform.
        alone: Whether no other kernel of ours stands on its board; one file beside the folders of
            several says what joins them.
    """

    platform: bool = False
    crossing: Sequence[str] = ()
    banks: Sequence[str] = ("DDR[0]",)
    hosted: bool = False
    alone: bool = True

    @classmethod
    def of(cls, fabric: FpgaResources | None, **facts: Any) -> "Site":
        """On a board, with further facts; without one, memory is one DDR port, and no platform."""
        if fabric is None:
            return cls(**facts)
        return cls(platform=fabric.has_platform, banks=banks_of(fabric), **facts)

    @property
    def has_host(self) -> bool:
        """Whether it gets a host program."""
        return self.hosted and self.platform


@dataclass(frozen=True)
class Connections:
    """The connections of a stage's kernel.

    Attributes:
        banks: Bundle of a memory port to the board's memory port (``DDR[0]``).
        receives: Stream ports fed by the link from the board before; ``sends`` to the one behind.
        host: Stream ports that the host feeds or reads.
        movers: Kernels that do so for it, none or one for each.
    """

    banks: dict[str, str]
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    host: tuple[str, ...]
    movers: tuple[Beside, ...] = ()


@dataclass(frozen=True)
class Side:
    """A cage with a link, and the ports whose values cross it.

    Attributes:
        way: ``rx`` or ``tx``.
        packets: The kernel that leads their values over the link in packets.
        beats: Their streams.
    """

    way: str
    packets: Beside
    beats: tuple[Stream, ...]

    @property
    def cage(self) -> int:
        """0 for the board before, 1 for the one behind."""
        return int(self.way == "tx")

    @property
    def mux(self) -> Beside | None:
        """The same kernel where a link that drops nothing needs it (`links.needs_packets`)."""
        return self.packets if needs_packets([*map(Frame.of, self.beats)]) else None

    @property
    def width(self) -> int:
        """Bytes of a beat of the port that a link without packets of its own is connected to."""
        return FLIT_BYTES if self.mux is not None else self.beats[0].token_bits // 8


def connect(design: StageDesign, site: Site) -> Connections:
    """The connections of a stage; with a host program a mover for each stream that it plays."""
    first = site.banks[0]
    found = {p.bundle: (p.port.bank if p.port else "") or first for p in pointers(design)}
    ports = ports_of(design)
    links = [name for name, p in ports.items() if p.port.value in set(site.crossing)]
    host = tuple(n for n in ports if n not in links)
    return Connections(
        found,
        tuple(n for n in links if n.startswith("in_")),
        tuple(n for n in links if n.startswith("out_")),
        host,
        movers(design, host, site.banks) if site.has_host else (),
    )


def sides(design: StageDesign, found: Connections) -> list[Side]:
    """The sides of a stage that values cross: the board before, then the one behind."""
    each, known = (("rx", found.receives), ("tx", found.sends)), ports_of(design)
    kernels = [(way, share(design, ports, way)) for way, ports in each if ports]
    return [Side(way, one, tuple(known[p].stream for p in one.ports)) for way, one in kernels]


def link_cfg(design: StageDesign, found: Connections, *, udp: bool = False) -> str:
    """``link.cfg`` for ``v++ --link``: kernels, memories, streams, transceivers.

    The board before is behind the first QSFP cage, the one behind it behind the second; each cage
    has an Aurora kernel. Where several values cross on one side, or frames are no whole beats of
    the link, a kernel of ``link/`` leads them over the link, in packets with credits that come back
    on its other direction. Between streams of unlike width v++ puts converters (UG1393, Specifying
    Streaming Connections).

    With ``udp`` (``link_udp.cfg``) there are UDP network kernels (``networklayer`` and ``cmac`` of
    VNx) behind each cage. Every value then travels in the packets of the kernels in ``link/``, one
    datagram each, so that what is under way always has room where it arrives, as UDP holds nothing
    back. Socket 0 of each network layer is the board on the other side. The transceivers are
    connected by VNx's script, which finds the board's names for them.
    """
    kernels, links = dict[str, str](), []
    for side in sides(design, found):
        pairs, packets = list[tuple[str, str]](), side.packets if udp else side.mux
        if udp:
            net, core = f"networklayer_{side.cage}", f"cmac_{side.cage}"
            kernels |= {core: core, net: "networklayer"}
            pairs += [(f"{core}.M_AXIS", f"{net}.S_AXIS_eth2nl")]
            pairs += [(f"{net}.M_AXIS_nl2eth", f"{core}.S_AXIS")]
            ends = (f"{net}.M_AXIS_nl2sk", f"{net}.S_AXIS_sk2nl")
        else:
            core = f"krnl_aurora_{side.cage}"
            kernels[core] = "krnl_aurora"
            ends = (f"{core}.rx_axis", f"{core}.tx_axis")
        if packets is not None:
            kernels[instance(packets.name)] = packets.name
        links.append((side, [*pairs, *_streams(design, side, packets, ends)]))
    return connectivity([(design, found)], kernels, links=links, udp=udp)


def connectivity(
    stages: Sequence[tuple[StageDesign, Connections]],
    kernels: Mapping[str, str],
    *,
    links: Sequence[tuple[Side, Sequence[tuple[str, str]]]] = (),
    udp: bool = False,
    joints: Sequence[Sequence[str]] = (),
    elsewhere: Sequence[str] = (),
) -> str:
    """A file for ``v++ --link``: kernels, memory banks, then what connects them to links.

    Args:
        stages: The kernels of a board and what is around each.
        kernels: Kernels on the links: instance to kernel.
        links: The streams of every side that has a link.
        udp: Whether these are UDP network kernels.
        joints: Pairs of pins that are joined besides.
        elsewhere: Pins that lead to other boards, and are left to the user.
    """
    tops = [top_name(design) for design, _ in stages]
    moved = [mover.name for _, found in stages for mover in found.movers]
    named: dict[str, list[str]] = {}
    instances = {**{instance(top): top for top in tops}, **kernels}
    for one, of in [*instances.items(), *((instance(name), name) for name in moved)]:
        named.setdefault(of, []).append(one)
    rows = []
    for top, (design, found) in zip(tops, stages, strict=True):
        hands = {port for mover in found.movers for port in mover.ports}
        host = [port for port in found.host if port not in hands]
        row = {"top": top, "banks": found.banks, "movers": found.movers, "host": host}
        rows.append({**row, "ports": ports_of(design).values()})
    return fill_template(
        "link.cfg", stages=rows, kernels=named, links=links, udp=udp, joints=joints,
        elsewhere=elsewhere, gmem=GMEM,
    )  # fmt: skip


def _streams(
    design: StageDesign, side: Side, packets: Beside | None, ends: tuple[str, str]
) -> list[tuple[str, str]]:
    """The streams of a side, through a kernel or without, to where a link receives and sends."""
    (rx, tx), top = ends, top_name(design)
    if packets is None:
        own = pin(top, side.packets.ports[0])
        return [(rx, own)] if side.way == "rx" else [(own, tx)]
    pairs = [(pin(top, port), pin(packets.name, port)) for port in packets.ports]
    if side.way == "rx":
        pairs = [(b, a) for a, b in pairs]
    into, out = (pin(packets.name, end) for end in packets.ends)
    return [*pairs, (rx, into), (out, tx)]


SMARTCONNECT_INPUTS = 16
"""Memory ports that one AXI SmartConnect takes (PG247)."""


def block_design(design: StageDesign, found: Connections) -> str:
    """``block_design.tcl`` for boards without a Vitis platform: kernel, memories, links, clock.

    For ``vivado -mode batch -source block_design.tcl`` after ``run_hls.tcl`` has exported the IP.
    Streams to and from the host become external ports, for the user's DMA.
    """
    cells, folders = {"kernel": (design, found)}, ("build_hls", "build_link")
    return board_design(top_name(design), cells, folders, sides=sides(design, found))


def board_design(
    name: str,
    cells: Mapping[str, tuple[StageDesign, Connections]],
    folders: Sequence[str],
    *,
    sides: Sequence[Any] = (),
    joints: Sequence[Sequence[str]] = (),
) -> str:
    """A block design of several kernels.

    Args:
        name: Name of the block design.
        cells: Kernels by cell with their connections, at least one; all have one clock.
        folders: Folders of their IPs, relative to the script.
        sides: Links of the only kernel.
        joints: Pairs of pins of kernels that are joined.
    """
    first, _ = next(iter(cells.values()))
    users: dict[str, list[str]] = {}
    for cell, (_, found) in cells.items():
        for bundle, bank in found.banks.items():
            users.setdefault(bank, []).append(f"{cell}/{memory_port(bundle)}")
    known = {b: b if b in PROCESSOR_PORTS else f"ddr4_{k}" for k, b in enumerate(sorted(users))}
    return fill_template(
        "block_design.tcl",
        stages=[design.name for design, _ in cells.values()],
        board=comment(first.device),
        part=first.part,
        clock=f"{first.clock_mhz:g}",
        name=name,
        folders=folders,
        kernels={cell: top_name(design) for cell, (design, _) in cells.items()},
        memories=[(cell, _interconnects(f"{cell}_ports", users[b])) for b, cell in known.items()],
        # by the numbers of these ports in its settings
        processor={p: (k + 2) % 6 for k, p in enumerate(PROCESSOR_PORTS) if p in users},
        sides=sides,
        joints=joints,
        outside=[f"{cell}/{port}" for cell, (_, found) in cells.items() for port in found.host],
        aurora=AURORA_BYTES,
    )


def _interconnects(cell: str, users: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """The interconnects that lead these pins to one memory, and the pins that lead to each.

    The last one leads to the controller.
    """
    found, size = list[tuple[str, Sequence[str]]](), SMARTCONNECT_INPUTS
    while len(users) > size:
        groups = [users[k : k + size] for k in range(0, len(users), size)]
        level = [(f"{cell}_{len(found) + k}", group) for k, group in enumerate(groups, 1)]
        users = [f"{name}/M00_AXI" for name, _ in level]
        found += level
    return [*found, (cell, users)]
