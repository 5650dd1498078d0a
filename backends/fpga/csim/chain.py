"""All stages at the same time, joined by named pipes: real processes, frame after frame.

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
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pipec.backends.fpga.csim.run import CSimulation, failed
from pipec.backends.fpga.wire import Wire
from pipec.errors import BackendError
from pipec.plan.model import ValueChannel

Frame = Mapping[str, torch.Tensor]


def stream(
    stages: Sequence[CSimulation], channels: Sequence[ValueChannel], frames: Sequence[Frame]
) -> list[dict[str, torch.Tensor]]:
    """Play frames through all stages at once.

    Args:
        stages: In order.
        channels: What crosses between them.
        frames: Values of the model's inputs, by name, for each frame.

    Returns:
        Of each frame the values that no other stage reads, by name.

    Raises:
        BackendError: A channel has two readers, an input is missing, or a stage fails.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-chain-") as name:
        wiring = _Wiring(Path(name), stages, frames)
        wiring.connect(channels)
        _run_all([s.command(wiring.folder(k), len(frames)) for k, s in enumerate(stages)], stages)
        return wiring.outputs()


@dataclass
class _Wiring:
    """Data files of every stage: pipes between stages, regular files at the ends.

    Attributes:
        root: Where they lie.
        stages: In order.
        frames: Inputs.
        ends: Stage and wire of what leaves the chain.
    """

    root: Path
    stages: Sequence[CSimulation]
    frames: Sequence[Frame]
    ends: list[tuple[int, Wire]] = field(default_factory=list)

    def folder(self, stage: int) -> Path:
        """Where a stage finds its inputs and leaves its outputs."""
        return self.root / str(stage)

    def connect(self, channels: Sequence[ValueChannel]) -> None:
        """Make a pipe for every value between stages, and files of all frames for the others.

        Raises:
            BackendError: Two stages read one value.
        """
        senders = {(c.dst, c.value): c.src for c in channels}
        pipes: dict[tuple[int, str], Path] = {}
        for k, stage in enumerate(self.stages):
            self.folder(k).mkdir()
            for wire in stage.wires:
                path, value = self.folder(k) / wire.file, wire.port.value
                if not wire.is_input:
                    continue
                if (k, value) not in senders:
                    path.write_bytes(b"".join(stage.tokens(f, wire).tobytes() for f in self.frames))
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
        for k, stage in enumerate(self.stages):
            for wire in stage.wires:
                pipe = None if wire.is_input else pipes.pop((k, wire.port.value), None)
                if pipe is not None:
                    (self.folder(k) / wire.file).symlink_to(pipe)
                elif not wire.is_input:
                    self.ends.append((k, wire))

    def outputs(self) -> list[dict[str, torch.Tensor]]:
        """What left the chain: for each frame, value name to tensor."""
        count, found = len(self.frames), [dict[str, torch.Tensor]() for _ in self.frames]
        for k, wire in self.ends:
            values = self.stages[k].read(self.folder(k), wire, count)
            for frame, value in zip(found, values, strict=True):
                frame[wire.port.value] = value
        return found


def _run_all(commands: Sequence[Sequence[str | Path]], stages: Sequence[CSimulation]) -> None:
    """Run the commands at the same time; where one fails the others end too."""
    running = [
        subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    problem: BackendError | None = None
    with ThreadPoolExecutor(max_workers=len(running)) as pool:
        ends = {pool.submit(p.communicate): k for k, p in enumerate(running)}
        for end in as_completed(ends):
            k = ends[end]
            if problem is None and running[k].returncode != 0:
                code, said = running[k].returncode, end.result()[1]
                problem = failed(stages[k].stage, code, said, " while all stages ran")
                for process in running:
                    process.kill()
    if problem is not None:
        raise problem
