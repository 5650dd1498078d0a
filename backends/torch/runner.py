"""A saved stage as a function of named tensors."""

from collections.abc import Mapping, Sequence

import torch

from pipec.compiler.job import StageFunction
from pipec.errors import BackendError, first_line
from pipec.graph.ir import Graph, tensor
from pipec.graph.open_sizes import resize_graph
from pipec.graph.size_formula import SizedArgument


def stage_runner(
    graph: Graph,
    weights: Mapping[str, torch.Tensor],
    sized: Sequence[SizedArgument] | None = None,
) -> StageFunction:
    """A function that runs a pure stage graph eagerly.

    Returns:
        From user inputs and values by name to outputs and values by name. Gradients are off; the
        weights are never written.
    """
    by_node = {i.node: weights[i.name] for i in graph.inputs if i.kind.is_weight}
    fakes = {i.name: tensor(graph.node(i.node)) for i in graph.inputs if i.node not in by_node}
    modules = {tuple(tuple(t.shape) for t in fakes.values()): graph.module}

    def module(inputs: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
        shapes = {name: tuple(inputs[name].shape) for name in fakes}
        key = tuple(shapes.values())
        if key not in modules and sized is not None:
            modules[key] = resize_graph(graph, sized, shapes).module
        return modules.get(key, graph.module)

    def run(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        missing = [i.name for i in graph.inputs if i.node not in by_node and i.name not in inputs]
        if missing:
            where = type(graph.module).__name__
            raise BackendError("a stage lacks inputs", where=where, got=", ".join(missing))
        args = [by_node[i.node] if i.node in by_node else inputs[i.name] for i in graph.inputs]
        try:
            with torch.no_grad():
                results = module(inputs)(*args)
        except (RuntimeError, ValueError, IndexError) as error:
            where, problem = type(graph.module).__name__, first_line(error)
            raise BackendError("torch fails on a stage", where=where, got=problem) from error
        return {o.name: value for o, value in zip(graph.outputs, results, strict=True)}

    return run
