"""Values that depend on the model's weights alone: computed when the design is written out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from pipec.autodiff.recompute import is_random
from pipec.backends.fpga.engines.parts import Array, Table
from pipec.errors import BackendError
from pipec.graph.ir import Graph, tensors
from pipec.graph.torch_private import FakeTensor


class Constants:
    """Which nodes of a stage's compute graph are constant, and what they are."""

    def __init__(self, graph: Graph) -> None:
        self._weights = graph.weights
        self._names = {i.node: i.name for i in graph.inputs if i.kind.is_weight}
        self._sources: dict[fx.Node, tuple[str, ...]] = {}
        self._cache: dict[fx.Node, Any] = {}
        for node in graph.module.graph.nodes:
            if node.op == "placeholder" and node.name in self._names:
                self._sources[node] = (self._names[node.name],)
            elif (
                node.op == "call_function"
                and not is_random(node)
                and all(n in self._sources for n in node.all_input_nodes)
            ):
                names = [s for n in node.all_input_nodes for s in self._sources[n]]
                self._sources[node] = tuple(dict.fromkeys(names))

    def __contains__(self, node: object) -> bool:
        return node in self._sources

    def sources(self, node: fx.Node) -> tuple[str, ...]:
        """Names of the weights that a constant node is computed from."""
        return self._sources[node]

    def value(self, node: fx.Node) -> Array:
        """The constant as an array (floating point as float64).

        Raises:
            BackendError: The model was built without data.
        """
        found = self._tensor(node)
        return np.asarray((found.double() if found.is_floating_point() else found).numpy())

    def plain(self, node: fx.Node) -> Array:
        """The constant in its own precision (half types as float32), for moving it about.

        Raises:
            BackendError: The model was built without data.
        """
        found = self._tensor(node)
        half = found.dtype in (torch.bfloat16, torch.float16)
        return np.asarray((found.float() if half else found).numpy())

    def _tensor(self, node: fx.Node) -> torch.Tensor:
        found = self._evaluate(node)
        assert isinstance(found, torch.Tensor)
        return found.detach()

    def _evaluate(self, node: fx.Node) -> Any:
        if node not in self._cache:
            if node.op == "placeholder":
                self._cache[node] = self._weight(node)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._evaluate)
                assert callable(node.target)
                with torch.no_grad():
                    self._cache[node] = node.target(*args, **kwargs)
        return self._cache[node]

    def _weight(self, node: fx.Node) -> torch.Tensor:
        name = self._names[node.name]
        found = self._weights[name]
        if isinstance(found, FakeTensor) or found.is_meta:
            raise BackendError(
                "the weights have no data, so they can't be written",
                where=name,
                got=f"{type(found).__name__} of shape {tuple(found.shape)}",
                hint="build the model with its weights, not on the meta device",
            )
        return found

    def table(self, node: fx.Node, shape: Sequence[int], order: Sequence[int]) -> Table:
        """The constant reshaped, then its axes permuted."""

        def values() -> Array:
            return self.plain(node).reshape(tuple(shape)).transpose(tuple(order))

        return Table(values, self.sources(node))


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of a node's (first) tensor as integers."""
    return tuple(int(d) for d in tensors(node)[0].shape)
