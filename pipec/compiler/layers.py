"""The layers of a model in the words of its author: what other runtimes cut between.

A layer is a module with a number in its path, ``model.layers.3``; what is not inside of one counts
as the module next to them: ``model.embed``, ``model.head``. Where no path has a number, every
module with operations of its own is a layer.
"""

from dataclasses import dataclass

import numpy as np

from pipec.compiler.layouts import Layout
from pipec.errors import PartitionError
from pipec.graph.ir import Graph, origin
from pipec.graph.units import placement_units
from pipec.partition.costgraph import IntArray

NONE = -1


@dataclass(frozen=True, eq=False)
class Layers:
    """Layers in the order of their first operation.

    Attributes:
        names: Path of each.
        of: Layer of every call; -1 of what lies between modules, [calls].
        numbered: Those with a number in their path.
    """

    names: tuple[str, ...]
    of: IntArray
    numbered: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, int]:
        """The first numbered layer, and the one behind the last."""
        return self.numbered[0], self.numbered[-1] + 1


def layers_of(graph: Graph) -> Layers:
    """The layers of a graph, by the paths that its nodes remember.

    Raises:
        PartitionError: No node knows the module that it came from.
    """
    paths = [origin(n).name.strip("/").replace("/", ".") for n in graph.calls]
    numbered = {p: _cut_at_number(p) for p in set(paths)}
    around = {
        ".".join(parts[:k]) for path in numbered.values() for parts in [path.split(".")]
        for k in range(len(parts))
    }  # fmt: skip
    names: dict[str, int] = {}
    of = []
    for path in paths:
        name = numbered[path] or _outside(path, around if any(numbered.values()) else None)
        of.append(names.setdefault(name, len(names)) if name else NONE)
    if not names:
        raise PartitionError("no operation of this model knows the module that it came from")
    chosen = tuple(names[name] for name in names if name in set(numbered.values()))
    return Layers(tuple(names), np.array(of, np.int64), chosen or tuple(range(len(names))))


def _cut_at_number(path: str) -> str:
    """The path up to its first number; nothing if it has none."""
    parts = path.split(".")
    at = next((k for k, part in enumerate(parts) if part.isdigit()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _outside(path: str, around: set[str] | None) -> str:
    """The largest module on a path that holds no numbered layer; nothing if there is none."""
    if around is None:
        return path
    parts = path.split(".")
    ways = (".".join(parts[: k + 1]) for k in range(len(parts)))
    return next((way for way in ways if way not in around), "")


def place_layers(graph: Graph, layout: Layout) -> IntArray:
    """Stage of every call if the layers stand as a layout says, [calls].

    Raises:
        PartitionError: The layout has another number of layers, or parts what must stay together.
    """
    layers = layers_of(graph)
    if len(layers.numbered) != sum(layout.layers):
        raise PartitionError(
            "the layout is for another number of layers",
            got=f"{sum(layout.layers)} layers in {layout}",
            want=f"{len(layers.numbered)}: {layers.names[layers.numbered[0]]} .. "
            f"{layers.names[layers.numbered[-1]]}",
        )
    home = whole_layers(graph, layers)
    stage: IntArray = _stages(layers, layout)[home]
    at = {n.name: k for k, n in enumerate(graph.calls)}
    for k, n in enumerate(graph.calls):
        before = [stage[at[p.name]] for p in n.all_input_nodes if p.name in at]
        if before and max(before) > stage[k]:
            raise PartitionError(
                "the layout needs a value before it is computed",
                where=f"{n.name} of {layers.names[home[k]]}, stage {stage[k]}",
                got=f"an operand of stage {max(before)}",
            )
    return stage


def whole_layers(graph: Graph, layers: Layers) -> IntArray:
    """Layer of every call, [calls].

    1. What must share a device is in one layer, the first: a layer often begins with a view of
       what the layer before it computed.
    2. What lies between modules is in the last layer that it reads, or else in the first of all: a
       runtime that cuts in front of a layer leaves it behind.
    """
    unit_of = placement_units(graph)
    units = np.array([unit_of[n.name] for n in graph.calls])
    home = layers.of.copy()
    for unit in np.unique(units[units >= 0]).tolist():
        nodes = np.flatnonzero(units == unit)
        named = home[nodes][home[nodes] >= 0]
        if len(named):
            home[nodes] = named.min()
    at = {n.name: k for k, n in enumerate(graph.calls)}
    for k in np.flatnonzero(home == NONE).tolist():
        unit = np.flatnonzero(units == units[k]).tolist() if units[k] >= 0 else [k]
        reads = (p.name for m in unit for p in graph.calls[m].all_input_nodes)
        home[unit] = max((home[at[name]] for name in reads if name in at), default=0)
        home[unit] = home[unit].clip(0)
    return home


def _stages(layers: Layers, layout: Layout) -> IntArray:
    numbered = np.repeat(np.arange(len(layout.layers)), layout.layers)
    first, end = layers.ends
    found = np.zeros(len(layers.names), np.int64)
    found[list(layers.numbered)] = numbered
    found[:first], found[end:] = layout.first, layout.last
    for k in sorted(set(range(first, end)) - set(layers.numbered)):
        found[k] = found[k - 1]
    return found
