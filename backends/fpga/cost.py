"""What a node costs on a board before anything is folded: the share of the interval it will need.

Folding spreads a board's DSPs over its layers in proportion to their work, so a node needs its
operations times DSPs per operation, divided by all usable DSPs and the clock. Weights that
certainly do not fit on chip need their bytes over the DDR bandwidth too, at the same time: the
longer of both counts.
"""

from torch import fx

from pipec.cluster.device import Device
from pipec.cost.model import CostModel, Roofline
from pipec.cost.table import NodeCost

ON_CHIP_SHARE = 0.5
"""A layer whose weights need more than this share of the on-chip memory is taken as streamed."""


class FpgaCost(CostModel):
    """Seconds of a node in a board's dataflow, in float32."""

    name = "fpga"

    def seconds(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Share of the interval, in seconds, that ``node`` takes of a board to itself."""
        fabric = device.fpga
        if fabric is None:
            return Roofline().seconds(node, cost, device)
        compute, nbytes = cost.flops / device.flops("float32"), cost.parameter_bytes
        if nbytes <= ON_CHIP_SHARE * fabric.on_chip_bytes * fabric.memory_limit:
            return compute
        return max(compute, nbytes / (device.memory_rate * fabric.memory_limit))
