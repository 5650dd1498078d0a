"""Block designs, for boards without a Vitis platform: kernels, memory controllers, links, clock."""

from collections.abc import Mapping, Sequence

from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.link import Around, Side, memory_port, sides
from pipec.backends.fpga.emit.source import top_name
from pipec.backends.fpga.links import AURORA_BYTES

SMARTCONNECT_INPUTS = 16
"""Memory ports that one AXI SmartConnect takes (PG247)."""


def block_design(design: StageDesign, found: Around) -> str:
    """``block_design.tcl`` for boards without a Vitis platform: kernel, memories, links, clock.

    For ``vivado -mode batch -source block_design.tcl`` after ``run_hls.tcl`` has exported the IP.
    Streams to and from the host become external ports, for the user's DMA.
    """
    links = [line for side in sides(design, found) for line in _link(side)]
    folders = ("build_hls", "build_link")
    return board_design(top_name(design), {"kernel": (design, found)}, folders, links)


def board_design(
    name: str,
    cells: Mapping[str, tuple[StageDesign, Around]],
    folders: Sequence[str],
    links: Sequence[str],
) -> str:
    """A block design of several kernels.

    Args:
        name: Of the block design.
        cells: Its kernels by cell and what is around each, at least one; all have one clock.
        folders: Where their IPs are, relative to the script.
        links: What joins their streams to links, or to each other.
    """
    designs = [design for design, _ in cells.values()]
    lines = [line for c, (design, _) in cells.items() for line in _kernel(top_name(design), c)]
    users: dict[str, list[str]] = {}
    for cell, (_, found) in cells.items():
        for bundle, bank in found.banks.items():
            users.setdefault(bank, []).append(f"{cell}/{memory_port(bundle)}")
    for k, bank in enumerate(sorted(users)):
        lines += _memory(f"ddr4_{k}", users[bank])
    lines += links
    host = [f"{cell}/{port}" for cell, (_, found) in cells.items() for port in found.host]
    return filled(
        "block_design.tcl",
        stages=", ".join(design.name for design in designs),
        board=comment(designs[0].device),
        part=designs[0].part,
        name=name,
        repositories=" ".join(f"$stage/{folder}" for folder in folders),
        clock=f"{designs[0].clock_mhz:g}",
        cells=[*lines, *map(_external, host)],
    )


def _lines(section: str, **gaps: object) -> list[str]:
    return filled("block_design.tcl", section, **gaps).splitlines()


def _external(pin: str) -> str:
    return f"make_bd_intf_pins_external [get_bd_intf_pins {pin}]"


def _kernel(top: str, cell: str) -> list[str]:
    """A kernel with its clock, its reset and the host's access to its registers."""
    return _lines("kernel", top=top, cell=cell)


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
    lines += _interconnect(f"{cell}_ports", level)
    lead = joined(f"{cell}_ports/M00_AXI", f"{cell}/C0_DDR4_S_AXI")
    return [*lines, lead, _external(f"{cell}/C0_DDR4")]


def _interconnect(cell: str, users: Sequence[str]) -> list[str]:
    """An interconnect of memory ports with one output."""
    ends = [joined(user, f"{cell}/S{k:02d}_AXI") for k, user in enumerate(users)]
    return [*_lines("interconnect", cell=cell, count=len(users)), *ends]


def _link(side: Side) -> list[str]:
    """An Aurora core of four lanes, the clock crossings to it, and who sends and receives."""
    core = f"aurora_{side.cage}"
    lines = _lines("link", core=core)
    if side.mux is None:
        lead = _from_link if side.way == "rx" else _to_link
        return [*lines, *lead(core, f"kernel/{side.ports[0]}", side.width)]
    mux = f"link_{side.way}"
    lines += _kernel(side.mux.name, mux)
    lines += [joined(f"kernel/{port}", f"{mux}/{port}") for port in side.mux.ports]
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
    return _lines("width", cell=cell, source=source, sink=sink), f"{cell}/S_AXIS"


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
