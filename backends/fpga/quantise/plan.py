"""The stages of a plan in narrow numbers: calibrated on samples, and how far off they may be."""

from collections.abc import Mapping, Sequence

from pipec.backends.fpga.int8 import Int8
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.numbers import MINIMUM
from pipec.backends.fpga.quantise.bound import Bound, bounds_of
from pipec.backends.fpga.quantise.calibrate import Seen, observed, on_edges
from pipec.backends.fpga.quantise.errors import Numerics, range_of
from pipec.backends.fpga.quantise.formats import formats_of
from pipec.backends.fpga.quantise.layers import quantised
from pipec.backends.fpga.quantise.samples import CALIBRATION, HELD_OUT, samples_of
from pipec.graph.lower import lower as without_transfers
from pipec.plan.model import Plan


def _seen(
    plan: Plan, networks: Sequence[Network], seed: int, types: Sequence[Mapping[str, str]] = ()
) -> list[dict[str, Seen]]:
    """What the values on all edges do on a set of samples, per stage.

    Args:
        plan: Its graph has weights.
        networks: One per stage.
        seed: Which samples (`samples_of`).
        types: Per stage, edge to the type that will hold it, if that is known.
    """
    graphs = [without_transfers(stage.graph).graph for stage in plan.stages]
    limits = [
        {n.nodes[edge]: range_of(dtype) for edge, dtype in known.items() if edge in n.nodes}
        for n, known in zip(networks, types, strict=True)
    ] if types else None  # fmt: skip
    nodes = observed(graphs, samples_of(plan, networks, seed), limits)
    return [on_edges(network, found) for network, found in zip(networks, nodes, strict=True)]


def _formats(plan: Plan, networks: Sequence[Network]) -> list[dict[str, Int8]]:
    return formats_of(networks, _seen(plan, networks, CALIBRATION))


def calibrated(plan: Plan, networks: Sequence[Network]) -> tuple[Network, ...]:
    """The networks of all stages, as lowered for ``int8``, with formats and whole numbers.

    Args:
        plan: Its graph has weights; its options say what to calibrate on (`samples_of`).
        networks: One per stage.

    Raises:
        BackendError: The samples don't fit, or a layer can't compute in 8-bit integers.
    """
    formats = _formats(plan, networks)
    return tuple(quantised(n, f) for n, f in zip(networks, formats, strict=True))


def error_bounds(plan: Plan, networks: Sequence[Network], precision: str) -> list[Bound]:
    """How far the values that leave the stages may be off, on inputs like the samples.

    Args:
        plan: Its graph has weights.
        networks: One per stage, as lowered for the precision, in real numbers.
        precision: Element type of the streams.

    Raises:
        BackendError: The samples don't fit.
    """
    first = _seen(plan, networks, CALIBRATION)
    types = [dict.fromkeys(n.nodes, precision) for n in networks]
    if precision == "int8":
        formats = formats_of(networks, first)
        types = [{edge: f.dtype for edge, f in found.items()} for found in formats]
    second = _seen(plan, networks, HELD_OUT, types)
    about = [
        Numerics(t, {e: a[e].with_(b[e]) for e in a.keys() & b.keys()}, precision)
        for t, a, b in zip(types, first, second, strict=True)
    ]
    return bounds_of(networks, about)


def tolerance_of(bounds: Sequence[Bound]) -> float:
    """The largest relative error that the bounds explain: that of float32 at least, 1 at most."""
    return min(1.0, max([MINIMUM, *(b.relative for b in bounds)]))
