"""Golden data: what torch computes for a stage on seeded random inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.quantise.samples import drawn, inputs_of
from pipec.backends.fpga.routing import Gather
from pipec.graph.ir import Graph

SEED = 20250117


@dataclass(frozen=True)
class Golden:
    """One frame of a stage: value of every input and output, by name."""

    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]


def random_inputs(
    graph: Graph, designs: Sequence[StageDesign], seed: int = SEED
) -> dict[str, torch.Tensor]:
    """A seeded random tensor for every user input of a model.

    Floating point is normal; integers are below the smallest table that any stage looks rows up
    in; booleans are fair coins.

    Args:
        graph: The whole model.
        designs: Its stages.
        seed: Of the random numbers.
    """
    nests = [engine.nest for design in designs for engine in design.engines]
    below = min((nest.entries for nest in nests if isinstance(nest, Gather)), default=2)
    generator = torch.Generator().manual_seed(seed)
    return {name: drawn(like, None, below, generator) for name, like in inputs_of(graph).items()}


def run_graph(graph: Graph, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run a stage's compute graph in torch.

    Args:
        graph: A pure graph (no communication).
        values: Value of every input that is no weight, by name.

    Returns:
        Value of every output, by name.
    """
    arguments = [
        graph.weights[i.name] if i.kind.is_weight else values[i.name] for i in graph.inputs
    ]
    with torch.no_grad():
        found = graph.module(*arguments)
    return {o.name: v for o, v in zip(graph.outputs, found, strict=True)}


def golden_chain(graphs: Sequence[Graph], inputs: Mapping[str, torch.Tensor]) -> list[Golden]:
    """Golden data of every stage of a pipeline; what one stage yields, the next ones read.

    Args:
        graphs: The stages' compute graphs, in order.
        inputs: The model's inputs.
    """
    known, found = dict(inputs), []
    for graph in graphs:
        outputs = run_graph(graph, known)
        read = [i.name for i in graph.inputs if not i.kind.is_weight]
        found.append(Golden({name: known[name] for name in read}, outputs))
        known = {**outputs, **known}  # an updated buffer is read as it was
    return found
