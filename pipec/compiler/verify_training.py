"""Gradients, losses and buffers of a plan's stages against autograd on the model in one piece.

```text
0: F0 F1 OFFLOAD0 FETCH0 I0 W0 ...    the schedule's rows, the first microbatches of them, played
1:    F0 I0       F1     I1 W0 ...    by the runtime; gradients of a weight summed over stages
```
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipec.compiler.comparison import (
    OTHER_KERNELS,
    Allowed,
    Comparison,
    coarsest,
    compare,
    rounding_tolerance,
)
from pipec.compiler.inputs import round_off
from pipec.compiler.interpret import COARSE, ROUNDINGS, TRIALS
from pipec.compiler.loaded import Gradients
from pipec.compiler.widen import widen, widen_graph, widen_plan
from pipec.errors import PipecError
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.plan.model import Plan
from pipec.runtime.draws import Stream, drawing, number_draws, seed_graph, stream
from pipec.runtime.executor import Settings
from pipec.runtime.program import StageProgram
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.stage import StageRunner
from pipec.schedule.schedule import Schedule
from pipec.user_module import user_code

Tensors = dict[str, Tensor]
Result = tuple[str, int]
"""A kind of output and a name, and of a loss the microbatch, of a buffer the replica."""
_BUFFER = f"{OutputKind.BUFFER_UPDATE} "

NOISE = 1e-3
"""Share of the largest gradient below which a gradient's error is measured against that share: the
gradient of a key's bias in attention, say, is zero but for rounding."""
MOVED = 0.05
"""How far weights that are all one number are moved, relative to it, or to 1."""


def compare_gradients(
    plan: Plan,
    source: Graph,
    batches: Sequence[Mapping[str, Tensor]],
    tolerance: float,
    seed: int,
    eager: Gradients | None = None,
) -> list[Comparison]:
    """Play the first microbatches of the plan's schedule, and compare what comes of it.

    F, B, I and W run in the schedule's order, what is offloaded leaves and comes back, what is
    recomputed is; every forward and backward uses the weights that training starts with, but for
    those that are all one number, such as zeros: they are moved, as they hide what they multiply.

    Args:
        plan: A plan with a training schedule, as loaded from its directory.
        source: The whole model with weights, traced from its source.
        batches: The model's inputs and targets by name, one set per microbatch.
        tolerance: Largest error relative to a value's largest magnitude.
        seed: Seed of random ops.
        eager: The gradients of the model as written, of the first microbatch, with these weights in
            place of its own; autograd on the traced graph if absent, and for the others.

    Returns:
        One comparison per trained parameter, of kind ``gradient``, in the order of the stages;
        then of the loss of each microbatch, and of each buffer as each replica leaves it.
    """
    moves = _moves(source)
    found, stage_of, made = play(plan.replace(graph=_move(plan.graph, moves)), batches, seed)
    source = _move(source, moves)
    want, results = Tensors(), dict[Result, Tensor]()
    sizes = dict.fromkeys(found, 0.0)
    replicas = Counter(name for name, _ in made if name.startswith(_BUFFER))
    for m, batch in enumerate(batches):
        held = {n: results[n, m % of] for n, of in replicas.items() if (n, m % of) in results}
        weights = {**source.weights, **{n.removeprefix(_BUFFER): t for n, t in held.items()}}
        model = source.replace(weights=weights)
        grads, after = _autograd(model, batch, set(found), partial(stream, seed, m))
        results |= {(n, m % replicas[n] if n in replicas else m): t for n, t in after.items()}
        part = eager(batch, {n: source.weights[n] for n in moves}) if eager and m == 0 else grads
        part = {n: part[n] for n in found}
        add(want, part)
        for n, g in part.items():  # parts that cancel each other leave the rounding of each
            sizes[n] += float(g.abs().max()) if g.numel() else 0.0

    def rows() -> list[Comparison]:
        return compare_each(found, want, stage_of, tolerance, sizes) + [
            compare(t, results[key], tolerance, name=key[0].split(" ", 1)[1],
                    kind=key[0].split(" ", 1)[0], stage=stage, floor=sizes.get(key[0], 0.0))
            for key, (stage, t) in made.items() if key in results
        ]  # fmt: skip

    if tolerance and not all(row.ok for row in rows()):
        noise = noise_of(source, batches[0], set(found), seed)
        sizes = {n: max(sizes.get(n, 0.0), by / tolerance) for n, by in noise.items()}
    return rows()


def compare_wide_gradients(
    plan: Plan,
    source: Graph,
    batches: Sequence[Mapping[str, Tensor]],
    tolerance: float | None,
    seed: int,
) -> list[Comparison]:
    """As `compare_gradients`, with all numbers of 16 bits in float32; nothing where there are none.

    Roundings of bfloat16 explain ten percent: a small part that a sum lacks would pass.

    Args:
        plan: As there.
        source: As there.
        batches: As there.
        tolerance: As there; what roundings of float32 explain if not given.
        seed: As there.
    """
    if coarsest(source) < COARSE:
        return []
    wide = widen_graph(source)
    inputs = [{n: widen(t) for n, t in batch.items()} for batch in batches]
    if tolerance is None:
        tolerance = rounding_tolerance(wide, OTHER_KERNELS)
    try:
        with user_code("an op takes 16 bits alone"):
            found = compare_gradients(widen_plan(plan), wide, inputs, tolerance, seed)
    except PipecError:
        return []
    return [replace(c, basis="in float32") for c in found]


def _moves(source: Graph) -> Tensors:
    """What is added to parameters that are all one number: a few percent of it, away from zero."""
    generator, found = torch.Generator().manual_seed(0), Tensors()
    for i in source.inputs_of(InputKind.PARAMETER):
        w = source.weights[i.name].detach()
        if w.is_floating_point() and w.numel() and bool((w == (one := w.flatten()[0])).all()):
            by = torch.randn(w.shape, generator=generator).abs() * (float(one) or 1.0)
            found[i.name] = (MOVED * by).to(w)
    return found


def _move(graph: Graph, moves: Tensors) -> Graph:
    moved = {n: graph.weights[n].detach() + by for n, by in moves.items()}
    return graph.replace(weights={**graph.weights, **moved}) if moves else graph


def noise_of(
    source: Graph, batch: Mapping[str, Tensor], names: set[str], seed: int
) -> dict[str, float]:
    """How far roundings of what is read, as coarse as the model's own, move each result.

    The gradient of a bias in front of a normalisation, say, is a sum of large terms that cancel.
    """

    def results(source: Graph, batch: Mapping[str, Tensor]) -> Tensors:
        grads, after = _autograd(source, batch, names, partial(stream, seed, 0))
        return grads | after

    exact = results(source, batch)
    found, step = dict.fromkeys(exact, 0.0), coarsest(source)
    for trial in range(TRIALS):
        generator = torch.Generator().manual_seed(trial)
        moved = {n: round_off(t, generator, step) for n, t in batch.items()}
        weights = {n: round_off(t, generator, step) for n, t in source.weights.items()}
        for n, g in results(source.replace(weights=weights), moved).items():
            moves = float((1 * g - 1 * exact[n]).abs().max()) if g.numel() else 0.0  # of bool too
            found[n] = max(found[n], ROUNDINGS * moves)
    return found


def play(
    plan: Plan, batches: Sequence[Mapping[str, Tensor]], seed: int
) -> tuple[Tensors, dict[str, int], dict[Result, tuple[int, Tensor]]]:
    """What the runtime makes of the first microbatches of a plan's schedule.

    Returns:
        Gradients by parameter, summed up; the first stage that trains each; losses by microbatch
        and buffers by replica, with the stage.
    """
    assert plan.schedule is not None
    first = first_microbatches(plan.schedule, len(batches))
    pipeline = LocalPipeline(plan, batches.__getitem__, Settings(seed=seed), schedule=first)
    pipeline.play()
    grads, made = Tensors(), dict[Result, tuple[int, Tensor]]()
    stages = pipeline.program.stages
    for executor in pipeline.executors:
        for stage, weights in executor.weights.items():
            for sums in weights.list_sums():
                add(grads, sums)
            replicas = first.placement.forward[stage]
            if executor.device in replicas:
                state, number = executor.list_changing(stage), replicas.index(executor.device)
                for o in stages[stage].forward.outputs_of(OutputKind.BUFFER_UPDATE):
                    made[_BUFFER + o.name, number] = stage, state[o.name]
    for s in stages:
        for executor in pipeline.executors if s.loss is not None else ():
            for m, loss in executor.result.losses.items():
                made[f"{OutputKind.LOSS} {s.loss}", m] = s.index, loss
    order = [(i.name, s.index) for s in stages for i in s.forward.inputs_of(InputKind.PARAMETER)]
    stage_of = {n: stage for n, stage in reversed(order) if n in grads}
    return {n: grads[n] for n, _ in order if n in grads}, stage_of, made


def first_microbatches(schedule: Schedule, count: int) -> Schedule:
    """What the schedule does with its first microbatches, without any step."""
    kept = (schedule.microbatch >= 0) & (schedule.microbatch < count)
    columns = {name: column[kept] for name, column in schedule.columns().items()}
    columns["version"] = np.zeros_like(columns["version"])
    ptr = np.concatenate([[0], np.cumsum(kept)])[schedule.device_ptr]
    return schedule.replace(
        microbatches=min(count, schedule.microbatches), joint=(), device_ptr=ptr, **columns
    )


def compare_each(
    found: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    stage_of: Mapping[str, int],
    tolerance: float | Allowed,
    sizes: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """One comparison of kind ``gradient`` per parameter.

    Args:
        found: By parameter.
        want: Likewise.
        stage_of: Parameter to the stage that is named.
        tolerance: Largest relative error.
        sizes: What errors are relative to, where that is more than a gradient's largest magnitude.
    """
    floors = sizes or {}
    largest = max((float(g.abs().max()) for g in want.values() if g.numel()), default=0.0)
    return [
        compare(
            found[name],
            want[name],
            tolerance,
            name=name,
            kind="gradient",
            stage=stage_of[name],
            floor=max(NOISE * largest, floors.get(name, 0.0)),
        )
        for name in found
    ]


def gradients_of(
    source: Graph, inputs: Mapping[str, Tensor], names: set[str], seed: int
) -> Tensors:
    """The gradients by autograd; zeros where the loss does not depend on a parameter."""
    torch.default_generator.manual_seed(seed)
    return _autograd(source, inputs, names, int)[0]


def _autograd(
    source: Graph, inputs: Mapping[str, Tensor], names: set[str], seeds: Stream
) -> tuple[Tensors, Tensors]:
    """Gradients by parameter; the loss and the buffers afterwards by kind and name."""
    held = {
        i.name: source.weights[i.name].detach().clone().requires_grad_(i.name in names)
        for i in source.inputs
        if i.kind.is_weight
    }
    args = [held[i.name] if i.kind.is_weight else inputs[i.name] for i in source.inputs]
    # stages seed each random op by its number in the model
    module = seed_graph(source, number_draws(source, [source])[0]).module
    with torch.enable_grad(), drawing(seeds):
        results = module(*args)
    kinds = [o.kind for o in source.outputs]
    loss = results[kinds.index(OutputKind.LOSS)]
    wanted = [held[n] for n in sorted(names)]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    after = {
        f"{o.kind} {o.name}": value.detach()
        for o, value in zip(source.outputs, results, strict=True)
        if o.kind in (OutputKind.BUFFER_UPDATE, OutputKind.LOSS)
    }
    return dict(zip(sorted(names), grads, strict=True)), after


def chain_stages(
    stages: Sequence[StageProgram],
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    seed: int,
    change: Callable[[int, Tensors], Tensors] = lambda _, saved: saved,
) -> Tensors:
    """F of all stages in torch, then B of all.

    ``change`` gives what B of a stage reads instead of what its F saved.

    Returns:
        Gradients by parameter.
    """
    runners = [StageRunner(s) for s in stages]
    own = [{n: weights[n] for n in s.weights} for s in stages]
    values: Tensors = {}
    torch.default_generator.manual_seed(seed)
    for stage, runner, held in zip(stages, runners, own, strict=True):
        arrived = {v: values[v] for v in stage.incoming}
        values |= runner.forward(0, held, arrived, inputs)[OutputKind.VALUE]

    back: Tensors = {}
    grads: Tensors = {}
    for k, stage in reversed(list(enumerate(stages))):
        assert stage.training is not None
        runners[k].saved[0] = change(k, runners[k].saved.get(0, {}))
        if stage.loss is not None:
            back[stage.loss] = torch.ones((), dtype=stage.loss_dtype)
        given = {n: back[n] for n in stage.training.gradients_in()}
        outcome = runners[k].backward("B", 0, own[k], given)
        add(back, outcome[OutputKind.GRADIENT])
        add(grads, outcome[OutputKind.WEIGHT_GRADIENT])
    return grads


def add(sums: Tensors, parts: Mapping[str, Tensor]) -> None:
    """Add tensors by name."""
    for name, part in parts.items():
        sums[name] = sums[name] + part if name in sums else part
