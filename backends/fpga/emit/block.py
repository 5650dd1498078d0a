"""Block designs, for boards without a Vitis platform: kernels, memory controllers, links, clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.cpp import comment
from pipec.backends.fpga.emit.link import AURORA_BYTES, Around, Side, sides
from pipec.backends.fpga.emit.pins import memory_port
from pipec.backends.fpga.emit.source import top_name

SMARTCONNECT_INPUTS = 16
"""Memory ports that one AXI SmartConnect takes (PG247)."""


@dataclass(frozen=True)
class Cell:
    """A kernel in a block design.

    Attributes:
        name: Of its cell.
        design: The kernel.
        around: What it is connected to.
    """

    name: str
    design: StageDesign
    around: Around


def block_design(design: StageDesign, found: Around) -> str:
    """``block_design.tcl`` for boards without a Vitis platform: kernel, memories, links, clock.

    For ``vivado -mode batch -source block_design.tcl`` after ``run_hls.tcl`` has exported the IP.
    Streams to and from the host become external ports, for the user's DMA.
    """
    links = [line for side in sides(design, found) for line in _link(side)]
    folders = ("build_hls", "build_link")
    return board_design(top_name(design), [Cell("kernel", design, found)], folders, links)


def board_design(
    name: str, cells: Sequence[Cell], folders: Sequence[str], links: Sequence[str]
) -> str:
    """A block design of several kernels.

    Args:
        name: Of the block design.
        cells: Its kernels, at least one; all have one clock.
        folders: Where their IPs are, relative to the script.
        links: What joins their streams to links, or to each other.
    """
    first = cells[0].design
    names = ", ".join(cell.design.name for cell in cells)
    repositories = " ".join(f"$stage/{folder}" for folder in folders)
    lines = [
        f"# Block design of {names} on {comment(first.device)} ({first.part}).",
        "set stage [file normalize [file dirname [info script]]]",
        f"create_project -force {name}_bd $stage/build_bd -part {first.part}",
        f"set_property ip_repo_paths [list {repositories}] [current_project]",
        "update_ip_catalog",
        f"create_bd_design {name}_bd",
        "create_bd_cell -type ip -vlnv xilinx.com:ip:clk_wiz clock",
        f"set_property CONFIG.CLKOUT1_REQUESTED_OUT_FREQ {first.clock_mhz:g} [get_bd_cells clock]",
        "create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset reset",
        "connect_bd_net [get_bd_pins clock/clk_out1] [get_bd_pins reset/slowest_sync_clk]",
    ]
    for cell in cells:
        lines += _kernel(cell)
    users: dict[str, list[str]] = {}
    for cell in cells:
        for bundle, bank in cell.around.banks.items():
            users.setdefault(bank, []).append(f"{cell.name}/{memory_port(bundle)}")
    for k, bank in enumerate(sorted(users)):
        lines += _memory(f"ddr4_{k}", users[bank])
    lines += links
    host = [f"{cell.name}/{port}" for cell in cells for port in cell.around.host]
    lines += [f"make_bd_intf_pins_external [get_bd_intf_pins {name}]" for name in host]
    return "\n".join([*lines, "validate_bd_design", "save_bd_design", ""])


def _kernel(cell: Cell) -> list[str]:
    """A kernel with its clock, its reset and the host's access to its registers."""
    return [
        f"create_bd_cell -type ip -vlnv xilinx.com:hls:{top_name(cell.design)}:1.0 {cell.name}",
        f"connect_bd_net [get_bd_pins clock/clk_out1] [get_bd_pins {cell.name}/ap_clk]",
        f"connect_bd_net [get_bd_pins reset/peripheral_aresetn] [get_bd_pins {cell.name}/ap_rst_n]",
        f"make_bd_intf_pins_external [get_bd_intf_pins {cell.name}/s_axi_control]",
    ]


def _memory(cell: str, users: Sequence[str]) -> list[str]:
    """A DDR4 controller and the interconnect that leads these pins to it."""
    lines, level = [f"create_bd_cell -type ip -vlnv xilinx.com:ip:ddr4 {cell}"], list(users)
    below = 0
    while len(level) > SMARTCONNECT_INPUTS:
        groups = [
            level[k : k + SMARTCONNECT_INPUTS] for k in range(0, len(level), SMARTCONNECT_INPUTS)
        ]
        level = []
        for group in groups:
            below += 1
            lines += _interconnect(f"{cell}_ports_{below}", group)
            level.append(f"{cell}_ports_{below}/M00_AXI")
    return [
        *lines,
        *_interconnect(f"{cell}_ports", level),
        joined(f"{cell}_ports/M00_AXI", f"{cell}/C0_DDR4_S_AXI"),
        f"make_bd_intf_pins_external [get_bd_intf_pins {cell}/C0_DDR4]",
    ]


def _interconnect(cell: str, users: Sequence[str]) -> list[str]:
    """An interconnect of memory ports with one output."""
    return [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect {cell}",
        f"set_property CONFIG.NUM_SI {len(users)} [get_bd_cells {cell}]",
        *(joined(user, f"{cell}/S{k:02d}_AXI") for k, user in enumerate(users)),
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
    return [*lines, *crossing, *([joined(f"{core}_rx_width/M_AXIS", pin)] if source else [])]


def _to_link(core: str, pin: str, width: int) -> list[str]:
    lines, sink = _resized(f"{core}_tx_width", width, AURORA_BYTES)
    if sink:
        lines.append(joined(pin, sink))
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


def joined(source: str, sink: str) -> str:
    """The line that joins two interfaces of cells."""
    return f"connect_bd_intf_net [get_bd_intf_pins {source}] [get_bd_intf_pins {sink}]"


def _crossing(cell: str, source: str, sink: str) -> list[str]:
    """A stream from one clock to another."""
    return [
        f"create_bd_cell -type ip -vlnv xilinx.com:ip:axis_clock_converter {cell}",
        joined(source, f"{cell}/S_AXIS"),
        joined(f"{cell}/M_AXIS", sink),
    ]
