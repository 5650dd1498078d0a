"""Running an emitted stage in C simulation: tensors in, tensors out.

Its timed build says whether the emitted sources take exactly the cycles that the simulator says.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.csim.build import TIMED, build
from pipec.backends.fpga.cycles import network_of
from pipec.backends.fpga.simulator.native import Trace, simulate
from pipec.backends.fpga.stagejson import read_design
from pipec.backends.fpga.toolchain import ran
from pipec.backends.fpga.wire import Wire, wires_of
from pipec.compiler.cycles import TimedCheck
from pipec.errors import BackendError


@dataclass(frozen=True)
class CSimulation:
    """One compiled stage as a function from values to values.

    Attributes:
        stage: Directory of the emitted stage.
        binary: Its compiled test bench.
        wires: Its inputs and outputs.
        memories: What it reads and writes in memory that kernels share.
    """

    stage: Path
    binary: Path
    wires: tuple[Wire, ...]
    memories: tuple[Wire, ...] = ()

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run one frame.

        Args:
            values: Value of every stage input, by name.

        Returns:
            Value of every stage output, by name.

        Raises:
            BackendError: An input is missing or misshapen, or the simulation fails.
        """
        with tempfile.TemporaryDirectory(prefix="pipec-frame-") as name:
            return self.frame(Path(name), values)

    def frame(
        self, data: Path, values: Mapping[str, torch.Tensor], numbering: Sequence[int] = ()
    ) -> dict[str, torch.Tensor]:
        """Run one frame in a directory that also holds the memory that kernels share.

        Args:
            data: The directory.
            values: Value of every stage input, by name.
            numbering: Number of the microbatch, and how many an update has.

        Returns:
            Value of every stage output, by name.

        Raises:
            BackendError: An input is missing or misshapen, or the simulation fails.
        """
        for wire in self.wires:
            if wire.is_input:
                self.tokens(values, wire).tofile(data / wire.file)
        self.play(data, numbering=numbering)
        outputs = [w for w in self.wires if not w.is_input]
        return {w.port.value: self.read(data, w)[0] for w in outputs}

    def command(self, data: Path, frames: int) -> list[str | Path]:
        """The command line that plays frames; the data files may be pipes."""
        return [self.binary, self.stage, data, str(frames)]

    def play(
        self,
        data: Path,
        frames: int = 1,
        timeout: float | None = None,
        numbering: Sequence[int] = (),
    ) -> None:
        """Run the test bench on data files.

        Raises:
            BackendError: It fails, or takes longer than ``timeout`` seconds.
        """
        command = [*self.command(data, frames), *map(str, numbering)]
        try:
            done = ran(command, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                "the C simulation of a stage does not end", where=self.stage, got=error
            ) from error
        if done.returncode != 0:
            raise failed(self.stage, done.returncode, done.stderr)

    def tokens(self, values: Mapping[str, torch.Tensor], wire: Wire) -> NDArray[Any]:
        """One frame of an input as its data file holds it.

        Raises:
            BackendError: It has no value, or a misshapen one.
        """
        if wire.port.value not in values:
            raise BackendError(
                "a stage input has no value",
                where=self.stage.name,
                got=", ".join(values),
                want=wire.port.value,
            )
        return wire.tokens(values[wire.port.value])

    def read(self, data: Path, wire: Wire, frames: int = 1) -> list[torch.Tensor]:
        """The frames of an output's data file."""
        return [wire.tensor(t) for t in np.split(wire.held(data), frames)]


def failed(stage: Path, code: int, said: str, when: str = "") -> BackendError:
    """The error for a test bench that ended with this exit code and text."""
    return BackendError(
        f"the C simulation of a stage failed{when}",
        where=stage,
        got=f"exit code {code}: {complaints(said)}",
    )


def complaints(said: str) -> str:
    r"""What a test bench said, outputs that are right left out.

    Example:
        >>> complaints("out_a  max error 0: ok\nout_b  max error 1: FAILED\n")
        'out_b  max error 1: FAILED'
    """
    lines = said.strip().splitlines()
    return "\n".join(x for x in lines if not x.endswith(": ok") and "frames are out" not in x)[:500]


def load_stages(stages: Sequence[Path]) -> list[CSimulation]:
    """Compile emitted stages, two at a time.

    Raises:
        BackendError: No compiler, damaged files, or code that does not compile.
    """
    wires = [wires_of(read_design(stage)) for stage in stages]
    with ThreadPoolExecutor(max_workers=2) as pool:
        binaries = list(pool.map(build, stages))
    return [
        CSimulation(
            stage,
            binary,
            tuple(wire for wire in w if not wire.in_memory),
            tuple(wire for wire in w if wire.in_memory),
        )
        for stage, binary, w in zip(stages, binaries, wires, strict=True)
    ]


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
