"""Running the emitted kernels of training stages in C simulation.

What the kernels of a stage share in memory (rings of saved values, gradient sums, weights,
momentum) lies in the files of one directory; what has gone through the FIFOs between F and B waits
here for its B. The runtime plays the first microbatches of a plan's schedule, and F and B are
kernels.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.json import decode
from torch import Tensor

from pipec.backends.fpga import audit
from pipec.backends.fpga.csim.run import CSimulation, load_stages
from pipec.backends.fpga.toolchain import workspace
from pipec.backends.fpga.training.artifacts import KERNELS, RECORD
from pipec.backends.fpga.training.phases import Mask, gradient_name, name_saved
from pipec.backends.fpga.training.update import ROW, Slice, put_tokens
from pipec.backends.fpga.wire import Wire
from pipec.compiler.verify_training import first_microbatches
from pipec.errors import BackendError
from pipec.files import read_data
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan
from pipec.runtime.draws import Stream
from pipec.runtime.executor import Settings
from pipec.runtime.program import StageProgram
from pipec.runtime.result import Result
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.stage import Outcome, StageRunner

Values = Mapping[str, Tensor]
Tensors = dict[str, Tensor]


class TrainingRecord(Struct, frozen=True, rename={"in_flight": "microbatches_in_flight"}):
    """The record ``training.json``, for the host.

    Attributes:
        parameters: As they lie in memory.
        update: Settings of the update, by name.
        counters: Counters of batches.
        masks: Masks of dropout, which the host sends to F.
        in_flight: Microbatches that rings have room for.
    """

    parameters: tuple[Slice, ...]
    update: Mapping[str, float]
    counters: Mapping[str, int]
    masks: tuple[Mask, ...]
    in_flight: int


def read_training(folder: Path) -> TrainingRecord:
    """The record of a stage.

    Raises:
        BackendError: It is missing or damaged.
    """
    path = folder / RECORD
    try:
        return decode(read_data(path), type=TrainingRecord)
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError("a stage's record cannot be read", where=path, got=error) from error


@dataclass
class TrainedRunner:
    """The kernels of one stage in C simulation.

    Attributes:
        folder: Folder of the stage.
        record: Its ``training.json``.
        forward_kernel: F; ``backward_kernel`` B; ``saved_kernel`` the FIFOs in between.
        memory: Directory of what the kernels share in memory.
        microbatches: Microbatches of an update.
        state: Running statistics.
        stream: Seed of a random op by its number in the model, for the next microbatch.
        waiting: Microbatch to what F has left on chip for B.
    """

    folder: Path
    record: TrainingRecord
    forward_kernel: CSimulation
    backward_kernel: CSimulation
    memory: Path
    saved_kernel: CSimulation | None = None
    microbatches: int = 1
    state: Tensors = field(default_factory=dict)
    waiting: dict[int, Tensors] = field(default_factory=dict)
    stream: Stream = int

    def __call__(self, values: Values) -> Tensors:
        """F of one microbatch, from the beginning."""
        self.begin(1)
        return self.forward(0, values)

    def begin(self, microbatches: int) -> None:
        """Everything as it was written; updates have so many microbatches."""
        shutil.rmtree(self.memory)
        self.memory.mkdir()
        self.microbatches, self.waiting = microbatches, {}
        self.state = _state(self.forward_kernel)

    def forward(self, microbatch: int, values: Values) -> Tensors:
        """F of a microbatch.

        Raises:
            BackendError: More microbatches are in flight than rings have room for.
        """
        if len(self.waiting) >= self.record.in_flight:
            raise BackendError(
                "more microbatches are in flight than a stage has room for",
                where=self.folder.name,
                got=len(self.waiting) + 1,
                want=f"at most {self.record.in_flight}",
            )
        masks = {m.name: m.draw_mask(self.stream) for m in self.record.masks}
        read = {**self.state, **masks, **values}
        found = self.forward_kernel.frame(self.memory, read, (microbatch, self.microbatches))
        self.state |= {n: found[n] for n in self.state if n in found}
        if self.saved_kernel is not None:
            found |= self.saved_kernel.frame(self.memory, found)
        self.waiting[microbatch] = found
        return found | {n: torch.tensor(c + 1) for n, c in self.record.counters.items()}

    def read_saved(self, microbatch: int) -> Tensors:
        """The saved values of the last microbatch that F ran: on chip, and in rings."""
        found = dict(self.waiting[microbatch])
        for wire in self.forward_kernel.memories:
            if not wire.is_input:
                ring = wire.read(self.memory).reshape(-1, wire.stream.tokens * wire.stream.lanes)
                found[wire.port.value] = wire.tensor(ring[microbatch % len(ring)])
        prefix = name_saved("")
        return {n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)}

    def backward(self, microbatch: int, gradients: Values) -> Tensors:
        """B of a microbatch whose F has run.

        From gradients of the values that F yielded, by name, to those of what it received; the
        loss's gradient is 1.
        """
        named = {gradient_name(k): v for k, v in gradients.items()}
        read = {**self.waiting.pop(microbatch), **named}
        found = self.backward_kernel.frame(self.memory, read, (microbatch, self.microbatches))
        return {k.removeprefix(gradient_name("")): v for k, v in found.items()}

    def gradients(self) -> Tensors:
        """The sums of the gradients of all microbatches since the last update, by parameter."""
        return {n: w.tensor(w.read(self.memory)) for n, w in self._sums.items()}

    def update(self) -> Tensors:
        """The new parameters, by name, of the update kernel; the momentum stays in memory."""
        if not self.record.parameters:
            return {}
        last = self.record.parameters[-1]
        image = np.zeros((last.first + last.rows, ROW), dtype=np.float32)
        for part in self.record.parameters:
            put_tokens(image, part, self._sums[part.parameter].read(self.memory))
        image.tofile(self.memory / "sums.bin")
        if not (self.memory / "w.bin").exists():
            shutil.copy(self.folder / "update/state/w.bin", self.memory / "w.bin")
        (kernel,) = load_stages([self.folder / "update"])
        kernel.play(self.memory)
        for name in ("w", "m"):
            shutil.copy(self.memory / f"new_{name}.bin", self.memory / f"{name}.bin")
        new = np.fromfile(self.memory / "w.bin", dtype=np.float32).reshape(image.shape)
        return {p.parameter: self._parameter(new, p) for p in self.record.parameters}

    def _parameter(self, image: Any, part: Slice) -> Tensor:
        wire = self._sums[part.parameter]
        count = wire.stream.tokens * wire.stream.lanes
        return wire.tensor(image[part.first : part.first + part.rows].reshape(-1)[:count])

    @property
    def _sums(self) -> dict[str, Wire]:
        """Parameter to where its gradients are added up."""
        return {
            w.port.value.removeprefix(gradient_name("")): w
            for w in self.backward_kernel.memories
            if not w.is_input
        }


def load_training(folders: Sequence[Path]) -> list[TrainedRunner]:
    """Compile F and B of every stage.

    Raises:
        BackendError: No compiler, damaged files, or code that does not compile.
    """
    for folder in folders:
        for name in KERNELS:
            if (folder / name).is_dir():
                audit.check(folder / name)
    kernels = load_stages([folder / name for folder in folders for name in KERNELS[:2]])
    fifos = [folder / KERNELS[3] for folder in folders if (folder / KERNELS[3]).is_dir()]
    waiting = dict(zip([f.parent for f in fifos], load_stages(fifos), strict=True))
    return [
        TrainedRunner(
            folder,
            read_training(folder),
            forward,
            backward,
            Path(tempfile.mkdtemp(dir=workspace(), prefix="memory-")),
            waiting.get(folder),
        )
        for folder, forward, backward in zip(folders, kernels[::2], kernels[1::2], strict=True)
    ]


def _state(forward: CSimulation) -> Tensors:
    found = {}
    for wire in forward.wires:
        path = forward.stage / "state" / wire.file
        if wire.is_input and path.exists():
            tokens = wire.read(path.parent)
            if tokens.size != wire.stream.tokens * wire.stream.lanes:
                raise BackendError("a file of running statistics is damaged", where=path)
            found[wire.port.value] = wire.tensor(tokens)
    return found


class _OnBoard(StageRunner):
    """A stage whose F and B are kernels, which keep between them what is saved."""

    def __init__(
        self, program: StageProgram, kernels: TrainedRunner, kept: dict[tuple[int, int], Tensors]
    ) -> None:
        super().__init__(program)
        self._kernels, self._kept = kernels, kept

    def forward(
        self,
        microbatch: int,
        weights: Tensors,
        values: Tensors,
        inputs: Values,
        stream: Stream = int,
    ) -> Outcome:
        found = self._kernels.forward(microbatch, {**values, **inputs})
        self._kept[self.program.index, microbatch] = self._kernels.read_saved(microbatch)
        kinds = (OutputKind.VALUE, OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.BUFFER_UPDATE)
        graph = self.program.forward
        return {kind: {o.name: found[o.name] for o in graph.outputs_of(kind)} for kind in kinds}

    def backward(self, kind: str, microbatch: int, weights: Tensors, gradients: Tensors) -> Outcome:
        found = self._kernels.backward(microbatch, gradients)
        return {OutputKind.GRADIENT: found, OutputKind.WEIGHT_GRADIENT: {}}  # summed in memory

    def list_owned(self, kind: str) -> frozenset[str]:
        return frozenset()


class EmittedPipeline(LocalPipeline):
    """The stages of a plan with a training schedule, as they were loaded, in C simulation.

    They start anew; an update has so many microbatches, at most the schedule's.

    Attributes:
        saved: What F of a stage saved last in a microbatch, by both.
    """

    def __init__(self, plan: Plan, runners: Sequence[TrainedRunner], microbatches: int) -> None:
        for runner in runners:
            runner.begin(microbatches)
        assert plan.schedule is not None
        self._runners, self._batches = runners, list[Values]()
        self.saved = kept = dict[tuple[int, int], Tensors]()
        settings = Settings(runner=lambda stage: _OnBoard(stage, runners[stage.index], kept))
        first = first_microbatches(plan.schedule, microbatches)
        none = {n: torch.zeros(w.shape, dtype=w.dtype) for n, w in plan.graph.weights.items()}
        super().__init__(
            plan, lambda m: self._batches[m % microbatches], settings, schedule=first, weights=none
        )

    def train(self, batches: Sequence[Values]) -> Result:
        """F and B of the microbatches of one update; the gradients are added up in the stages.

        Batches are inputs and targets of the model by name, one set per microbatch.
        """
        self._batches[:] = batches
        return self.round()

    def update(self) -> Tensors:
        """Every stage's update; the new parameters by name."""
        return {name: new for runner in self._runners for name, new in runner.update().items()}
