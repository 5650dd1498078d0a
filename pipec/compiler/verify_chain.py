"""Running all emitted stages at the same time against the model that they were made of.

`pipec.compiler.verify` runs one stage after the other and sees every value between them; here the
stages are processes of their own, fed frame after frame, and only what leaves the last ones is
seen.
"""

from collections.abc import Collection
from pathlib import Path

import torch

from pipec.compiler.backend import load_backend
from pipec.compiler.comparison import compare
from pipec.compiler.inputs import KINDS, draw
from pipec.compiler.verify import (
    Progress,
    Reference,
    VerifyReport,
    allowed_errors,
    check_same_model,
)
from pipec.errors import PlanError
from pipec.graph.ir import OutputKind
from pipec.plan.store import load_plan


def verify_chain(
    directory: Path,
    reference: Reference,
    frames: int,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    allowed: Collection[str] = (),
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Stream frames through all stages of a directory and compare the model's outputs.

    Args:
        directory: The output of a compilation.
        reference: The model, read from its source.
        frames: Number of frames, each with inputs of its own.
        seed: Seed of the first frame's inputs, the next ones' being one more each.
        tolerance: Largest relative error; the backend's by default.
        allowed: Op namespaces beyond pipec's own that the plan may use.
        progress: Told what is being done.

    Raises:
        PlanError: A file was changed, or the plan was made of another model.
        BackendError: Its stages do not stream, or one fails.
    """
    progress("checking files")
    plan = load_plan(directory, allowed=allowed)
    check_same_model(plan, reference.graph)
    backend = load_backend(plan.target)
    error, bounds = allowed_errors(backend, plan, directory, tolerance)
    inputs = [
        backend.sample_inputs(plan, directory, seed + k)
        or draw(reference.graph, reference.example_inputs, seed + k, KINDS[(seed + k) % len(KINDS)])
        for k in range(frames)
    ]
    progress(f"streaming {frames} frames through {len(plan.stages)} stages")
    found = backend.stream(plan, directory, inputs)
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
