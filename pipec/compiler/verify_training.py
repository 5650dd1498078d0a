"""The gradients of chained stages against autograd on the model in one piece.

```text
F of stage 0 ─► F of stage 1 ─► F of stage 2 ─► loss
B of stage 0 ◄─ B of stage 1 ◄─ B of stage 2 ◄─ 1        gradients of a weight summed over stages
```
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pipec.compiler.comparison import Allowed, Comparison, compare
from pipec.compiler.emitted import add
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.plan.model import Plan
from pipec.runtime.draws import Reseeding, draws
from pipec.runtime.program import Program, StageProgram
from pipec.runtime.stage import StageRunner

Tensors = dict[str, Tensor]

NOISE = 1e-3
"""Share of the largest gradient below which a gradient's error is measured against that share: the
gradient of a key's bias in attention, say, is zero but for rounding."""


def compare_gradients(
    plan: Plan,
    source: Graph,
    inputs: Mapping[str, Tensor],
    tolerance: float,
    seed: int,
    eager: Callable[[Mapping[str, Tensor]], Tensors] | None = None,
) -> list[Comparison]:
    """Run F of all stages, then B of all, and compare every parameter's gradient.

    Args:
        plan: A plan with a training schedule, as loaded from its directory.
        source: The whole model with weights, traced from its source.
        inputs: The model's inputs and targets by name.
        tolerance: Largest error relative to a gradient's largest magnitude.
        seed: Of random ops.
        eager: The gradients of the model as written; autograd on the traced graph if absent.

    Returns:
        One comparison per trained parameter, of kind ``gradient``, in the order of the stages.
    """
    found, stage_of = chained(Program.of(plan).stages, plan.graph.weights, inputs, seed)
    want = eager(inputs) if eager else gradients_of(source, inputs, set(found), seed)
    want = {n: want[n] for n in found}
    return compared(found, want, stage_of, tolerance)


def compared(
    found: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    stage_of: Mapping[str, int],
    tolerance: float | Allowed,
) -> list[Comparison]:
    """One comparison of kind ``gradient`` per parameter.

    Args:
        found: By parameter.
        want: Likewise.
        stage_of: Parameter to the stage that is named.
        tolerance: Largest relative error.
    """
    largest = max((float(g.abs().max()) for g in want.values() if g.numel()), default=0.0)
    return [
        compare(
            found[name],
            want[name],
            tolerance,
            name=name,
            kind="gradient",
            stage=stage_of[name],
            floor=NOISE * largest,
        )
        for name in found
    ]


def gradients_of(
    source: Graph, inputs: Mapping[str, Tensor], names: set[str], seed: int
) -> Tensors:
    """The gradients by autograd; zeros where the loss does not depend on a parameter."""
    held = {
        i.name: source.weights[i.name].detach().clone().requires_grad_(i.name in names)
        for i in source.inputs
        if i.kind.is_weight
    }
    args = [held[i.name] if i.kind.is_weight else inputs[i.name] for i in source.inputs]
    torch.manual_seed(seed)
    # stages seed each random op by its number in the model
    seeding = Reseeding(0, torch.device("cpu"))
    module = seeding.put_into(source.module) if draws(source) else source.module
    with torch.enable_grad():
        results = module(*args)
    kinds = [o.kind for o in source.outputs]
    loss = results[kinds.index(OutputKind.LOSS)]
    wanted = [held[n] for n in sorted(names)]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return dict(zip(sorted(names), grads, strict=True))


def chained(
    stages: Sequence[StageProgram],
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    seed: int,
    change: Callable[[int, Tensors], Tensors] = lambda _, saved: saved,
) -> tuple[Tensors, dict[str, int]]:
    """F of all stages in torch, then B of all.

    Args:
        stages: Of a training plan.
        weights: Of the whole model.
        inputs: The model's inputs and targets by name.
        seed: Of random ops.
        change: What B of a stage reads instead of what its F saved.

    Returns:
        Gradients by parameter, and the first stage that trains each.
    """
    runners = [StageRunner(s) for s in stages]
    mine = [{n: weights[n] for n in s.weights} for s in stages]
    values: Tensors = {}
    torch.manual_seed(seed)
    for stage, runner, held in zip(stages, runners, mine, strict=True):
        arrived = {v: values[v] for v in stage.incoming}
        values |= runner.forward(0, held, arrived, inputs).values

    back: Tensors = {}
    grads: Tensors = {}
    stage_of: dict[str, int] = {}
    for k, stage in reversed(list(enumerate(stages))):
        assert stage.training is not None
        runners[k].saved[0] = change(k, runners[k].saved[0])
        if stage.loss is not None:
            back[stage.loss] = torch.ones((), dtype=stage.loss_dtype)
        given = {n: back[n] for n in stage.training.gradients_in()}
        outcome = runners[k].backward("B", 0, mine[k], given)
        add(back, outcome.gradients)
        add(grads, outcome.weight_gradients)
        stage_of |= dict.fromkeys(outcome.weight_gradients, stage.index)
    order = [i.name for s in stages for i in s.forward.inputs_of(InputKind.PARAMETER)]
    return {n: grads[n] for n in dict.fromkeys(order) if n in grads}, stage_of
