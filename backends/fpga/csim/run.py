"""Running an emitted stage in C simulation: tensors in, tensors out.

Its timed build says whether the emitted sources take the very cycles that the simulator says. All
stages run at the same time as real processes, frame after frame, joined by named pipes:

```text
frames.bin ─► tb of stage 0 ─► pipe ─► tb of stage 1 ─► pipe ─► tb of stage 2 ─► outputs.bin
```

Beats cross a pipe as they cross a link: what a stage writes is what the next one reads, byte for
byte, with no tensor in between.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
from pipec.backends.fpga.toolchain import TIED, run_command
from pipec.backends.fpga.wire import Wire, wires_of
from pipec.compiler.cycles import TimedCheck
from pipec.errors import BackendError
from pipec.plan.model import ValueChannel


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
        """The values of every output, by name, for one frame of values of every input.

        Raises:
            BackendError: An input is missing or misshapen, or the simulation fails.
        """
        with tempfile.TemporaryDirectory(prefix="pipec-frame-") as name:
            return self.frame(Path(name), values)

    def frame(
        self, data: Path, values: Mapping[str, torch.Tensor], numbering: Sequence[int] = ()
    ) -> dict[str, torch.Tensor]:
        """The same in a directory that also holds the memory that kernels share.

        ``numbering`` is the number of the microbatch, and how many an update has.

        Raises:
            BackendError: An input is missing or misshapen, or the simulation fails.
        """
        for wire in self.wires:
            if wire.is_input:
                self.tokens(values, wire).tofile(data / wire.file)
        self.play(data, numbering=numbering)
        outputs = [w for w in self.wires if not w.is_input]
        return {w.port.value: self.read_frames(data, w)[0] for w in outputs}

    def command(self, data: Path, frames: int) -> list[str | Path]:
        """The command line that plays frames; the data files may be pipes."""
        return [self.binary, self.stage, data, str(frames)]

    def play(self, data: Path, frames: int = 1, numbering: Sequence[int] = ()) -> None:
        """Run the test bench on data files.

        Raises:
            BackendError: It fails.
        """
        done = run_command([*self.command(data, frames), *map(str, numbering)])
        if done.returncode != 0:
            raise csim_error(self.stage, done.returncode, done.stderr)

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

    def read_frames(self, data: Path, wire: Wire, frames: int = 1) -> list[torch.Tensor]:
        """The frames of an output's data file."""
        return [wire.tensor(t) for t in np.split(wire.read(data), frames)]


def csim_error(stage: Path, code: int, output: str, when: str = "") -> BackendError:
    """The error for a test bench that ended with this exit code and text."""
    return BackendError(
        f"the C simulation of a stage failed{when}",
        where=stage,
        got=f"exit code {code}: {filter_output(output)}",
    )


def filter_output(output: str) -> str:
    r"""The messages of a test bench, without those of outputs that are right.

    Example:
        >>> filter_output("out_a  max error 0: ok\nout_b  max error 1: FAILED\n")
        'out_b  max error 1: FAILED'
    """
    lines = output.strip().splitlines()
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


def run_timed(stage: Path, frames: int, *, keep: bool = False) -> dict[str, list[str]]:
    """Run the timed build of a stage on its golden frame, over and over.

    Each stream by its C++ name: its tokens, its digest, and all cycles if they are to be kept.

    Raises:
        BackendError: It deadlocks (the streams are named), or its outputs are wrong.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-timed-") as folder:
        log = Path(folder) / "handshakes"
        extra = {"PIPEC_HANDSHAKES": str(log)} | ({"PIPEC_ALL_HANDSHAKES": "1"} if keep else {})
        done = run_command([build(stage, TIMED), stage, str(frames)], env={**os.environ, **extra})
        if done.returncode == DEADLOCK:
            first, *waits = done.stderr.splitlines()
            got, hint = "\n" + "\n".join(waits), "deepen a stream that is full"
            raise BackendError(first, where=stage.name, got=got, hint=hint)
        if done.returncode != 0:
            raise csim_error(stage, done.returncode, done.stderr + done.stdout)
        rows = [line.split() for line in log.read_text().splitlines()]
    return {name: rest for name, *rest in rows}


def check_timing(stage: Path, frames: int = 2) -> TimedCheck:
    """Compare the timed build of a stage that has golden data with the simulator's handshakes.

    Raises:
        BackendError: It deadlocks, does not compile, or its outputs are wrong.
    """
    design = read_design(stage)
    processes, depths, initial = network_of(design)
    trace = simulate(processes, depths, frames, initial=initial, rigid=True, call=True)
    return compare_timing(design.name, trace, run_timed(stage, frames), frames)


def compare_timing(name: str, trace: Trace, found: dict[str, list[str]], frames: int) -> TimedCheck:
    """A simulation of a stage beside what `run_timed` found for as many frames."""
    differing = tuple(
        stream
        for stream, flow in trace.flows.items()
        if found.get(identifier(stream), [])[:2] != [str(flow.tokens), f"{flow.digest:x}"]
    )
    tokens = sum(flow.tokens for flow in trace.flows.values())
    return TimedCheck(name, frames, tokens, differing, trace.ends)


Frame = Mapping[str, torch.Tensor]


def stream(
    stages: Sequence[CSimulation], channels: Sequence[ValueChannel], frames: Sequence[Frame]
) -> list[dict[str, torch.Tensor]]:
    """Play frames of the model's inputs, by name, through all stages at once.

    Of each frame the values that no other stage reads, by name.

    Raises:
        BackendError: A channel has two readers, an input is missing, or a stage fails.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-chain-") as name:
        folders = [Path(name) / str(k) for k in range(len(stages))]
        pipes = _pipes(folders, stages, channels, frames)
        _run_all([s.command(f, len(frames)) for s, f in zip(stages, folders, strict=True)], stages)
        found = [dict[str, torch.Tensor]() for _ in frames]
        for k, stage in enumerate(stages):
            for wire in stage.wires:
                if wire.is_input or (k, wire.port.value) in pipes:
                    continue
                values = stage.read_frames(folders[k], wire, len(frames))
                for frame, value in zip(found, values, strict=True):
                    frame[wire.port.value] = value
        return found


def _pipes(
    folders: Sequence[Path],
    stages: Sequence[CSimulation],
    channels: Sequence[ValueChannel],
    frames: Sequence[Frame],
) -> set[tuple[int, str]]:
    """Make a pipe for every value between stages, and files of all frames for other inputs.

    Of each pipe the stage that writes into it, and the value.

    Raises:
        BackendError: Two stages read one value.
    """
    senders, pipes = {(c.dst, c.value): c.src for c in channels}, dict[tuple[int, str], Path]()
    for k, (folder, stage) in enumerate(zip(folders, stages, strict=True)):
        folder.mkdir()
        for wire in (w for w in stage.wires if w.is_input):
            path, value = folder / wire.file, wire.port.value
            if (k, value) not in senders:
                path.write_bytes(b"".join(stage.tokens(f, wire).tobytes() for f in frames))
                continue
            os.mkfifo(path)
            end = (senders[k, value], value)
            if end in pipes:
                raise BackendError(
                    "two stages read one value, and a pipe has one reader",
                    where=f"stage{end[0]}",
                    got=value,
                    hint="compile with insert-comm{route=relay}",
                )
            pipes[end] = path
    ends = {(k, w.port.value): folders[k] / w.file for k, s in enumerate(stages)
            for w in s.wires if not w.is_input}  # fmt: skip
    for end in pipes.keys() & ends.keys():
        ends[end].symlink_to(pipes[end])
    return set(pipes)


def _run_all(commands: Sequence[Sequence[str | Path]], stages: Sequence[CSimulation]) -> None:
    """Run the commands at the same time; where one fails the others end too."""
    running = [
        subprocess.Popen([*TIED, *c], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    problem: BackendError | None = None
    with ThreadPoolExecutor(max_workers=len(running)) as pool:
        ends = {pool.submit(p.communicate): k for k, p in enumerate(running)}
        for end in as_completed(ends):
            k = ends[end]
            if problem is None and running[k].returncode != 0:
                code, output = running[k].returncode, end.result()[1]
                problem = csim_error(stages[k].stage, code, output, " while all stages ran")
                for process in running:
                    process.kill()
    if problem is not None:
        raise problem
