"""What values do on sample inputs, and a format for every edge, such that what must agree agrees.

What moves values without computing (concatenation, slices, reorderings, copies, maxima) writes what
it reads, so the edges around it form a class with one format that covers all its members; so do the
two ends of a link between boards. All other edges stand alone. Formats are `HEADROOM` wider than
what was seen, where what computes a value does not limit it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from networkx.utils import UnionFind
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.numbers import Int8, fit_int8
from pipec.backends.fpga.quantise.execute import Chain
from pipec.errors import BackendError

HIDDEN = -1e4
"""Less than this is what an attention mask puts where it hides something."""

_NONE = 1e-30
"""A magnitude from here on can be stretched."""
Range = tuple[float, float]
"""The least finite number that was seen, and the largest."""


def observe(
    networks: Sequence[Network], samples: Sequence[Mapping[str, Tensor]], *, drawn: bool = False
) -> list[dict[str, Range]]:
    """The range of every floating-point edge of every stage, over all samples of inputs.

    What an attention mask hides (below `HIDDEN`) is not looked at. Edges between stages are at both
    ends. Samples that were ``drawn`` say less than a format that the model names: there they are
    stretched to its range.
    """
    found: list[dict[str, Range]] = [{} for _ in networks]

    def note(stage: int, edge: str, layer: Layer | None, x: Tensor) -> Tensor:
        """Look, and pass on."""
        seen = _range_of(x)
        if seen is not None:
            low, high = found[stage].get(edge, seen)
            found[stage][edge] = min(low, seen[0]), max(high, seen[1])
        form = networks[stage].named.get(edge)
        if not (drawn and form):
            return x
        low, high = form.range  # the farthest number on either side of 0 goes to an end of it
        up, down = high / x.amax().clamp(min=_NONE), low / x.amin().clamp(max=-_NONE)
        return x * torch.where(x > 0, up, down)

    chain = Chain(networks)
    with torch.no_grad():
        for sample in samples:
            chain.run(sample, note)
    sent: dict[str, Range] = {}
    for network, seen in zip(networks, found, strict=True):
        arrived = [p for p in network.inputs if p.value in sent]
        seen |= {p.use.edge: sent[p.value] for p in arrived}
        sent |= {p.value: seen[p.use.edge] for p in network.outputs if p.use.edge in seen}
    return found


def _range_of(value: Tensor) -> Range | None:
    if not value.dtype.is_floating_point or value.numel() == 0:
        return None
    low, high = (float(end) for end in value.aminmax())
    if not (low > HIDDEN and high < math.inf):  # also where one is no number
        value = value[value.isfinite() & (value > HIDDEN)]
        if value.numel() == 0:
            return None
        low, high = (float(end) for end in value.aminmax())
    return low, high


Edge = tuple[int, str]
"""Stage and edge."""
HEADROOM = 0.1
"""Share of a range by which new inputs may leave it: a cut-off costs far more than coarser steps.
"""
_RANGES = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}
"""Results of functions that have limits."""


def formats_of(
    networks: Sequence[Network], seen: Sequence[Mapping[str, Range]]
) -> list[dict[str, Int8]]:
    """The format of every edge that carries real numbers, per stage.

    Where the model names formats itself they are taken: of a class the coarsest.

    Raises:
        BackendError: Nothing is known of the values on an edge.
    """
    classes: UnionFind[Edge] = UnionFind()
    for edge, other in _ties(networks):
        classes.union(edge, other)
    members: dict[Edge, list[Edge]] = {}
    for edge in _real_edges(networks):
        members.setdefault(classes[edge], []).append(edge)
    centred = {  # operands that are multiplied with each other, element by element of long sums
        classes[k, use.edge]
        for k, network in enumerate(networks)
        for layer in network.layers
        if isinstance(layer.nest, Matmul)
        for use in layer.inputs
    }
    found: list[dict[str, Int8]] = [{} for _ in networks]
    for root, edges in members.items():
        named = [f for k, e in edges if (f := networks[k].named.get(e)) is not None]
        known = [_widen(networks[k], e, seen[k][e]) for k, e in edges if e in seen[k]]
        if not (named or known):
            raise BackendError(
                "the range of a value is not known, so it can't become 8-bit integers",
                where=f"{edges[0][1]} of stage {edges[0][0]}",
                hint="choose another --precision",
            )
        if named:
            chosen = max(named, key=lambda f: f.scale)
        else:
            low, high = min(low for low, _ in known), max(high for _, high in known)
            chosen = fit_int8(low, high, symmetric=root in centred)
        for stage, name in edges:
            found[stage][name] = chosen
    return found


def _widen(network: Network, edge: str, seen: Range) -> tuple[float, float]:
    """The range of an edge for new inputs; what only moves values is as wide as what it reads."""
    layer = next((y for y in network.layers if y.name == edge), None)
    if layer is not None and layer.moves:
        return seen
    least, most = (-math.inf, math.inf) if layer is None else _limits(layer)
    low, high = (end * (1 + HEADROOM) for end in seen)
    return min(max(low, least), seen[0]), max(min(high, most), seen[1])


def _limits(layer: Layer) -> tuple[float, float]:
    """The limits of a layer's results."""
    if isinstance(layer.nest, Norm) and layer.nest.op == "softmax":
        return 0.0, 1.0
    if layer.steps:
        last = layer.steps[-1]
        if last.op == "min" and last.operand == "scalar":
            return -math.inf, last.value
        return _RANGES.get(last.op, layer.clamp)
    return layer.clamp


def _ties(networks: Sequence[Network]) -> Iterator[tuple[Edge, Edge]]:
    sources: dict[str, Edge] = {}
    for k, network in enumerate(networks):
        for port in (*network.inputs, *network.outputs):
            yield sources.setdefault(port.value, (k, port.use.edge)), (k, port.use.edge)
        for layer in network.layers:
            if layer.moves:
                for use in layer.inputs:
                    yield (k, layer.name), (k, use.edge)


def _real_edges(networks: Sequence[Network]) -> Iterator[Edge]:
    """Every edge that somebody reads as real numbers."""
    for k, network in enumerate(networks):
        uses = [*(u for y in network.layers for u in y.inputs), *(p.use for p in network.outputs)]
        for edge in dict.fromkeys(u.edge for u in uses if u.dtype != "int32"):
            yield k, edge
