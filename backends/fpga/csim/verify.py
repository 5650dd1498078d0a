"""Running all emitted stages at the same time against the model that they were made of.

`pipec.compiler.verify` runs one stage after the other and sees every value between them; here the
stages are processes of their own, fed frame after frame, and only what leaves the last ones is
seen.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pipec.compiler.backend import Emitted
from pipec.compiler.comparison import compare
from pipec.compiler.inputs import KINDS, draw
from pipec.compiler.same_model import check_same_model
from pipec.compiler.verify import Progress, Reference, VerifyReport
from pipec.errors import PlanError
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan

Tensors = Mapping[str, Tensor]


def verify_stream(
    plan: Plan,
    emitted: Emitted,
    stream: Callable[[Sequence[Tensors]], Sequence[Tensors]],
    reference: Reference,
    frames: int,
    *,
    seed: int,
    tolerance: float | None,
    progress: Progress,
) -> VerifyReport:
    """Stream frames through all stages and compare the model's outputs.

    Args:
        plan: As loaded from its directory.
        emitted: Its stages.
        stream: Runs all of them at once: inputs of each frame to outputs of each frame, by name.
        reference: The model, read from its source.
        frames: Number of frames, each with inputs of its own.
        seed: Seed of the first frame's inputs, the next ones' being one more each.
        tolerance: Largest relative error; that of the stages' numbers by default.
        progress: Told what is being done.

    Raises:
        PlanError: The plan was made of another model.
        BackendError: A stage fails.
    """
    check_same_model(plan, reference.graph)
    bounds = emitted.bounds if tolerance is None else {}
    error = emitted.tolerance if tolerance is None else tolerance
    inputs = [
        emitted.inputs(seed + k)
        or draw(reference.graph, reference.example_inputs, seed + k, KINDS[(seed + k) % len(KINDS)])
        for k in range(frames)
    ]
    progress(f"streaming {frames} frames through {len(plan.stages)} stages")
    found = stream(inputs)
    homes = {
        o.name: (s.index, o.kind)
        for s in plan.stages
        for o in s.graph.outputs
        if o.kind is not OutputKind.VALUE
    }
    boundaries = []
    for k, (values, outputs) in enumerate(zip(inputs, found, strict=True)):
        progress(f"running the original model on frame {k + 1} of {frames}")
        torch.manual_seed(seed)
        for name, want in reference.original(values).items():
            if name not in outputs or name not in homes:
                raise PlanError("no stage yields an output of the model", got=name)
            stage, kind = homes[name]
            title = f"{name} of frame {k + 1}"
            by = bounds.get(name, error)
            boundaries.append(compare(outputs[name], want, by, name=title, kind=kind, stage=stage))
    return VerifyReport(error, seed, tuple(boundaries))
