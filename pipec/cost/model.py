"""How long a node takes on a device: one protocol, the roofline behind it."""

from typing import Protocol

from torch import fx

from pipec.cluster.device import Device
from pipec.cost.table import NodeCost
from pipec.graph.ir import tensors


class CostModel(Protocol):
    """Times nodes; the roofline, a cost file and a backend's own model all are one."""

    name: str

    def seconds(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Forward seconds of ``node`` for one microbatch on ``device``."""


class Roofline:
    """The larger of compute and memory time, plus the launch (Williams et al., CACM'09).

    ``max(flops / peak(dtype), (bytes read + written) / memory bandwidth) + launch``, both rates
    times the share of them that is reached (`Device`); a node that moves and computes nothing (a
    view, a getitem) takes no time.
    """

    name = "roofline"

    def seconds(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Forward seconds of ``node`` for one microbatch on ``device``."""
        moved = cost.bytes_read + cost.bytes_written
        if not cost.flops and not cost.bytes_written:
            return 0.0
        compute = cost.flops / (device.flops(dtype_of(node)) * device.compute_efficiency)
        memory = moved / device.memory_rate
        return max(compute, memory) + device.launch_seconds


def dtype_of(node: fx.Node) -> str:
    """Dtype in which ``node`` computes: that of its widest floating input or output."""
    found = [t for n in (*node.all_input_nodes, node) for t in tensors(n)]
    floating = [t.dtype for t in found if t.dtype.is_floating_point]
    widest = max(floating, key=lambda d: d.itemsize, default=None)
    return str(widest).removeprefix("torch.") if widest else "float32"
