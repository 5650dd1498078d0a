"""Emitted stages at other sizes of the axes that they leave open."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pipec.compiler.comparison import Comparison, compare
from pipec.compiler.inputs import choose_inputs
from pipec.compiler.job import StageFunction, run_chain
from pipec.compiler.loaded import Loaded
from pipec.errors import BackendError, FrontendError
from pipec.graph.axes import Axes, Sizes, free
from pipec.graph.ir import Graph, OutputKind, nbytes, tensors
from pipec.graph.open_sizes import Shapes, resize_graph
from pipec.plan.model import Plan
from pipec.runtime.draws import find_drawn


def compare_sizes(
    plan: Plan,
    stages: Sequence[StageFunction],
    model: Loaded,
    axes: Axes,
    tolerance: float,
    seed: int = 0,
    *,
    traced: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Sizes, Comparison]]:
    """Compare every output at the sizes of ``axes.checked`` that the model as written takes.

    Values between stages are not compared: the traced graph has them at the planned sizes alone;
    nor are outputs that depend on random numbers.

    Args:
        plan: What was emitted.
        stages: One function per stage.
        model: It as written.
        axes: The open axes, and the sizes to look at.
        tolerance: Largest relative error of a float.
        seed: Seed of the inputs.
        traced: Whether the stages of a quantised model are held against what is traced at these
            sizes: another engine rounds some values to the other side, and what follows differs.
        progress: Called with what is being done.
    """
    nodes = find_drawn(model.graph)
    drawn = {o.name for o in model.graph.outputs if o.node in nodes}
    for sizes in axes.checked:
        text = ", ".join(f"{n}={s}" for n, s in sizes.items())
        progress(f"running the original model at {text}")
        examples = axes.resize(model.example_inputs, sizes)
        original = model.original
        try:
            if traced and model.inner and model.resized:
                shapes = {name: tuple(t.shape) for name, t in examples.items()}
                original = partial(run_graph, model.resized(shapes))
            inputs, want = choose_inputs(model.graph, examples, original, seed, tolerance)
        except FrontendError:  # the model as written does not take this size
            continue
        if any(t.numel() and t.isnan().all() for t in want.values()):
            continue  # it makes nothing of this size: a mean over no pixels
        torch.default_generator.manual_seed(seed)
        for name, kind, stage, got in run_chain(plan, stages, inputs, progress):
            if kind is OutputKind.OUTPUT and name not in drawn:
                label = f"{name} at {text}"
                yield sizes, compare(got, want[name], tolerance, name=label, kind=kind, stage=stage)


def run_graph(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a pure graph yields, by name, of its weights and of values by name."""
    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    with torch.no_grad():
        results = graph.module(*args)
    return {o.name: value for o, value in zip(graph.outputs, results, strict=True)}


def check_sizes(
    plan: Plan,
    stages: Sequence[StageFunction],
    model: Loaded,
    axes: Axes,
    sizes: Sequence[Sizes],
    tolerance: float,
    *,
    traced: bool = False,
) -> Axes:
    """Run emitted stages and the model as written at other sizes of the open axes.

    Args:
        plan: What is emitted.
        stages: One function per stage.
        model: It as written.
        axes: The open axes.
        sizes: To look at; one of 1 is added, which some models do not take.
        tolerance: Largest relative error of an output.
        traced: See `compare_sizes`.

    Returns:
        The axes with the sizes that were looked at.

    Raises:
        BackendError: An output is off, or the model itself runs at no other size.
    """
    ones = {a.name: 1 for a in free(axes.open)}
    axes = replace(axes, checked=(*sizes, ones))
    found = list(compare_sizes(plan, stages, model, axes, tolerance, traced=traced))
    wrong = [b for _, b in found if not b.ok]
    ran = [s for s in axes.checked if any(s == at for at, _ in found)]
    if wrong:
        got = f"{wrong[0].name} is off by {wrong[0].relative_error:.2g}"
        raise BackendError("the stages differ from the model as written", got=got)
    if ran in ([], [ones]):
        raise BackendError("the model as written runs at no other size")
    return replace(axes, checked=tuple(ran))


def resize_plan(plan: Plan, axes: Axes, shapes: Shapes) -> Plan:
    """A plan whose stages are for other shapes of the model's inputs.

    The graph of the whole model stays at the planned sizes.

    Raises:
        GraphError: An op does not take these sizes.
    """
    known, sizes, stages = dict(shapes), dict[str, int](), []
    for stage, sized in zip(plan.stages, axes.stages, strict=True):
        graph = resize_graph(stage.graph, sized, known)
        known |= {n.name: tuple(t.shape) for n in graph.calls for t in tensors(n)[:1]}
        sizes |= {n.name: nbytes(n) for n in graph.calls}
        stages.append(replace(stage, graph=graph))
    channels = tuple(
        replace(c, shape=tuple(known[c.value]), nbytes=sizes[c.value]) for c in plan.channels
    )
    return plan.replace(stages=tuple(stages), channels=channels)
