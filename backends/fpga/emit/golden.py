"""Golden data: what torch computes for a stage on seeded random inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.quantise.samples import random_frames
from pipec.compiler.sizes import run_graph
from pipec.graph.ir import Graph

SEED = 20250117


@dataclass(frozen=True)
class Golden:
    """One frame of a stage: value of every input and output, by name."""

    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]


def random_inputs(graph: Graph, designs: Sequence[StageDesign]) -> dict[str, torch.Tensor]:
    """One frame of `random_frames` for the designs of a model's stages."""
    nests = (engine.nest for design in designs for engine in design.engines)
    return random_frames(graph, nests, SEED)[0]


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
