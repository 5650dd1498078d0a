"""A model traced at other batch sizes than the one that its author or file gave."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pipec.errors import FrontendError, PipecError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.graph.ir import Graph, InputKind, tensors

_T = TypeVar("_T")


def make_once(known: dict[int, _T | PipecError], samples: int, make: Callable[[int], _T]) -> _T:
    """What is made of a microbatch of ``samples``, once; what cannot be made is refused again.

    Raises:
        PipecError: What `make` raised the first time.
    """
    if samples not in known:
        try:
            known[samples] = make(samples)
        except PipecError as error:
            known[samples] = error
    found = known[samples]
    if isinstance(found, PipecError):
        raise found
    return found


@dataclass
class Rebatched:
    """Traces a model at the microbatch of a candidate; each size once.

    Attributes:
        graph: The model as it was read first; its rows are those of the batch.
        spec: Where it can be read again; empty for a model in memory, which has one size.
        options: Options with which it was read.
    """

    graph: Graph
    spec: str = ""
    options: LoadOptions = field(default_factory=LoadOptions)
    _known: dict[int, Graph | PipecError] = field(default_factory=dict)

    def trace_at(self, samples: int) -> Graph:
        """The graph of a microbatch of ``samples``.

        Raises:
            PipecError: It cannot be traced with that many.
        """
        return make_once(self._known, samples, self._trace)

    def _trace(self, samples: int) -> Graph:
        batch = self.graph.rows
        if samples == batch:
            return self.graph
        if not self.spec:
            raise FrontendError(
                "a model in memory has one batch size", got=samples, want=f"{batch} samples"
            )
        nodes = self.graph.nodes
        inputs = {
            i.name: tuple(tensors(nodes[i.node])[0].shape)
            for i in self.graph.inputs_of(InputKind.INPUT)
        }
        shapes = {n: (samples, *s[1:]) for n, s in inputs.items() if s[:1] == (batch,)}
        options = replace(self.options, shapes={**self.options.shapes, **shapes})
        return load(self.spec, options).graph
