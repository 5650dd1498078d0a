"""A saved stage as a function of named tensors."""

from collections.abc import Mapping

import torch

from pipec.compiler.chain import StageRunner
from pipec.errors import BackendError
from pipec.graph.ir import Graph


def stage_runner(graph: Graph, weights: Mapping[str, torch.Tensor]) -> StageRunner:
    """A function that runs a pure stage graph eagerly.

    Args:
        graph: The stage without communication nodes.
        weights: Its weights by name.

    Returns:
        From user inputs and values by name to outputs and values by name. Gradients are off; the
        weights are never written.
    """
    held = {i.node: weights[i.name] for i in graph.inputs if i.kind.is_weight}

    def run(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the stage's graph in torch."""
        missing = [i.name for i in graph.inputs if i.node not in held and i.name not in inputs]
        if missing:
            where = type(graph.module).__name__
            raise BackendError("a stage lacks inputs", where=where, got=", ".join(missing))
        args = [held[i.node] if i.node in held else inputs[i.name] for i in graph.inputs]
        try:
            with torch.no_grad():
                results = graph.module(*args)
        except (RuntimeError, ValueError, IndexError) as error:
            where, said = type(graph.module).__name__, str(error).split("\n")[0]
            raise BackendError("torch fails on a stage", where=where, got=said) from error
        return {o.name: value for o, value in zip(graph.outputs, results, strict=True)}

    return run
