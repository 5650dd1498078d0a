"""The placement problem as arrays: nodes with work and memory, values with transfer costs.

A *value* is a hyperedge: one producer and its consumers. It is paid for once per device boundary
that it crosses, however many consumers wait on the other side.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipec.errors import PartitionError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Value(NamedTuple):
    """One produced value: who makes it, who reads it, and what it costs to move.

    Attributes:
        producer: Node index.
        consumers: Node indices; may be empty.
        seconds: Transfer time, for cost graphs that state it directly.
        bytes: Size, for clusters whose links state bandwidth and latency.
        gradient_bytes: Size of what comes back over the same boundary in the backward pass.
    """

    producer: int
    consumers: Sequence[int]
    seconds: float = 0.0
    bytes: float = 0.0
    gradient_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class CostGraph:
    """What a cut has to know about a model; every array is checked on construction.

    Attributes:
        names: One per node.
        classes: Names of the device classes, the rows of ``work``.
        work: Seconds, [classes, nodes]; infinity where a node cannot run on that class.
        producer: Producer of each value, [values].
        consumer_ptr: Where the consumers of each value start in ``consumer``, [values + 1].
        consumer: Consumers of all values, one after the other.
        seconds: Transfer seconds of each value, [values].
        bytes: Forward bytes of each value, [values].
        gradient_bytes: Bytes that return in the backward pass, [values].
        weight_bytes: Memory of a node that exists once per weight version, [nodes].
        activation_bytes: Memory of a node per microbatch in flight, [nodes].
        group: Nodes with the same number >= 0 stay together; -1 is free, [nodes].
        backward: Backward nodes follow the forward nodes of their group, [nodes].
        reasons: Why nodes stay together, in words; for errors.

    Raises:
        PartitionError: An array of the wrong length, a negative cost or an index out of range.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    work: FloatArray
    producer: IntArray
    consumer_ptr: IntArray
    consumer: IntArray
    seconds: FloatArray
    bytes: FloatArray
    gradient_bytes: FloatArray
    weight_bytes: FloatArray
    activation_bytes: FloatArray
    group: IntArray
    backward: BoolArray
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            raise PartitionError("the cost graph has no nodes")
        self._check_shapes()
        self._check_numbers()

    def _check_shapes(self) -> None:
        n, values = len(self.names), len(self.producer)
        want: dict[str, tuple[int, ...]] = {
            "work": (len(self.classes), n),
            "consumer_ptr": (values + 1,),
            **dict.fromkeys(("seconds", "bytes", "gradient_bytes"), (values,)),
            **dict.fromkeys(("weight_bytes", "activation_bytes", "group", "backward"), (n,)),
        }
        for name, shape in want.items():
            got = np.shape(getattr(self, name))
            if got != shape:
                raise PartitionError(f"cost graph: {name} has a wrong shape", got=got, want=shape)
        for name in ("producer", "consumer"):
            index = getattr(self, name)
            if index.size and (index.min() < 0 or index.max() >= n):
                bad = int(index.min() if index.min() < 0 else index.max())
                raise PartitionError(
                    f"cost graph: a {name} is not a node", got=bad, want=f"0 to {n - 1}"
                )

    def _check_numbers(self) -> None:
        nodes = ("work", "weight_bytes", "activation_bytes")
        for name in (*nodes, "seconds", "bytes", "gradient_bytes"):
            array = getattr(self, name)
            bad = ~(array >= 0) if name == "work" else ~((array >= 0) & np.isfinite(array))
            if bad.any():
                place = np.argwhere(bad)[0]
                at = int(place[-1])
                node = at if name in nodes else int(self.producer[at])
                raise PartitionError(
                    f"cost graph: {name} must be a number >= 0",
                    where=f"node {self.names[node]}",
                    got=float(array[tuple(place)]),
                )
        with np.errstate(over="ignore"):
            total = np.where(np.isfinite(self.work), self.work, 0.0).sum() + self.seconds.sum()
        if not np.isfinite(total):
            raise PartitionError("cost graph: the sum of all costs is beyond floating point")
        nowhere = np.isinf(self.work).all(axis=0)
        if nowhere.any():
            name = self.names[int(np.argmax(nowhere))]
            raise PartitionError("no device class can run this node", where=f"node {name}")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.names)

    def edges(self) -> IntArray:
        """Producer and consumer of every pair, [pairs, 2]."""
        producers = np.repeat(self.producer, np.diff(self.consumer_ptr))
        return np.stack([producers, self.consumer], axis=1)


def cost_graph(
    names: Sequence[str],
    work: Mapping[str, Sequence[float] | FloatArray],
    values: Iterable[Value],
    *,
    weight_bytes: Sequence[float] | FloatArray | None = None,
    activation_bytes: Sequence[float] | FloatArray | None = None,
    group: Sequence[int] | IntArray | None = None,
    backward: Sequence[bool] | BoolArray | None = None,
) -> CostGraph:
    """Builds a :class:`CostGraph` from plain lists.

    Args:
        names: One per node.
        work: Seconds of every node, per device class.
        values: What is produced and read; also the order in which nodes must run.
        weight_bytes: Bytes per weight version; 0 if not given.
        activation_bytes: Bytes per microbatch in flight; 0 if not given.
        group: Equal numbers >= 0 stay together; -1 is free.
        backward: Marks backward nodes.

    Raises:
        PartitionError: Malformed numbers (see :class:`CostGraph`).

    Example:
        >>> chain = cost_graph("abc", {"gpu": [1, 2, 3]}, [Value(0, [1], 0.1), Value(1, [2], 0.2)])
        >>> chain.size, chain.edges().tolist()
        (3, [[0, 1], [1, 2]])
    """
    rows, n = list(values), len(names)
    for kind, row in work.items():
        if len(row) != n:
            raise PartitionError(
                f"cost graph: {kind} needs one time per node", got=len(row), want=n
            )
    lengths = [len(v.consumers) for v in rows]
    return CostGraph(
        names=tuple(names),
        classes=tuple(work),
        work=np.array([np.asarray(row, float) for row in work.values()], float).reshape(
            len(work), n
        ),
        producer=np.array([v.producer for v in rows], np.int64),
        consumer_ptr=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        consumer=np.array([c for v in rows for c in v.consumers], np.int64),
        seconds=np.array([v.seconds for v in rows], float),
        bytes=np.array([v.bytes for v in rows], float),
        gradient_bytes=np.array([v.gradient_bytes for v in rows], float),
        weight_bytes=_fill(weight_bytes, n),
        activation_bytes=_fill(activation_bytes, n),
        group=np.full(n, -1, np.int64) if group is None else np.asarray(group, np.int64),
        backward=np.zeros(n, bool) if backward is None else np.asarray(backward, bool),
    )


def _fill(array: Sequence[float] | FloatArray | None, n: int) -> FloatArray:
    return np.zeros(n) if array is None else np.asarray(array, float)


def sums(label: IntArray, weight: FloatArray, count: int) -> FloatArray:
    """Sum of the weights with each label, [count]."""
    return np.asarray(np.bincount(label, weight, count), np.float64)


def distinct(keys: IntArray) -> IntArray:
    """Sorted keys without repeats; sorting beats the hash table of ``np.unique`` here."""
    keys = np.sort(keys)
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


def topological_order(n: int, succ: Sequence[Sequence[int]]) -> list[int]:
    """Nodes in an order in which producers come first; shorter than ``n`` if there is a cycle."""
    missing = [0] * n
    for consumers in succ:
        for v in consumers:
            missing[v] += 1
    order = [v for v in range(n) if not missing[v]]
    for u in order:
        for v in succ[u]:
            missing[v] -= 1
            if not missing[v]:
                order.append(v)
    return order


def check_acyclic(graph: CostGraph) -> None:
    """Raises an error that spells out one cycle, if there is one.

    Raises:
        PartitionError: The nodes of the cycle in order.
    """
    edges = graph.edges()
    if (edges[:, 0] < edges[:, 1]).all():
        return
    loops = bool((edges[:, 0] == edges[:, 1]).any())
    succ = successors(graph.size, edges)
    if not loops and len(topological_order(graph.size, succ)) == graph.size:
        return
    import networkx as nx

    walk = [tail for tail, _ in nx.find_cycle(nx.DiGraph(edges.tolist()))]
    cycle = [graph.names[v] for v in [*walk, walk[0]]]
    text = " -> ".join(cycle if len(cycle) <= 8 else [*cycle[:4], "...", *cycle[-3:]])
    raise PartitionError("the cost graph has a cycle", where=text, want="an acyclic graph")


def successors(n: int, edges: IntArray) -> list[list[int]]:
    """Adjacency lists without repeats and self-loops, from edges [m, 2]."""
    keep = edges[edges[:, 0] != edges[:, 1]]
    if not len(keep):
        return [[] for _ in range(n)]
    keys = distinct(keep[:, 0] * n + keep[:, 1])
    heads = (keys % n).tolist()
    ends = np.searchsorted(keys, np.arange(n + 1) * n).tolist()
    return [heads[a:b] for a, b in pairwise(ends)]
