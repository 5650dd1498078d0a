"""A stage, simulated for some frames; what it takes of its board."""

from dataclasses import astuple

from pipec.backends.fpga.cycles import network_of
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.simulator.native import Trace, simulate


def simulate_stage(
    design: StageDesign, frames: int = 3, *, record: bool = False, call: bool = False
) -> Trace:
    """Run a stage, fed and drained as fast as its ports can take and give.

    Args:
        design: The stage.
        frames: How many.
        record: Keep the cycle of every handshake.
        call: Pipelines are rigid, and their loops end behind the last frame; else they are free.

    Raises:
        BackendError: Its FIFOs are too small: it deadlocks.
    """
    return simulate(
        network_of(design)[0],
        network_of(design)[1],
        frames,
        record=record,
        initial=network_of(design)[2],
        rigid=call,
        call=call,
    )


def within(used: Resources, limit: Resources) -> bool:
    """Whether no number exceeds the limit's."""
    return all(a <= b for a, b in zip(astuple(used), astuple(limit), strict=True))
