"""Which axes of a plan's model stay open in its stages, and what follows sizes in them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipec.compiler.job import StageFunction
from pipec.compiler.sizes import check_sizes
from pipec.errors import FrontendError, GraphError, PipecError, PlanError
from pipec.frontends.base import Loaded
from pipec.frontends.load import reload
from pipec.frontends.pt2 import was_trusted
from pipec.graph.axes import FILE, Axes, Axis, Sizes, most_open, other_sizes, reason
from pipec.graph.ir import Graph, InputKind
from pipec.graph.lower import lower
from pipec.graph.open_sizes import Traces, check_arguments
from pipec.plan.model import Plan

Check = Callable[[Axes], Sequence[StageFunction]]
"""The stages of a plan for open axes; raises a `PipecError` where something cannot have them."""


def find_axes(plan: Plan, stages: Check, tolerance: float) -> Axes:
    """As many open axes as the stages of a plan can have, and the others with the reason."""
    try:
        model = reload(plan.graph.source, trust=was_trusted(plan.graph.source.location))
    except FrontendError as error:
        return Axes(fixed=(Axis("every axis", 0, (), reason(error)),))
    found: dict[tuple[Axis, ...], Axes] = {}

    def attempt(axes: Sequence[Axis]) -> None:
        """Make the stages for any size of some axes, and run them."""
        open_axes = Axes(tuple(axes))
        graphs, sizes = _trace_sizes(model, open_axes)
        traces = Traces([model.graph, *graphs])
        own = tuple(traces.arguments(lower(s.graph).graph) for s in plan.stages)
        open_axes = replace(open_axes, stages=own, checked=tuple(sizes))
        found[tuple(axes)] = check_sizes(
            plan, stages(open_axes), model, open_axes, sizes, tolerance, traced=True
        )

    axes = most_open(model.axes.open, attempt)
    fixed = (*model.axes.fixed, *axes.fixed)
    return replace(found.get(axes.open, Axes()), fixed=fixed)


def _trace_sizes(model: Loaded, axes: Axes) -> tuple[list[Graph], Sequence[Sizes]]:
    """The model traced at other sizes, and these; only its constants are kept of its weights.

    Raises:
        FrontendError: It cannot be traced there.
    """
    assert model.resized is not None
    planned = {n: t.shape for n, t in model.example_inputs.items()}
    errors = []
    for group in other_sizes(axes.open):
        try:
            graphs = []
            for sizes in group:
                shapes = axes.shapes(planned, sizes)
                graph = model.resized({n: tuple(s) for n, s in shapes.items()})
                constants = {i.name for i in graph.inputs_of(InputKind.CONSTANT)}
                left = {n: t for n, t in graph.weights.items() if n in constants}
                graphs.append(graph.replace(weights=left))
        except PipecError as error:
            errors.append(error)
            continue
        return graphs, group
    raise errors[0]


def read_axes(plan: Plan, directory: Path) -> Axes:
    """The axes that are open in the stages of a directory.

    Raises:
        PlanError: Their record is damaged.
    """
    axes = Axes.read(directory, plan.graph)
    if not axes.open:
        return axes
    try:
        for stage, sized in zip(plan.stages, axes.stages, strict=True):
            check_arguments(lower(stage.graph).graph, sized)
    except (GraphError, ValueError) as error:
        where = directory / FILE
        raise PlanError("the record of open axes is damaged", where=where, got=error) from error
    return axes
