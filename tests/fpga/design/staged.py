"""A stage, simulated for some frames."""

from pipec.backends.fpga.cycles import network_of
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.simulator.native import simulate
from pipec.backends.fpga.simulator.process import Trace


def simulate_stage(design: StageDesign, frames: int = 3, *, record: bool = False) -> Trace:
    """Run a stage, fed and drained as fast as its ports can take and give.

    Raises:
        BackendError: Its FIFOs are too small: it deadlocks.
    """
    return simulate(
        network_of(design)[0],
        network_of(design)[1],
        frames,
        record=record,
        initial=network_of(design)[2],
    )
