"""Emitted training stages over several microbatches and two updates, against autograd and SGD.

Two updates with the same gradients show the momentum too. Where gradients are off, ReLUs whose
arguments lie within rounding of zero and maxima within rounding of each other are put on the
kernels' side first (`pipec.backends.fpga.training.kinks`).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipec.backends.fpga.training.kinks import apply_sides
from pipec.backends.fpga.training.run import EmittedPipeline, TrainedRunner
from pipec.compiler.comparison import Allowed, Comparison, compare
from pipec.compiler.verify_training import add, compare_each, gradients_of, noise_of
from pipec.graph.ir import Graph
from pipec.plan.model import Plan
from pipec.runtime.program import StageProgram

Tensors = dict[str, Tensor]

MICROBATCHES = 3
"""Microbatches that the kernels are run on."""
UPDATES = 2
"""Updates that are compared."""
CANCELLED = 1e-2
"""Share of the largest gradient that an error is measured against at most where roundings explain
it: they also turn maxima that are nearly equal, which moves gradients as far as a fault does."""


def compare_emitted(
    plan: Plan,
    source: Graph,
    batches: Sequence[Mapping[str, Tensor]],
    tolerance: float,
    seed: int,
    runners: Sequence[TrainedRunner],
) -> list[Comparison]:
    """Run emitted stages and compare summed gradients and updated parameters.

    Args:
        plan: A plan with a training schedule.
        source: The whole model with weights, traced from its source.
        batches: The model's inputs and targets by name, one set per microbatch.
        tolerance: Largest relative error.
        seed: Seed of random ops.
        runners: The stages as their backend loaded them.

    Returns:
        For every trained parameter one comparison of kind ``gradient``, and one of kind ``update``
        of what each update adds to it (of parameters that only one stage trains). The ``basis`` of
        gradients says how many elements of ReLUs and maxima of windows had to be put on the
        kernels' side.
    """
    boards = EmittedPipeline(plan, runners, len(batches))
    boards.train(batches)
    program, found = boards.program, Tensors()
    for runner in runners:
        add(found, runner.gradients())
    stage_of = {n: s.index for s in reversed(program.stages) for n in _find_trained(s)}
    want: Tensors = {}
    for batch in batches:
        add(want, gradients_of(source, batch, set(found), seed))
    by = Allowed(tolerance)
    comparisons = compare_each(found, want, stage_of, by)
    if not all(c.ok for c in comparisons):
        sides = apply_sides(program.stages, source.weights, batches, seed, boards.saved, tolerance)
        if sides.relus + sides.maxima:
            add(want, sides.gradients)
            by = Allowed(tolerance, f"({sides})")
            comparisons = compare_each(found, want, stage_of, by)
    if tolerance and not all(c.ok for c in comparisons):
        noise = noise_of(source, batches[0], set(found), seed)
        most = CANCELLED * max(float(g.abs().max()) for g in want.values())
        sizes = {n: min(len(batches) * moves / tolerance, most) for n, moves in noise.items()}
        comparisons = compare_each(found, want, stage_of, by, sizes)
    for stage, runner in zip(program.stages, runners, strict=True):
        own = {n: want[n] for n in _find_trained(stage) if n not in program.tied}
        comparisons += compare_updates(source, stage, own, runner, tolerance)
    return comparisons


def compare_updates(
    source: Graph, stage: StageProgram, sums: Tensors, runner: TrainedRunner, tolerance: float
) -> list[Comparison]:
    """Run updates of a stage and compare what each adds with what torch.optim.SGD adds.

    The gradients of its parameters should have added up to ``sums``. The tolerance is relative,
    besides the rounding of a parameter.
    """
    found, before = list[Comparison](), {n: source.weights[n].detach() for n in sums}
    for step in _update(source, sums, runner.record.update):
        new = runner.update()
        for n in sums:
            rounding = 2 * torch.finfo(step[n].dtype).eps * float(step[n].abs().max())
            added = compare(
                new[n] - before[n], step[n] - before[n], tolerance, name=n, kind="update",
                stage=stage.index, floor=rounding / tolerance,
            )  # fmt: skip
            found.append(added)
        before = step
    return found


def _find_trained(stage: StageProgram) -> tuple[str, ...]:
    return stage.training.trained if stage.training is not None else ()


def _update(source: Graph, sums: Tensors, settings: Mapping[str, float]) -> list[Tensors]:
    """The parameters after each update, by torch.optim.SGD."""
    params = {n: torch.nn.Parameter(source.weights[n].detach().clone()) for n in sums}
    if not params:
        return []
    optimizer = torch.optim.SGD(
        params.values(),
        lr=settings["rate"],
        momentum=settings["momentum"],
        weight_decay=settings["decay"],
    )
    found = []
    for _ in range(UPDATES):
        for name, parameter in params.items():
            parameter.grad = settings["scale"] * sums[name]
        optimizer.step()
        found.append({n: p.detach().clone() for n, p in params.items()})
    return found
