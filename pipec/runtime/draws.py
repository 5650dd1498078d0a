"""Random numbers that depend on the seed, the microbatch and the place in the model alone.

The random ops of a model are numbered in the model's order. Each draws from a stream of its own,
so that neither the schedule nor the cut changes a mask. Kernels draw in the order in which a tensor
lies in memory, which a transfer changes: what they draw for is made contiguous first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import cast

import torch
from torch import fx

from pipec.autodiff.recompute import draws_of
from pipec.graph.arguments import bind
from pipec.graph.ir import Graph
from pipec.graph.torch_private import OpOverload, argument_names_and_defaults

_CONTIGUOUS = torch.ops.aten.contiguous.default

Stream = Callable[[int], int]
"""The seed of a random op by its number in the model."""
Draws = tuple[int | None, ...]
"""Numbers of draws in the model; None goes on in the stream of the one before, of the same op."""
_seeds: ContextVar[Stream | None] = ContextVar("seeds", default=None)


def count_draws(graph: Graph) -> int:
    """How often a forward graph draws."""
    return sum(map(draws_of, graph.calls))


def find_drawn(graph: Graph, given: Collection[str] = ()) -> set[str]:
    """Names of the nodes that depend on random numbers, other than through nodes that are given."""
    found = set[str]()
    for n in graph.calls:
        if draws_of(n) or any(a.name in found and a.name not in given for a in n.all_input_nodes):
            found.add(n.name)
    return found


def number_draws(model: Graph, stages: Iterable[Graph]) -> list[Draws]:
    """Numbers of the draws of each stage, in the order in which the stage draws.

    Ops that a pass has added come behind those of the model.
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


@contextmanager
def drawing(seeds: Stream) -> Iterator[None]:
    """Seed the draws of graphs from `seed_module` that run inside; outside they draw on."""
    token = _seeds.set(seeds)
    try:
        yield
    finally:
        _seeds.reset(token)


def seed_graph(graph: Graph, numbers: Draws) -> Graph:
    """A forward graph whose draws `drawing` seeds, on the CPU."""
    if not numbers:
        return graph
    return graph.replace(module=seed_module(graph.module, numbers, torch.device("cpu")))


def _put_in_order(node: fx.Node) -> None:
    """Let a node draw for a contiguous tensor, if it draws a number per element of its own."""
    assert isinstance(node.target, OpOverload)
    like = node.args[0] if node.args else None
    first = next(iter(argument_names_and_defaults(node.target)), "")
    if isinstance(like, fx.Node) and first in ("self", "input") and "num_layers" not in bind(node):
        node.update_arg(0, node.graph.call_function(_CONTIGUOUS, (like,)))


def seed_module(module: fx.GraphModule, numbers: Draws, device: torch.device) -> fx.GraphModule:
    """A copy of a forward graph that seeds torch before each draw, in the order of dimensions."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    drawing = [n for n in graph.nodes for _ in range(draws_of(n))]
    for number, node in zip(numbers, drawing, strict=True):
        if number is not None:
            with graph.inserting_before(node):
                gpu = device.index if device.type == "cuda" else None
                graph.call_function(_seeding(), (number, gpu))
                _put_in_order(node)
    return fx.GraphModule(module, graph)


@cache
def _seeding() -> Callable[[int, int | None], None]:
    """`_seed`, not compiled; the compiler of torch takes a second to import, so not before."""
    return cast("Callable[[int, int | None], None]", torch.compiler.disable(_seed))


def _seed(draw: int, gpu: int | None) -> None:
    seeds = _seeds.get()
    if seeds is not None:
        seed = seeds(draw)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks every kind of device
        if gpu is not None:
            torch.cuda.default_generators[gpu].manual_seed(seed)
