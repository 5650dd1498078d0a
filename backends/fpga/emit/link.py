"""What surrounds the kernel on its board: memories and links, for ``v++`` or for a block design."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.emit.cpp import comment, identifier
from pipec.backends.fpga.emit.mover import Mover, movers
from pipec.backends.fpga.emit.share import FLIT_BYTES, Shared, shared
from pipec.backends.fpga.emit.source import bundle, memories, port_names, top_name

AURORA_BYTES = 32
"""Bytes of a beat of an Aurora core of four lanes."""


@dataclass(frozen=True)
class Around:
    """What a stage's kernel is connected to.

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
    movers: tuple[Mover, ...] = ()


@dataclass(frozen=True)
class Side:
    """A cage with a link, and the ports whose values cross it.

    Attributes:
        cage: 0 for the board before, 1 for the one behind.
        way: ``rx`` or ``tx``.
        packets: The kernel that leads their values over the link in packets.
        beats: Their streams.
    """

    cage: int
    way: str
    packets: Shared
    beats: tuple[Stream, ...]

    @property
    def ports(self) -> tuple[str, ...]:
        """At least one."""
        return self.packets.ports

    @property
    def mux(self) -> Shared | None:
        """The same kernel where a link that drops nothing needs it.

        That is where several values cross, and where frames do not fall into whole beats of the
        link: a width converter would fill the last one up.
        """
        return None if len(self.beats) == 1 and _whole(self.beats[0]) else self.packets

    @property
    def width(self) -> int:
        """Bytes of a beat of the port that a link without packets of its own is connected to."""
        return FLIT_BYTES if self.mux is not None else self.beats[0].token_bits // 8


def _whole(stream: Stream) -> bool:
    """Whether a width converter to a link and one behind it yield the very same beats."""
    width = stream.token_bits // 8
    fits = AURORA_BYTES % width == 0 or width % AURORA_BYTES == 0
    return fits and stream.tokens * width % AURORA_BYTES == 0


def around(
    design: StageDesign,
    crossing: Sequence[str],
    banks: Sequence[str] = ("DDR[0]",),
    *,
    hosted: bool = False,
) -> Around:
    """The connections of a stage.

    Args:
        design: The stage.
        crossing: Names of the values that come from or go to another board.
        banks: Names of the board's memory ports.
        hosted: Whether a mover stands between the host and each stream that it feeds or reads.
    """
    known = {identifier(port.name): port.bank for port in design.ddr if port.bank}
    found: dict[str, str] = {}
    for name in memories(design):
        found.setdefault(bundle(name), known.get(name, banks[0]))
    ports = port_names(design)
    links = [name for name, port in ports.items() if port.value in set(crossing)]
    host = tuple(n for n in ports if n not in links)
    return Around(
        found,
        tuple(n for n in links if n.startswith("in_")),
        tuple(n for n in links if n.startswith("out_")),
        host,
        movers(design, host, banks) if hosted else (),
    )


def sides(design: StageDesign, found: Around) -> list[Side]:
    """The sides of a stage that values cross: the board before, then the one behind."""
    each = ((0, "rx", found.receives), (1, "tx", found.sends))
    kernels = [(cage, shared(design, ports, way)) for cage, way, ports in each if ports]
    values = port_names(design)
    return [
        Side(cage, one.way, one, tuple(design.streams[values[p].stream] for p in one.ports))
        for cage, one in kernels
    ]


def link_cfg(design: StageDesign, found: Around) -> str:
    """``link.cfg`` for ``v++ --link``: kernels, memories, streams, transceivers.

    The board before is behind the first QSFP cage, the one behind it behind the second; each cage
    has an Aurora kernel. Where several values cross on one side, or frames are no whole beats of
    the link, a kernel of ``link/`` leads them over the link, in packets with credits that come back
    on its other direction. Between streams of unlike width v++ puts converters (UG1393, Specifying
    Streaming Connections).
    """
    used = sides(design, found)
    kernels = {f"krnl_aurora_{side.cage}": "krnl_aurora" for side in used}
    kernels |= {f"{s.mux.name}_1": s.mux.name for s in used if s.mux is not None}
    lines = []
    for side in used:
        core = f"krnl_aurora_{side.cage}"
        lines += _streams(design, side, side.mux, (f"{core}.rx_axis", f"{core}.tx_axis"))
        lines += [
            f"connect=io_clk_qsfp_refclka_0{side.cage}:{core}/gt_refclk",
            f"connect={core}/gt_port:io_gt_qsfp_0{side.cage}",
        ]
    return _connectivity(design, found, kernels, lines)


def link_udp_cfg(design: StageDesign, found: Around) -> str:
    """The same with UDP network kernels (``networklayer`` and ``cmac`` of VNx) behind each cage.

    Every value travels in the packets of the kernels in ``link/``, one datagram each, so that what
    is under way always has room where it arrives, as UDP holds nothing back. Socket 0 of each
    network layer is the board on the other side. The transceivers are connected by VNx's script,
    which finds the board's names for them.
    """
    used = sides(design, found)
    kernels, lines = dict[str, str](), list[str]()
    for side in used:
        net, core = f"networklayer_{side.cage}", f"cmac_{side.cage}"
        kernels |= {core: core, net: "networklayer", f"{side.packets.name}_1": side.packets.name}
        lines += [
            f"stream_connect={core}.M_AXIS:{net}.S_AXIS_eth2nl",
            f"stream_connect={net}.M_AXIS_nl2eth:{core}.S_AXIS",
        ]
        ends = (f"{net}.M_AXIS_nl2sk", f"{net}.S_AXIS_sk2nl")
        lines += _streams(design, side, side.packets, ends)
    script = "userPostSysLinkOverlayTcl=<xup_vitis_network_example>/Ethernet/post_sys_link.tcl"
    advanced = ["", "[advanced]", f"param=compiler.{script}"] if used else []
    return _connectivity(design, found, kernels, [*lines, *advanced])


def _connectivity(
    design: StageDesign, found: Around, kernels: Mapping[str, str], links: Sequence[str]
) -> str:
    """A file for ``v++ --link``: kernels, memory banks, then what connects them to links.

    ``kernels`` are those on the links: instance to kernel.
    """
    kernel = f"{top_name(design)}_1"
    instances = {kernel: top_name(design), **kernels}
    instances |= {f"{mover.name}_1": mover.name for mover in found.movers}
    lines = ["[connectivity]"]
    for name in dict.fromkeys(instances.values()):
        own = [instance for instance, of in instances.items() if of == name]
        lines.append(f"nk={name}:{len(own)}:{','.join(own)}")
    lines += [f"sp={kernel}.m_axi_{name}:{bank}" for name, bank in found.banks.items()]
    lines += [f"sp={mover.name}_1.m_axi_gmem:{mover.memory}" for mover in found.movers]
    for mover in found.movers:
        ends = (f"{mover.name}_1.{mover.stream}", f"{kernel}.{mover.port}")
        lines.append("stream_connect=" + ":".join(ends if mover.feeds else reversed(ends)))
    lines += links
    moved = {mover.port for mover in found.movers}
    lines += [
        f"# to or from the host, by a data mover: {kernel}.{port}"
        for port in found.host
        if port not in moved
    ]
    lines += [f"# {text}" for text in port_facts(design)]
    return "\n".join([*lines, ""])


def _streams(
    design: StageDesign, side: Side, packets: Shared | None, ends: tuple[str, str]
) -> list[str]:
    """The streams of a side, through a kernel or without, to where a link receives and sends."""
    (rx, tx), kernel = ends, f"{top_name(design)}_1"
    if packets is None:
        own = f"{kernel}.{side.ports[0]}"
        pairs = [(rx, own)] if side.way == "rx" else [(own, tx)]
    else:
        middle = f"{packets.name}_1"
        pairs = [(f"{kernel}.{port}", f"{middle}.{port}") for port in packets.ports]
        if side.way == "rx":
            pairs = [(b, a) for a, b in pairs]
        pairs += [(rx, f"{middle}.{packets.into}"), (f"{middle}.{packets.out}", tx)]
    return [f"stream_connect={a}:{b}" for a, b in pairs]


def port_facts(design: StageDesign) -> list[str]:
    """A line per stream port: its value, width and beats."""
    return [
        f"{name}: {comment(port.value)}, {design.streams[port.stream].token_bits} bit, "
        f"{design.streams[port.stream].tokens} beats per frame"
        for name, port in port_names(design).items()
    ]


def block_design(design: StageDesign, found: Around) -> str:
    """``block_design.tcl`` for boards without a Vitis platform: kernel, memories, links, clock.

    For ``vivado -mode batch -source block_design.tcl`` after ``run_hls.tcl`` has exported the IP.
    Streams to and from the host become external ports, for the user's DMA.
    """
    top = top_name(design)
    controllers = sorted(set(found.banks.values()))
    cells = {bank: f"ddr4_{k}" for k, bank in enumerate(controllers)}
    lines = [
        f"# Block design of {design.name} on {comment(design.device)} ({design.part}).",
        "set stage [file normalize [file dirname [info script]]]",
        f"create_project -force {top}_bd $stage/build_bd -part {design.part}",
        "set_property ip_repo_paths [list $stage/build_hls $stage/build_link] [current_project]",
        "update_ip_catalog",
        f"create_bd_design {top}_bd",
        f"create_bd_cell -type ip -vlnv xilinx.com:hls:{top}:1.0 kernel",
        "create_bd_cell -type ip -vlnv xilinx.com:ip:clk_wiz clock",
        f"set_property CONFIG.CLKOUT1_REQUESTED_OUT_FREQ {design.clock_mhz:g} [get_bd_cells clock]",
        "create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset reset",
        "connect_bd_net [get_bd_pins clock/clk_out1] [get_bd_pins kernel/ap_clk]"
        " [get_bd_pins reset/slowest_sync_clk]",
        "connect_bd_net [get_bd_pins reset/peripheral_aresetn] [get_bd_pins kernel/ap_rst_n]",
        "make_bd_intf_pins_external [get_bd_intf_pins kernel/s_axi_control]",
    ]
    for bank, cell in cells.items():
        users = [name for name, at in found.banks.items() if at == bank]
        lines += _memory(cell, users)
    for side in sides(design, found):
        lines += _link(side)
    lines += [f"make_bd_intf_pins_external [get_bd_intf_pins kernel/{port}]" for port in found.host]
    return "\n".join([*lines, "validate_bd_design", "save_bd_design", ""])


def _memory(cell: str, users: list[str]) -> list[str]:
    """A DDR4 controller and the interconnect that leads the kernel's ports to it."""
    lines = [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:ddr4 {cell}",
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect {cell}_ports",
        f"set_property CONFIG.NUM_SI {len(users)} [get_bd_cells {cell}_ports]",
    ]
    lines += [
        f"connect_bd_intf_net [get_bd_intf_pins kernel/m_axi_{user}]"
        f" [get_bd_intf_pins {cell}_ports/S{k:02d}_AXI]"
        for k, user in enumerate(users)
    ]
    return [
        *lines,
        f"connect_bd_intf_net [get_bd_intf_pins {cell}_ports/M00_AXI]"
        f" [get_bd_intf_pins {cell}/C0_DDR4_S_AXI]",
        f"make_bd_intf_pins_external [get_bd_intf_pins {cell}/C0_DDR4]",
    ]


def _link(side: Side) -> list[str]:
    """An Aurora core of four lanes, the clock crossings to it, and who sends and receives."""
    core = f"aurora_{side.cage}"
    lines = [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:aurora_64b66b {core}",
        f"set_property CONFIG.C_AURORA_LANES 4 [get_bd_cells {core}]",
        f"make_bd_intf_pins_external [get_bd_intf_pins {core}/GT_SERIAL_RX]",
        f"make_bd_intf_pins_external [get_bd_intf_pins {core}/GT_SERIAL_TX]",
    ]
    if side.mux is None:
        lead = _from_link if side.way == "rx" else _to_link
        return [*lines, *lead(core, f"kernel/{side.ports[0]}", side.width)]
    mux = f"link_{side.way}"
    lines += [
        f"create_bd_cell -type ip -vlnv xilinx.com:hls:{side.mux.name}:1.0 {mux}",
        f"connect_bd_net [get_bd_pins clock/clk_out1] [get_bd_pins {mux}/ap_clk]",
        f"connect_bd_net [get_bd_pins reset/peripheral_aresetn] [get_bd_pins {mux}/ap_rst_n]",
        f"make_bd_intf_pins_external [get_bd_intf_pins {mux}/s_axi_control]",
    ]
    lines += [
        f"connect_bd_intf_net [get_bd_intf_pins kernel/{port}] [get_bd_intf_pins {mux}/{port}]"
        for port in side.mux.ports
    ]
    lines += _from_link(core, f"{mux}/{side.mux.into}", side.width)
    return lines + _to_link(core, f"{mux}/{side.mux.out}", side.width)


def _from_link(core: str, pin: str, width: int) -> list[str]:
    lines, source = _resized(f"{core}_rx_width", AURORA_BYTES, width)
    crossing = _crossing(f"{core}_rx_clock", f"{core}/USER_DATA_M_AXIS_RX", source or pin)
    return [*lines, *crossing, *([_joined(f"{core}_rx_width/M_AXIS", pin)] if source else [])]


def _to_link(core: str, pin: str, width: int) -> list[str]:
    lines, sink = _resized(f"{core}_tx_width", width, AURORA_BYTES)
    if sink:
        lines.append(_joined(pin, sink))
        pin = f"{core}_tx_width/M_AXIS"
    return [*lines, *_crossing(f"{core}_tx_clock", pin, f"{core}/USER_DATA_S_AXIS_TX")]


def _resized(cell: str, source: int, sink: int) -> tuple[list[str], str]:
    """A width converter at the kernel's clock and its input; neither where widths are equal.

    Args:
        cell: Its name.
        source: Bytes of a beat that it takes.
        sink: Bytes of a beat that it gives.
    """
    if source == sink:
        return [], ""
    return [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:axis_dwidth_converter {cell}",
        f"set_property -dict {{CONFIG.S_TDATA_NUM_BYTES {source} CONFIG.M_TDATA_NUM_BYTES {sink}}}"
        f" [get_bd_cells {cell}]",
        f"connect_bd_net [get_bd_pins clock/clk_out1] [get_bd_pins {cell}/aclk]",
        f"connect_bd_net [get_bd_pins reset/peripheral_aresetn] [get_bd_pins {cell}/aresetn]",
    ], f"{cell}/S_AXIS"


def _joined(source: str, sink: str) -> str:
    return f"connect_bd_intf_net [get_bd_intf_pins {source}] [get_bd_intf_pins {sink}]"


def _crossing(cell: str, source: str, sink: str) -> list[str]:
    """A stream from one clock to another."""
    return [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:axis_clock_converter {cell}",
        _joined(source, f"{cell}/S_AXIS"),
        _joined(f"{cell}/M_AXIS", sink),
    ]
