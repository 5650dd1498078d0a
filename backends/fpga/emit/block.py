"""Block designs, for boards without a Vitis platform: kernels, memory controllers, links, clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.link import Around, memory_port, sides
from pipec.backends.fpga.emit.source import top_name
from pipec.backends.fpga.links import AURORA_BYTES

SMARTCONNECT_INPUTS = 16
"""Memory ports that one AXI SmartConnect takes (PG247)."""


def block_design(design: StageDesign, found: Around) -> str:
    """``block_design.tcl`` for boards without a Vitis platform: kernel, memories, links, clock.

    For ``vivado -mode batch -source block_design.tcl`` after ``run_hls.tcl`` has exported the IP.
    Streams to and from the host become external ports, for the user's DMA.
    """
    cells, folders = {"kernel": (design, found)}, ("build_hls", "build_link")
    return board_design(top_name(design), cells, folders, sides=sides(design, found))


def board_design(
    name: str,
    cells: Mapping[str, tuple[StageDesign, Around]],
    folders: Sequence[str],
    *,
    sides: Sequence[Any] = (),
    joints: Sequence[Sequence[str]] = (),
) -> str:
    """A block design of several kernels.

    Args:
        name: Of the block design.
        cells: Its kernels by cell and what is around each, at least one; all have one clock.
        folders: Where their IPs are, relative to the script.
        sides: Links of the only kernel.
        joints: Pairs of pins of kernels that are joined.
    """
    first, _ = next(iter(cells.values()))
    users: dict[str, list[str]] = {}
    for cell, (_, found) in cells.items():
        for bundle, bank in found.banks.items():
            users.setdefault(bank, []).append(f"{cell}/{memory_port(bundle)}")
    memories = [_interconnects(f"ddr4_{k}_ports", users[b]) for k, b in enumerate(sorted(users))]
    return filled(
        "block_design.tcl",
        stages=[design.name for design, _ in cells.values()],
        board=comment(first.device),
        part=first.part,
        clock=f"{first.clock_mhz:g}",
        name=name,
        folders=folders,
        kernels={cell: top_name(design) for cell, (design, _) in cells.items()},
        memories=memories,
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
