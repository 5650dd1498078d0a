"""The test bench: runs the kernel on files, and compares it with golden data."""

from collections.abc import Mapping
from functools import partial

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.source import StagePort, arguments, facts, numbering
from pipec.backends.fpga.emit.tables import pointers


def tb_stage_cpp(
    design: StageDesign, *, frames: int, tolerance: float, own: Mapping[str, float]
) -> str:
    """The test bench of a stage.

    Run as ``tb [stage directory [frames]]`` it plays the golden frames (over and over, if more
    are asked for) and compares; as ``tb <stage directory> <data directory> <frames>`` it reads
    inputs from and writes outputs to the data directory, one frame at a time: its files may be
    pipes, so that the test benches of all stages run at once. Two further arguments are the number
    of the first microbatch and how many an update has. Memory that kernels share lies in files of
    the data directory, zero where there is none yet.

    Args:
        design: The stage.
        frames: Frames of golden data.
        tolerance: Largest error relative to the largest magnitude of an output.
        own: Values of outputs to what is accepted of them, where that is less.
    """
    return filled(
        "tb_stage.cpp",
        **facts(design),
        frames=frames,
        tolerance=tolerance,
        accepted=partial(accepted, own),
        call=_call(design),
    )


def _call(design: StageDesign) -> list[str]:
    """What the kernel is called with; both ends of a FIFO in memory are one buffer."""
    known = {"load_tables": "done == 0", "frames": "each"}
    known |= dict(zip(numbering(design), ("first + done", "microbatches"), strict=False))
    buffers: dict[str, str] = {}
    for p in pointers(design):
        shared = p.port.group if p.port and p.mover and not p.crosses else p.name
        known[p.name] = f"{buffers.setdefault(shared, p.name)}.data()"
    return [known.get(name, name) for _, name in arguments(design)]


def accepted(own: Mapping[str, float], port: StagePort) -> str:
    """The tolerance of an output in C++, which is less where it has one of its own."""
    value = port.port.value
    return f"std::fmin(TOLERANCE, {own[value]!r})" if value in own else "TOLERANCE"
