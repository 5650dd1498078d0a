"""Writing the kernels of a training plan, and running them in C simulation.

```text
stage0_xcvu9p/
  forward/   backward/   update/     each a kernel with its sources, tables, test bench, scripts
  training.json                      saved values and their places, parameters in update order
```

The test bench of ``backward`` reads the gradients that torch computes for a seeded microbatch.
Running statistics of batch normalisations are inputs and outputs of ``forward``; ``state/`` holds
their first values.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipec.backends.fpga.csim.run import CSimulation, load_stages
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import device_of
from pipec.backends.fpga.emit.golden import Golden, random_inputs, run_graph
from pipec.backends.fpga.emit.source import port_names
from pipec.backends.fpga.emit.stage import stage_directory, write_stage
from pipec.backends.fpga.lint import stage as lint
from pipec.backends.fpga.numbers import file_type
from pipec.backends.fpga.stagejson import stage_record
from pipec.backends.fpga.training.phases import gradient_name
from pipec.backends.fpga.training.stage import TrainedStage, trained_stages
from pipec.backends.fpga.training.update import ROW
from pipec.backends.fpga.wire import from_tokens, to_tokens
from pipec.errors import BackendError
from pipec.graph.ir import Graph
from pipec.plan.model import Plan

KERNELS = ("forward", "backward", "update")
RECORD = "training.json"

Tensors = Mapping[str, torch.Tensor]


def emit_training(plan: Plan, directory: Path) -> None:
    """Write all kernels of all stages.

    Args:
        plan: Differentiated, with weights.
        directory: Where to.
    """
    stages = trained_stages(plan)
    inputs = random_inputs(plan.graph, [s.kernels.F for s in stages])
    golden = golden_training(plan.graph, stages, inputs)
    for k, stage in enumerate(stages):
        fabric = device_of(plan, k).fpga
        folder = directory / stage_directory(f"stage{k}", stage.kernels.F.part)
        frames = dict(zip(KERNELS, (*golden[k], _update_frame(stage.update)), strict=True))
        for name, design in _designs(stage).items():
            _write(design, folder / name, frames[name], bool(fabric and fabric.has_platform))
        _write_state(plan, stage, folder / "forward")
        counters = {n: int(plan.graph.weights[n]) for n in stage.phases.counters}
        record = json.dumps({**training_record(stage), "counters": counters}, indent=1) + "\n"
        (folder / RECORD).write_text(record, encoding="utf-8")


def _designs(stage: TrainedStage) -> dict[str, StageDesign]:
    found = {"forward": stage.kernels.F, "backward": stage.kernels.B}
    if stage.update is not None:
        found["update"] = stage.update
    return found


def _write(design: StageDesign, folder: Path, frame: Golden | None, platform: bool) -> None:
    write_stage(design, folder, frame, platform=platform)
    record = json.dumps(stage_record(design), indent=1) + "\n"
    (folder / "stage.json").write_text(record, encoding="utf-8")
    lint.check(folder)


def _write_state(plan: Plan, stage: TrainedStage, folder: Path) -> None:
    """First values of the running statistics, as the forward kernel reads them."""
    (folder / "state").mkdir()
    design = stage.kernels.F
    for name, port in port_names(design).items():
        if name.startswith("in_") and port.value in plan.graph.weights:
            tokens = to_tokens(plan.graph.weights[port.value], port, design.streams[port.stream])
            tokens.tofile(folder / "state" / f"{name}.bin")


def training_record(stage: TrainedStage) -> dict[str, Any]:
    """What ``training.json`` says."""
    return {
        "schema": 1,
        "interval": stage.kernels.interval,
        "parameters": list(stage.parameters),
        "numbers": stage.count,
        "update_rows_of": ROW,
        "saved": [
            {
                "value": f.value,
                "bytes": f.nbytes,
                "microbatches": f.sets,
                "memory": f.memory.value,
                "ddr_bytes_per_microbatch": f.traffic,
            }
            for f in stage.features
        ],
    }


def golden_training(
    model: Graph, stages: Sequence[TrainedStage], inputs: Tensors
) -> list[tuple[Golden, Golden]]:
    """A frame of F and of B of every stage: what torch computes, F's downwards, B's upwards."""
    known = {**inputs, **model.weights}
    forward, local = [], []
    for stage in stages:
        read = _read(stage.phases.F, known)
        outputs = run_graph(stage.phases.F, read)
        forward.append(Golden(read, outputs))
        local.append({**read, **outputs})
        known |= {o.name: outputs[o.name] for o in stage.phases.F.outputs if o.kind == "value"}
    backward: list[Golden] = []
    gradients: dict[str, torch.Tensor] = {}
    for stage, mine in zip(reversed(stages), reversed(local), strict=True):
        read = _read(stage.phases.B, {**known, **gradients, **mine})
        outputs = run_graph(stage.phases.B, read)
        backward.append(Golden(read, outputs))
        for o in stage.phases.B.outputs:
            if o.kind == "gradient":
                summed = gradients.get(o.name)
                gradients[o.name] = outputs[o.name] if summed is None else summed + outputs[o.name]
    return list(zip(forward, reversed(backward), strict=True))


def _read(graph: Graph, known: Tensors) -> dict[str, torch.Tensor]:
    return {i.name: known[i.name] for i in graph.inputs if not i.kind.is_weight}


def _update_frame(design: StageDesign | None) -> Golden | None:
    """One update of random numbers by torch.optim.SGD's rule, as the kernel's tables say."""
    if design is None:
        return None
    generator = torch.Generator().manual_seed(1)
    shape = next(p.shape for p in design.inputs)
    w, g, m = (torch.randn(shape, generator=generator) for _ in range(3))
    rate, momentum, decay, scale = (_rate(design, layer) for layer in _RATES)
    new_m = momentum * m + scale * g + decay * w
    return Golden({"w": w, "gradient": g, "m": m}, {"new_w": w + rate * new_m, "new_m": new_m})


_RATES = ("new_w", "new_m", "decayed", "total")


def _rate(design: StageDesign, layer: str) -> float:
    return float(design.engine(f"{layer}_map").weights[0].values().flat[0])


@dataclass
class TrainedRunner:
    """The kernels of one stage in C simulation: F, and B with what F saved.

    Attributes:
        forward: Kernel F.
        backward_kernel: Kernel B.
        state: Running statistics, the same in every call.
        counters: Counters of batches.
        kept: What F read and yielded in the last call.
    """

    forward: CSimulation
    backward_kernel: CSimulation
    state: dict[str, torch.Tensor]
    counters: dict[str, int]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, values: Tensors) -> dict[str, torch.Tensor]:
        """F of one microbatch."""
        found = self.forward({**self.state, **values})
        self.kept = {**values, **found}
        return found | {n: torch.tensor(count + 1) for n, count in self.counters.items()}

    def backward(
        self, gradients: Tensors
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """B of the same microbatch.

        Args:
            gradients: Of the values that F yielded, by name; the loss's is 1.

        Returns:
            Gradients of the values that F received, and of the parameters.
        """
        named = {gradient_name(k): v for k, v in gradients.items()}
        found = self.backward_kernel({**self.kept, **named})
        plain = {k.removeprefix(gradient_name("")): v for k, v in found.items()}
        received = {k: v for k, v in plain.items() if k in self.kept}
        return received, {k: v for k, v in plain.items() if k not in received}


def load_training(folders: Sequence[Path]) -> list[TrainedRunner]:
    """Compile F and B of every stage.

    Raises:
        BackendError: No compiler, damaged files, or code that does not compile.
    """
    for folder in folders:
        for name in KERNELS[:2]:
            lint.check(folder / name)
    kernels = load_stages([folder / name for folder in folders for name in KERNELS[:2]])
    return [
        TrainedRunner(forward, backward, _state(forward), _counters(folder))
        for folder, forward, backward in zip(folders, kernels[::2], kernels[1::2], strict=True)
    ]


def _counters(folder: Path) -> dict[str, int]:
    path = folder / RECORD
    try:
        counters = json.loads(path.read_text(encoding="utf-8"))["counters"]
        return {str(n): int(count) for n, count in counters.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError("a stage's record cannot be read", where=path, got=error) from error


def _state(forward: CSimulation) -> dict[str, torch.Tensor]:
    found = {}
    for wire in forward.wires:
        path = forward.stage / "state" / wire.file
        if wire.is_input and path.exists():
            tokens = np.fromfile(path, dtype=file_type(wire.stream.dtype))
            if tokens.size != wire.stream.tokens * wire.stream.lanes:
                raise BackendError("a file of running statistics is damaged", where=path)
            found[wire.port.value] = from_tokens(tokens, wire.port, wire.stream)
    return found
