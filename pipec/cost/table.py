"""What every node costs, as a table that is saved, printed and cut by."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from msgspec import convert, to_builtins

from pipec.cost.stage import MessageCost, StageCost
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
        backward: Seconds of its backward in units of its forward (`pipec.cost.count`).
    """

    flops: float
    bytes_read: int
    bytes_written: int
    parameter_bytes: int
    output_bytes: int
    backward: float = 2.0


@dataclass(frozen=True)
class CostTable:
    """Cost of every call node of one graph.

    Attributes:
        nodes: Node name to what it computes and moves.
        seconds: Device kind to node name to forward seconds of one microbatch.
        method: Device kind to how its seconds were found: ``roofline``, ``measured``, ``silicon``,
            or the name of a backend's model.
        stages: Device kind to a stage's key to what was measured of the whole stage.
        messages: Device kind to what a message between two such devices takes.
        backward: Device kind to node name to backward seconds, where these were measured.
        tabled: Device kind to the nodes that a table of measured kernels timed; the others of the
            method ``silicon`` take the roofline.
    """

    nodes: Mapping[str, NodeCost]
    seconds: Mapping[str, Mapping[str, float]]
    method: Mapping[str, str]
    stages: Mapping[str, Mapping[str, StageCost]] = field(default_factory=dict)
    messages: Mapping[str, MessageCost] = field(default_factory=dict)
    backward: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tabled: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        methods = ", ".join(f"{kind}: {method}" for kind, method in self.method.items())
        return f"CostTable({len(self.nodes)} nodes; {methods})"

    def of(self, kind: str) -> Mapping[str, float]:
        """Seconds per node on devices of ``kind``.

        Raises:
            CostError: The table has no figures for this kind.
        """
        if kind not in self.seconds:
            raise CostError(
                "no costs for this kind of device",
                got=kind,
                want=", ".join(self.seconds),
                hint="`pipec profile --kind` says which kind the measured times are of",
            )
        return self.seconds[kind]

    def backward_of(self, kind: str) -> Mapping[str, float]:
        """Backward seconds per node on devices of ``kind``: measured, else in units of the forward.

        Raises:
            CostError: The table has no figures for this kind.
        """
        if kind in self.backward:
            return self.backward[kind]
        return {name: self.nodes[name].backward * s for name, s in self.of(kind).items()}

    def total(self, kind: str, names: Iterable[str], *, trains: bool = False) -> float:
        """Seconds of some nodes, with their backward if they are trained.

        Raises:
            CostError: The table has no figures for this kind.
        """
        rows = [self.of(kind), *([self.backward_of(kind)] if trains else [])]
        return sum(row.get(n, 0.0) for n in names for row in rows)

    def slowest(self, kinds: Iterable[str], names: Collection[str], *, trains: bool) -> str:
        """The kind of device on which some nodes take longest; the first by name of equal ones.

        Args:
            kinds: The kinds of devices.
            names: The nodes; what the table does not have takes no time.
            trains: Whether their backward counts too.

        Raises:
            CostError: The table has no figures for one of several kinds.
        """
        every = sorted(set(kinds))
        if len(every) == 1:
            return every[0]
        return max(every, key=lambda kind: self.total(kind, names, trains=trains))

    def to_json(self) -> dict[str, object]:
        """The table as plain data; what was not measured is left out."""
        rows = {name: list(asdict(cost).values()) for name, cost in self.nodes.items()}
        rest = to_builtins(replace(self, nodes={}))
        used = {k: v for k, v in rest.items() if v or k in ("seconds", "method")}
        return {"nodes": rows, **used}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "CostTable":
        """The inverse of `to_json`.

        Raises:
            CostError: The record is malformed.
        """
        try:
            rows = convert(data["nodes"], dict[str, tuple[float, int, int, int, int, float]])
            table = convert({**data, "nodes": {}}, CostTable)
            return replace(table, nodes={name: NodeCost(*row) for name, row in rows.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise CostError("a cost record is malformed", got=repr(error)) from error


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
