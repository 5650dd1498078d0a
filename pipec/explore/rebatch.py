"""A model traced at other batch sizes than the one that its author or file gave."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pipec.compiler.loaded import Resize
from pipec.errors import FrontendError, PipecError
from pipec.graph.ir import Graph, InputKind

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
        resized: Traces it at other shapes; None for a model in memory, which has one size.
    """

    graph: Graph
    resized: Resize | None = None
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
        if self.resized is None:
            raise FrontendError(
                "a model in memory has one batch size", got=samples, want=f"{batch} samples"
            )
        shapes = {n: t.shape for n, t in self.graph.tensors_of(InputKind.INPUT).items()}
        batched = {n: (samples, *s[1:]) for n, s in shapes.items() if s[:1] == (batch,)}
        return self.resized(batched)
