"""A model traced at other batch sizes than the one that its author or file gave."""

from dataclasses import dataclass

from pipec.compiler.loaded import Resize
from pipec.errors import FrontendError
from pipec.graph.ir import Graph, InputKind


@dataclass(frozen=True)
class Rebatched:
    """Traces a model at the microbatch of a candidate.

    Attributes:
        graph: The model as it was read first; its rows are those of the batch.
        resized: Traces it at other shapes; None for a model in memory, which has one size.
    """

    graph: Graph
    resized: Resize | None = None

    def trace_at(self, samples: int) -> Graph:
        """The graph of a microbatch of ``samples``.

        Raises:
            PipecError: It cannot be traced with that many.
        """
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
