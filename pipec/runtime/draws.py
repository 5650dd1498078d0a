"""Random numbers that depend on the seed, the microbatch and the place in the model alone.

The random ops of a model are numbered through all stages, in the order of the stages. Each draws
from a stream of its own, so that neither the schedule nor the number of stages changes a mask.
"""

from collections.abc import Callable

import torch
from torch import fx

from pipec.autodiff.recompute import is_random
from pipec.graph.ir import Graph

Stream = Callable[[int], int]
"""The seed of a random op by its number in the model."""


def draws(graph: Graph) -> int:
    """How many random ops a forward graph holds."""
    return sum(map(is_random, graph.calls))


def stream(seed: int, microbatch: int, draw: int) -> int:
    """Seed of one random op in the forward of one microbatch.

    This is not the stream of the model run eagerly: there, one op goes on where another ended.
    """
    mixed = (seed * 1_000_003 + microbatch) * 1_000_003 + draw
    return mixed & 0x7FFF_FFFF_FFFF_FFFF


class Reseeding:
    """What seeds torch before each random op of a stage.

    Args:
        first: Number of the stage's first random op in the model.
        device: Where the stage runs.
    """

    def __init__(self, first: int, device: torch.device) -> None:
        self._first, self._device = first, device
        self.stream: Stream = int

    def put_into(self, module: fx.GraphModule) -> fx.GraphModule:
        """A copy of a forward graph that seeds before each of its random ops."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        for number, node in enumerate([n for n in graph.nodes if is_random(n)]):
            with graph.inserting_before(node):
                graph.call_function(self._seed, (self._first + number,))
        return fx.GraphModule(module, graph)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _seed(self, draw: int) -> None:
        seed = self.stream(draw)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks every kind of device
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
