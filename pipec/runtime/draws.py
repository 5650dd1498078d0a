"""Random numbers that depend on the seed, the microbatch and the place in the model alone.

The random ops of a model are numbered in the model's order. Each draws from a stream of its own,
so that neither the schedule nor the cut changes a mask.
"""

from collections.abc import Callable, Iterable

import torch
from torch import fx

from pipec.autodiff.recompute import draws_of
from pipec.graph.ir import Graph

Stream = Callable[[int], int]
"""The seed of a random op by its number in the model."""
Draws = tuple[int | None, ...]
"""Numbers of draws in the model; None goes on in the stream of the one before, of the same op."""


def draws(graph: Graph) -> int:
    """How often a forward graph draws."""
    return sum(map(draws_of, graph.calls))


def numbered(model: Graph, stages: Iterable[Graph]) -> list[Draws]:
    """Numbers of the draws of each stage, in the order in which the stage draws.

    Args:
        model: The whole model.
        stages: Graphs that were cut out of it; ops that a pass has added come behind the model's.
    """
    stages, found = list(stages), dict[str, int]()
    for name in (n.name for graph in (model, *stages) for n in graph.calls if draws_of(n)):
        found.setdefault(name, len(found))
    return [
        tuple(None if again else found[n.name] for n in g.calls for again in range(draws_of(n)))
        for g in stages
    ]


def stream(seed: int, microbatch: int, draw: int) -> int:
    """Seed of one random op in the forward of one microbatch.

    This is not the stream of the model run eagerly: there, one op goes on where another ended.
    """
    mixed = (seed * 1_000_003 + microbatch) * 1_000_003 + draw
    return mixed & 0x7FFF_FFFF_FFFF_FFFF


class Reseeding:
    """What seeds torch before each random op of a stage.

    Args:
        numbers: Of the graph's draws.
        device: Where the stage runs.
    """

    def __init__(self, numbers: Draws, device: torch.device) -> None:
        self._numbers, self._device = numbers, device
        self.stream: Stream = int

    def put_into(self, module: fx.GraphModule) -> fx.GraphModule:
        """A copy of a forward graph that seeds before each of its random ops."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        drawing = [n for n in graph.nodes for _ in range(draws_of(n))]
        for number, node in zip(self._numbers, drawing, strict=True):
            if number is not None:
                with graph.inserting_before(node):
                    graph.call_function(self._seed, (number,))
        return fx.GraphModule(module, graph)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _seed(self, draw: int) -> None:
        seed = self.stream(draw)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks every kind of device
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
