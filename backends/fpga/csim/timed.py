"""The timed build: do the emitted sources take exactly the cycles that the simulator says?"""

import os
import tempfile
from pathlib import Path

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.csim.build import TIMED, build
from pipec.backends.fpga.csim.run import failed
from pipec.backends.fpga.cycles import network_of
from pipec.backends.fpga.simulator.native import simulate
from pipec.backends.fpga.simulator.process import Trace
from pipec.backends.fpga.stagejson import read_design
from pipec.backends.fpga.toolchain import ran
from pipec.compiler.cycles import TimedCheck
from pipec.errors import BackendError

DEADLOCK = 6
"""Exit code of a bounded or timed build that deadlocks."""


def handshakes(stage: Path, frames: int, *, keep: bool = False) -> dict[str, list[str]]:
    """Run the timed build on the golden frame, over and over.

    Args:
        stage: Directory of an emitted stage with golden data.
        frames: How often.
        keep: Also yield every cycle.

    Returns:
        C++ name of a stream to its tokens, its digest, and all cycles if they are kept.

    Raises:
        BackendError: It deadlocks (the streams are named), or its outputs are wrong.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-timed-") as folder:
        log = Path(folder) / "handshakes"
        told = {"PIPEC_HANDSHAKES": str(log)} | ({"PIPEC_ALL_HANDSHAKES": "1"} if keep else {})
        _play(build(stage, TIMED), stage, frames, told)
        rows = [line.split() for line in log.read_text().splitlines()]
    return {name: rest for name, *rest in rows}


def _play(binary: Path, stage: Path, frames: int, told: dict[str, str]) -> None:
    done = ran([binary, stage, str(frames)], env={**os.environ, **told})
    if done.returncode == DEADLOCK:
        first, *waits = done.stderr.splitlines()
        raise BackendError(
            first,
            where=stage.name,
            got="\n" + "\n".join(waits),
            hint="deepen a stream that is full",
        )
    if done.returncode != 0:
        raise failed(stage, done.returncode, done.stderr + done.stdout)


def check_timing(stage: Path, frames: int = 2) -> TimedCheck:
    """Compare the timed build of a stage with the simulator, handshake by handshake.

    Args:
        stage: Directory of an emitted stage with golden data.
        frames: Frames to play.

    Raises:
        BackendError: It deadlocks, does not compile, or its outputs are wrong.
    """
    design = read_design(stage)
    processes, depths, initial = network_of(design)
    trace = simulate(processes, depths, frames, initial=initial, rigid=True, call=True)
    return compared(design.name, trace, handshakes(stage, frames), frames)


def compared(name: str, trace: Trace, found: dict[str, list[str]], frames: int) -> TimedCheck:
    """A simulation beside what a timed build said.

    Args:
        name: Of the stage.
        trace: Of the simulator.
        found: Of `handshakes`.
        frames: Frames of both.
    """
    differing = tuple(
        stream
        for stream, flow in trace.flows.items()
        if found.get(identifier(stream), [])[:2] != [str(flow.tokens), f"{flow.digest:x}"]
    )
    tokens = sum(flow.tokens for flow in trace.flows.values())
    return TimedCheck(name, frames, tokens, differing, trace.ends)
