"""The stages of a plan in narrow numbers: calibrated on samples, and how far off they may be."""

from collections.abc import Sequence

from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.numbers import MINIMUM
from pipec.backends.fpga.quantise.bound import Bound, Stages
from pipec.backends.fpga.quantise.calibrate import observed
from pipec.backends.fpga.quantise.execute import stored, types_of
from pipec.backends.fpga.quantise.formats import formats_of
from pipec.backends.fpga.quantise.layers import quantised
from pipec.backends.fpga.quantise.samples import calibration_samples
from pipec.plan.model import Plan


def calibrated(plan: Plan, networks: Sequence[Network]) -> tuple[Network, ...]:
    """The networks of all stages, as lowered for ``int8``, with formats and whole numbers.

    Args:
        plan: Its graph has weights; its options say what to calibrate on.
        networks: One per stage.

    Raises:
        BackendError: The samples don't fit, or a layer can't compute in 8-bit integers.
    """
    formats = formats_of(networks, observed(networks, calibration_samples(plan, networks)))
    return tuple(quantised(n, f) for n, f in zip(networks, formats, strict=True))


def stages_of(exact: Sequence[Network], ready: Sequence[Network], precision: str) -> Stages:
    """All stages in narrow numbers.

    Args:
        exact: One per stage, as lowered for the precision, in real numbers.
        ready: The same with formats and whole numbers, if it is ``int8``.
        precision: Element type of the streams.
    """
    types = [
        {edge: t if precision == "int8" else precision for edge, t in types_of(n).items()}
        for n in ready
    ]
    return Stages(exact, [stored(n, precision) for n in ready], types)


def tolerance_of(bounds: Sequence[Bound]) -> float:
    """The largest relative error that the bounds explain: that of float32 at least, 1 at most."""
    return min(1.0, max([MINIMUM, *(b.relative for b in bounds)]))
