"""The error bound of every value that leaves a stage."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipec.backends.fpga.lowering.layers import Join, RowNorm
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.quantise.calibrate import Seen
from pipec.backends.fpga.quantise.errors import DEVIATIONS, Error, Numerics
from pipec.backends.fpga.quantise.formats import moves
from pipec.backends.fpga.quantise.rules import spread

_CUT_AGAIN = 2.0
"""What is cut off of the values of new inputs, over what was of those seen."""


@dataclass(frozen=True)
class Bound:
    """How far a value may be off.

    Attributes:
        stage: The stage that computes it; ``value`` its name.
        worst: Largest error possible, relative to the least peak seen; infinite where unknown.
        likely: `errors.DEVIATIONS` standard deviations and twice what was cut off, likewise.
    """

    stage: int
    value: str
    worst: float
    likely: float

    @property
    def relative(self) -> float:
        """The smaller one."""
        return min(self.worst, self.likely)


def bounds_of(networks: Sequence[Network], about: Sequence[Numerics]) -> list[Bound]:
    """The bound of every floating-point value that leaves a stage.

    Args:
        networks: The stages in order, in real numbers.
        about: The numbers on the edges of every stage.
    """
    known: dict[str, Error] = {}
    found = []
    for k, (network, given) in enumerate(zip(networks, about, strict=True)):
        numerics = dataclasses.replace(given, seen=_completed(network, given.seen))
        errors = _errors(network, numerics, known)
        for port in network.outputs:
            if port.use.dtype == "int32":
                continue
            error = errors[port.use.edge]
            known[port.value] = error
            peak = max(numerics.of(port.use.edge).peak, 1e-30)
            likely = DEVIATIONS * float(np.sqrt(error.variance.max()))
            likely += _CUT_AGAIN * numerics.cut_off(port.use.edge)
            found.append(Bound(k, port.value, float(error.worst.max()) / peak, likely / peak))
    return found


def _completed(network: Network, seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """What was seen, also of edges that no node stands for but that carry the same values."""
    found = dict(seen)
    for layer in network.layers:  # the parts of one product are within the range of the whole
        if isinstance(layer, Join) and layer.name in found:
            found |= {u.edge: found[layer.name] for u in layer.inputs if u.edge not in found}
    for layer in network.layers:
        if layer.name in found:
            continue
        if isinstance(layer, RowNorm) and layer.op == "softmax":
            found[layer.name] = Seen(0.0, 1.0, 1.0 / (layer.taps * layer.cin), peak=1.0)
        elif moves(layer) and layer.inputs[0].edge in found:
            found[layer.name] = found[layer.inputs[0].edge]
    return found


def _errors(network: Network, about: Numerics, known: Mapping[str, Error]) -> dict[str, Error]:
    """Errors of all edges of a stage."""
    errors: dict[str, Error] = {}
    for port in network.inputs:
        use = port.use
        if port.value in known:  # rounded where it was sent
            errors[use.edge] = known[port.value].rows(use.channels)
        else:
            errors[use.edge] = about.rounded(use.edge, Error.none(use.channels))
    for layer in network.layers:
        reads = [errors[use.edge].rows(use.channels) for use in layer.inputs]
        with np.errstate(over="ignore", invalid="ignore"):
            spread_here = spread(layer, reads, about)
            errors[layer.name] = (
                spread_here if moves(layer) else about.rounded(layer.name, spread_here)
            )
            if layer.name in network.named:  # the model itself rounds too
                errors[layer.name] = about.rounded(layer.name, errors[layer.name])
    return errors
