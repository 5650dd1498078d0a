"""The stages of a plan in 8-bit integers, calibrated on samples."""

from collections.abc import Sequence

from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.quantise.calibrate import observed, on_edges
from pipec.backends.fpga.quantise.formats import formats_of
from pipec.backends.fpga.quantise.layers import quantised
from pipec.backends.fpga.quantise.samples import CALIBRATION, samples_of
from pipec.graph.lower import lower as without_transfers
from pipec.plan.model import Plan


def calibrated(plan: Plan, networks: Sequence[Network]) -> tuple[Network, ...]:
    """The networks of all stages, as lowered for ``int8``, with formats and whole numbers.

    Args:
        plan: Its graph has weights; its options say what to calibrate on (`samples_of`).
        networks: One per stage.

    Raises:
        BackendError: The samples don't fit, or a layer can't compute in 8-bit integers.
    """
    graphs = [without_transfers(stage.graph).graph for stage in plan.stages]
    nodes = observed(graphs, samples_of(plan, networks, CALIBRATION))
    ranges = [on_edges(network, found) for network, found in zip(networks, nodes, strict=True)]
    formats = formats_of(networks, ranges)
    return tuple(quantised(n, f) for n, f in zip(networks, formats, strict=True))
