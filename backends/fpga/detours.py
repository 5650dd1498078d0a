"""What goes around a layer: the values that wait while it gathers a block of vectors.

```text
      ┌──► conv ──► CONV ──► conv ──┐      CONV streams its weights: it gathers
x ────┤                             ├──► add   blocks, and so much of x waits
      └─────────── waits ───────────┘
```
"""

from collections.abc import Iterable

import networkx as nx
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from pipec.backends.fpga.design import bits_of
from pipec.backends.fpga.lowering.network import Network

_UNIT = 1024
"""Bits that capacities are counted in, as the solver has 32 of them."""


def detours(network: Network, layers: Iterable[str]) -> dict[str, int]:
    """Bits per frame that go around each of some layers.

    Every path from what a layer depends on to what depends on it, past the layer itself, has a
    FIFO that holds what the layer keeps back; the least that these can hold is a minimum cut, of
    edges with the bits of a frame as capacities.

    Args:
        network: All layers.
        layers: Names of those that are asked for.
    """
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for layer in network.layers:
        graph.add_node(layer.name)
        for use in layer.inputs:
            units = -(-use.rows * use.channels * bits_of(use.dtype) // _UNIT)
            graph.add_edge(use.edge, layer.name, units=units)
    return {name: _around(graph, name) * _UNIT for name in layers}


def _around(graph: "nx.MultiDiGraph[str]", layer: str) -> int:
    """The minimum cut between a layer's ancestors and its descendants, without the layer."""
    before, after = nx.ancestors(graph, layer), nx.descendants(graph, layer)
    beside = [n for n in graph if n != layer and n not in before and n not in after]
    number = dict.fromkeys(before, 0) | dict.fromkeys(after, 1)
    number |= {n: k for k, n in enumerate(beside, start=2)}
    edges = [
        (number[a], number[b], data["units"])
        for a, b, data in graph.edges(data=True)
        if layer not in {a, b} and number[a] != number[b]
    ]
    if not edges:
        return 0
    tails, heads, capacities = np.array(edges, dtype=np.int32).T
    size = len(beside) + 2
    capacity = csr_array((capacities, (tails, heads)), shape=(size, size))
    return int(maximum_flow(capacity, 0, 1).flow_value)
