"""What a node costs on a board before anything is folded: the share of the interval it will need.

Folding spreads a board's DSPs over its layers in proportion to their work, so a node needs its
operations times DSPs per operation, divided by all usable DSPs and the clock. Weights that
certainly do not fit on chip need their bytes over the DDR bandwidth too, at the same time as other
nodes compute; how much of that shows depends on the cut.
"""

from collections.abc import Sequence

from torch import fx

from pipec.cluster.device import Device
from pipec.cost.flops import FlopCounter
from pipec.cost.model import CostModel, Roofline
from pipec.cost.table import NodeCost
from pipec.graph.ir import nbytes

ON_CHIP_SHARE = 0.5
"""A layer whose weights need more than this share of the on-chip memory is taken as streamed."""
BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the streaming time that are tried as a node's cost; see `blend`."""


class FpgaCost(CostModel):
    """Seconds of a node in a board's dataflow, computed in float32.

    Args:
        boards: Boards that the graph will be cut over.
    """

    name = "fpga"

    def __init__(self, boards: int = 1) -> None:
        self.boards = boards
        self._blends: dict[tuple[fx.Graph, str], float] = {}

    def seconds(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Share of the interval, in seconds, that ``node`` takes of a board to itself."""
        if device.fpga is None:
            return Roofline().seconds(node, cost, device)
        compute = cost.flops / device.flops("float32")
        stream = self._stream(cost.parameter_bytes, device)
        return max(compute, stream and stream * self._blend(node.graph, device))

    def _stream(self, parameter_bytes: float, device: Device) -> float:
        """Seconds of DDR traffic; 0 where the weights may stay on chip."""
        assert device.fpga is not None
        room = device.fpga.on_chip_bytes * device.fpga.memory_limit
        if parameter_bytes <= ON_CHIP_SHARE * room:
            return 0.0
        return parameter_bytes / (device.memory_bandwidth * device.fpga.memory_limit)

    def _blend(self, graph: fx.Graph, device: Device) -> float:
        if (graph, device.kind) in self._blends:
            return self._blends[graph, device.kind]
        calls = [n for n in graph.nodes if n.op == "call_function"]
        counter = FlopCounter()
        compute = [counter.flops(n) / device.flops("float32") for n in calls]
        stream = [
            self._stream(sum(nbytes(a) for a in n.all_input_nodes if a.op == "placeholder"), device)
            for n in calls
        ]
        return self._blends.setdefault((graph, device.kind), blend(compute, stream, self.boards))


def blend(compute: Sequence[float], stream: Sequence[float], boards: int) -> float:
    """The share of streaming time that, as cost, leads to the best cut into contiguous stages.

    A stage takes the larger of its computing and its streaming, but a cut minimises a sum; so
    each share is tried as ``max(compute, share * stream)``, and the cuts are compared by what
    they really take. The larger share wins a tie.

    Args:
        compute: Seconds of computing per node, in order.
        stream: Seconds of streaming per node.
        boards: Stages.

    Example:
        >>> blend([4, 4, 0, 0], [0, 0, 3, 3], 2)      # both streams beside the second 4
        0.5
        >>> blend([1, 1, 0, 0], [0, 0, 9, 9], 2)
        1.0
    """
    best = (float("inf"), 0.0)
    for share in reversed(BLENDS):
        costs = [max(c, share * s) for c, s in zip(compute, stream, strict=True)]
        slowest, start = 0.0, 0
        for end in _cuts(costs, boards):
            slowest = max(slowest, sum(compute[start:end]), sum(stream[start:end]))
            start = end
        if slowest < best[0] * (1 - 1e-9):
            best = (slowest, share)
    return best[1]


def _cuts(costs: Sequence[float], boards: int) -> list[int]:
    """Ends of at most ``boards`` contiguous stages whose largest sum is least (bisection)."""
    low, high = max(costs, default=0.0), sum(costs)
    for _ in range(50):
        middle = (low + high) / 2
        if len(_greedy(costs, middle)) <= boards:
            high = middle
        else:
            low = middle
    return _greedy(costs, high)


def _greedy(costs: Sequence[float], limit: float) -> list[int]:
    ends, total = [], 0.0
    for k, cost in enumerate(costs):
        if total + cost > limit * (1 + 1e-12) and total:
            ends.append(k)
            total = 0.0
        total += cost
    return [*ends, len(costs)]
