"""Measured costs at another number of samples."""

from collections.abc import Mapping
from dataclasses import replace

from pipec.cost.table import CostTable, NodeCost


def scale_costs(costs: CostTable, ratio: float) -> CostTable:
    """The costs of ``ratio`` times as many samples.

    Seconds, FLOPs and bytes of activations grow in proportion; bytes of weights stay. Figures of
    whole stages and of messages are dropped, as these are of other sizes.
    """

    def scale(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        return {kind: {name: s * ratio for name, s in row.items()} for kind, row in rows.items()}

    nodes = {name: _scale_node(cost, ratio) for name, cost in costs.nodes.items()}
    return CostTable(nodes, scale(costs.seconds), costs.method, backward=scale(costs.backward))


def _scale_node(cost: NodeCost, ratio: float) -> NodeCost:
    data = cost.bytes_read - cost.parameter_bytes
    return replace(
        cost,
        flops=cost.flops * ratio,
        bytes_read=int(data * ratio) + cost.parameter_bytes,
        bytes_written=int(cost.bytes_written * ratio),
        output_bytes=int(cost.output_bytes * ratio),
    )
