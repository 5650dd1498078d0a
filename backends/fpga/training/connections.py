"""What joins the kernels of a stage on its board: memories, and values that wait on chip.

```text
connections.cfg   for v++ --link, where the board has a Vitis platform: kernels, banks, streams
connections.tcl   a block design of all kernels, where it has none
```

Names are those of `pipec.backends.fpga.emit.link`. Streams that cross to another board are named,
and left to the user: values go down the pipeline and gradients up it, over one pair of links.
"""

import dataclasses
from collections.abc import Mapping

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.block import board_design
from pipec.backends.fpga.emit.link import (
    Around,
    Site,
    around,
    connectivity,
    instance,
    pin,
)
from pipec.backends.fpga.emit.source import port_names, top_name
from pipec.backends.fpga.training.stage import TrainedStage
from pipec.cluster.device import FpgaResources

CONNECTIONS = "connections"
CROSSING = ("value", "gradient")
"""Kinds of inputs and outputs that come from other stages, or go there."""

_WAY = (("forward", "out"), ("saved", "in"), ("saved", "out"), ("backward", "in"))
"""Kernels and sides that a value on chip comes through."""


def ways(stage: TrainedStage) -> dict[str, dict[tuple[str, str], str]]:
    """Value on chip to its port at every side: of ``forward``, ``saved`` twice, ``backward``."""
    designs, found = stage.designs, dict[str, dict[tuple[str, str], str]]()
    values = {p.value for p in designs["saved"].outputs} if "saved" in designs else set()
    for kernel, way in _WAY if values else ():
        for name, port in port_names(designs[kernel]).items():
            if port.value in values and name.startswith(f"{way}_"):
                found.setdefault(port.value, {})[kernel, way] = name
    return found


def connections(
    stage: TrainedStage, designs: Mapping[str, StageDesign], fabric: FpgaResources | None
) -> tuple[str, str]:
    """Name and text of the file that joins the kernels of a board.

    Args:
        stage: Of the plan.
        designs: Its kernels by folder.
        fabric: Of the board; without it, memory is one DDR port and there is no platform.
    """
    pairs = [
        ((a, ends[a]), (b, ends[b]))
        for ends in ways(stage).values()
        for a, b in ((_WAY[0], _WAY[1]), (_WAY[2], _WAY[3]))
    ]
    taken = {(kernel, port) for pair in pairs for (kernel, _), port in pair}
    tops = {folder: top_name(design) for folder, design in designs.items()}
    kernels = {
        folder: (design, _around(stage, design, fabric, {p for k, p in taken if k == folder}))
        for folder, design in designs.items()
    }
    if fabric is not None and fabric.has_platform:
        ends = [[pin(tops[kernel], port) for (kernel, _), port in pair] for pair in pairs]
        elsewhere = [
            pin(tops[folder], port)
            for folder, (_, found) in kernels.items()
            for port in (*found.receives, *found.sends)
        ]
        text = connectivity(list(kernels.values()), {}, joints=ends, elsewhere=elsewhere)
        return f"{CONNECTIONS}.cfg", text
    cells = {instance(tops[f]): (design, _outside(found)) for f, (design, found) in kernels.items()}
    ends = [[f"{instance(tops[kernel])}/{port}" for (kernel, _), port in pair] for pair in pairs]
    folders = [f"{folder}/build_hls" for folder in designs]
    name = identifier(stage.kernels.F.name.removesuffix("_forward"))
    return f"{CONNECTIONS}.tcl", board_design(name, cells, folders, joints=ends)


def _around(
    stage: TrainedStage, design: StageDesign, fabric: FpgaResources | None, inside: set[str]
) -> Around:
    """What a kernel is connected to, but for the ports that another one of its board feeds."""
    graphs = (stage.phases.F, stage.phases.B)
    arriving = {i.name for graph in graphs for i in graph.inputs if i.kind in CROSSING}
    leaving = {o.name for graph in graphs for o in graph.outputs if o.kind in CROSSING}
    found = around(design, Site.on(fabric, crossing=sorted(arriving | leaving)))
    return dataclasses.replace(found, host=tuple(p for p in found.host if p not in inside))


def _outside(found: Around) -> Around:
    """The same with what crosses to other boards left to the user, like what the host feeds."""
    return dataclasses.replace(found, host=(*found.receives, *found.sends, *found.host))
