"""What every node costs, as a table that is saved, printed and cut by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipec.errors import CostError


@dataclass(frozen=True)
class NodeCost:
    """What one node computes and moves, whatever the device.

    Attributes:
        flops: Floating point operations, a multiply-add counted as two.
        bytes_read: Bytes of all distinct tensors it reads, weights included.
        bytes_written: Bytes of all tensors it yields that are not views.
        parameter_bytes: Bytes of the weights among what it reads.
        output_bytes: Bytes of its results, views included.
    """

    flops: float
    bytes_read: int
    bytes_written: int
    parameter_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class CostTable:
    """Cost of every call node of one graph.

    Attributes:
        nodes: Node name to what it computes and moves.
        seconds: Device kind to node name to forward seconds of one microbatch.
        method: Device kind to how its seconds were found: ``roofline``, ``measured``, or the name
            of a backend's model.
    """

    nodes: Mapping[str, NodeCost]
    seconds: Mapping[str, Mapping[str, float]]
    method: Mapping[str, str]

    def of(self, kind: str) -> Mapping[str, float]:
        """Seconds per node on devices of ``kind``.

        Raises:
            CostError: The table has no figures for this kind.
        """
        if kind not in self.seconds:
            raise CostError(
                "no costs for this kind of device", got=kind, want=", ".join(self.seconds)
            )
        return self.seconds[kind]

    def to_json(self) -> dict[str, object]:
        """The table as plain data."""
        return {
            "nodes": {name: list(asdict(cost).values()) for name, cost in self.nodes.items()},
            "seconds": {kind: dict(row) for kind, row in self.seconds.items()},
            "method": dict(self.method),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "CostTable":
        """The inverse of `to_json`.

        Raises:
            CostError: The record is malformed.
        """
        try:
            nodes = {name: NodeCost(*row) for name, row in data["nodes"].items()}
            return CostTable(nodes, data["seconds"], data["method"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CostError("a cost record is malformed", got=repr(error)) from error
