"""Emitted stages at other sizes of the axes that they leave open."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pipec.compiler.chain import StageRunner, run_chain
from pipec.compiler.comparison import Comparison, compare
from pipec.compiler.inputs import choose_inputs
from pipec.errors import FrontendError
from pipec.graph.axes import Axes, Sizes
from pipec.graph.ir import Graph, OutputKind
from pipec.plan.model import Plan


class AsWritten(Protocol):
    """A model that can run at any size (`pipec.frontends.base.Loaded`)."""

    @property
    def graph(self) -> Graph:
        """The graph traced at the planned sizes."""
        ...

    @property
    def example_inputs(self) -> Mapping[str, Tensor]:
        """One tensor per user input, of the planned sizes."""
        ...

    @property
    def original(self) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """The model as written."""
        ...


def compare_sizes(
    plan: Plan,
    stages: Sequence[StageRunner],
    model: AsWritten,
    axes: Axes,
    tolerance: float,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Sizes, Comparison]]:
    """Compare every output at the sizes of ``axes.checked`` that the model as written takes.

    Values between stages are not compared: the traced graph has them at the planned sizes alone.

    Args:
        plan: What was emitted.
        stages: One function per stage.
        model: It as written.
        axes: The open axes, and the sizes to look at.
        tolerance: Largest relative error of a float.
        seed: Of the inputs.
        progress: Told what is being done.
    """
    for sizes in axes.checked:
        told = ", ".join(f"{n}={s}" for n, s in sizes.items())
        progress(f"running the original model at {told}")
        examples = axes.resized(model.example_inputs, sizes)
        try:
            inputs, want = choose_inputs(model.graph, examples, model.original, seed, tolerance)
        except FrontendError:  # the model as written does not take this size
            continue
        torch.manual_seed(seed)
        for name, kind, stage, got in run_chain(plan, stages, inputs, progress):
            if kind is OutputKind.OUTPUT:
                label = f"{name} at {told}"
                yield sizes, compare(got, want[name], tolerance, name=label, kind=kind, stage=stage)
