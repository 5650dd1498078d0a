"""Running an emitted stage in C simulation: tensors in, tensors out."""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pipec.backends.fpga.csim.build import build
from pipec.backends.fpga.csim.manifest import Wire, read_wires
from pipec.backends.fpga.numbers import file_type
from pipec.backends.fpga.wire import from_tokens, to_tokens
from pipec.errors import BackendError


@dataclass(frozen=True)
class CSimulation:
    """One compiled stage as a function from values to values.

    Attributes:
        stage: Directory of the emitted stage.
        binary: Its compiled test bench.
        wires: Its inputs and outputs.
    """

    stage: Path
    binary: Path
    wires: tuple[Wire, ...]

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
            folder = Path(name)
            for wire in self.wires:
                if wire.is_input:
                    tokens = to_tokens(self._value(values, wire), wire.port, wire.stream)
                    tokens.tofile(folder / wire.file)
            self._run(folder)
            return {w.port.value: self._read(folder, w) for w in self.wires if not w.is_input}

    def _value(self, values: Mapping[str, torch.Tensor], wire: Wire) -> torch.Tensor:
        if wire.port.value not in values:
            raise BackendError(
                "a stage input has no value",
                where=self.stage.name,
                got=", ".join(values),
                want=wire.port.value,
            )
        return values[wire.port.value]

    def _run(self, folder: Path) -> None:
        done = subprocess.run(
            [self.binary, self.stage, folder, "1"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BackendError(
                "the C simulation of a stage failed",
                where=self.stage,
                got=f"exit code {done.returncode}: {done.stderr.strip()[:500]}",
            )

    def _read(self, folder: Path, wire: Wire) -> torch.Tensor:
        tokens = np.fromfile(folder / wire.file, dtype=file_type(wire.stream.dtype))
        return from_tokens(tokens, wire.port, wire.stream)


def load_stages(stages: Sequence[Path], jobs: int = 2) -> list[CSimulation]:
    """Compile the stages, several at a time.

    Args:
        stages: Directories of emitted stages.
        jobs: Compilers at a time.

    Raises:
        BackendError: No compiler, damaged files, or code that does not compile.
    """
    wires = [read_wires(stage) for stage in stages]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        binaries = list(pool.map(build, stages))
    return [
        CSimulation(stage, binary, w)
        for stage, binary, w in zip(stages, binaries, wires, strict=True)
    ]
