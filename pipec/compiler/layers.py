"""The layers of a model in the words of its author: what other runtimes cut between.

A layer is a module with a number in its path, ``model.layers.3``; what is not inside of one counts
as the module next to them: ``model.embed``, ``model.head``. Where no path has a number, every
module with operations of its own is a layer. A layout says how many of them stand on each stage:

* Megatron-LM, ``--pipeline-model-parallel-layout``: one letter per layer (E embedding, t decoder
  layer, m multi-token prediction, L loss), ``|`` between stages, ``(...)*n`` or ``t*n`` repeats,
  commas mean nothing: ``E|(t|)*11m|m|m|L``.
* vLLM, ``VLLM_PP_LAYER_PARTITION``: layers of every rank, ``5,6,7``; the embedding is on the first,
  the head on the last.
"""

import re
from dataclasses import dataclass

import numpy as np

from pipec.errors import PartitionError
from pipec.graph.ir import Graph, origin
from pipec.graph.units import placement_units
from pipec.partition.costgraph import IntArray

_GROUP, _LETTER = re.compile(r"\(([^()]*)\)\*(\d{1,9})"), re.compile(r"([EtmL|])\*(\d{1,9})")
MOST = 100_000
"""Letters of a layout: more are a mistake."""


@dataclass(frozen=True)
class Layout:
    """Numbered layers of every stage, and where what is in front of and behind them stands.

    Attributes:
        layers: Number of layers on each stage.
        first: Stage of the embedding.
        last: Stage of the head and the loss.
    """

    layers: tuple[int, ...]
    first: int
    last: int

    def __str__(self) -> str:
        """As Megatron writes it, without repeats."""
        parts = ["t" * count for count in self.layers]
        parts[self.first] = "E" + parts[self.first]
        parts[self.last] += "L"
        return "|".join(parts)


def parse_layout(text: str) -> Layout:
    """Reads a layout of Megatron-LM or vLLM.

    Raises:
        PartitionError: It is neither, or its letters are out of order.

    Example:
        >>> parse_layout("E|(t|)*2tm|L").layers, parse_layout("5,6,7").layers
        ((0, 1, 1, 2, 0), (5, 6, 7))
        >>> str(parse_layout("2,1"))
        'Ett|tL'
    """
    if re.fullmatch(r"\s*\d{1,4}(\s*,\s*\d{1,4})*\s*", text):
        counts = tuple(int(part) for part in text.split(","))
        return Layout(counts, 0, len(counts) - 1)
    letters = _expand(text)
    order = letters.replace("|", "")
    if not re.fullmatch(r"E?t*m*L?", order) or not order.strip("EL"):
        raise PartitionError(
            "this is no layout",
            got=text,
            want="letters E t m L in this order, stages apart by |, such as E|(t|)*11m|m|m|L; "
            "or layers per stage, such as 5,6,7",
        )
    stages = letters.split("|")
    first = next((k for k, stage in enumerate(stages) if "E" in stage), 0)
    last = next((k for k, stage in enumerate(stages) if "L" in stage), len(stages) - 1)
    return Layout(tuple(s.count("t") + s.count("m") for s in stages), first, last)


def _expand(text: str) -> str:
    """Repeats written out, innermost first; commas and blanks left out."""
    letters = re.sub(r"[,\s]", "", text)
    for pattern in (_GROUP, _LETTER):
        while match := pattern.search(letters):
            if len(match[1]) * int(match[2]) > MOST:
                raise PartitionError("a layout repeats too often", got=text)
            letters = letters[: match.start()] + match[1] * int(match[2]) + letters[match.end() :]
    return letters


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
        PartitionError: The layout has another number of layers, or parts what must stay together,
            or leaves a stage without work.
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
    empty = {*range(len(layout.layers))} - {*stage.tolist()}
    if empty:
        raise PartitionError(
            "the layout leaves a stage without work",
            got=f"stage {min(empty)} of {layout}",
            want="a layer on every stage, or an embedding or head of the model",
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
