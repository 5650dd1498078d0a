"""A batch of the user's becomes microbatches: rows in order, the last one as short as it is."""

from collections.abc import Mapping, Sequence

import torch

from pipec.errors import PlanError
from pipec.graph.ir import Graph, InputKind

Inputs = Mapping[str, torch.Tensor]
Batch = Inputs | Sequence[torch.Tensor] | Sequence[Inputs] | torch.Tensor
"""Tensors by input name; or in the order of the model's inputs; or a list of microbatches, each by
name, whose shapes may differ."""
Shape = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes of a microbatch's inputs, by name, in the order of the model."""


class Splitter:
    """Cuts batches for one plan.

    Attributes:
        compiled: The shapes of a microbatch that it was compiled for.
    """

    def __init__(self, graph: Graph, microbatches: int) -> None:
        inputs = graph.tensors_of(InputKind.INPUT)
        self._dtypes = {n: t.dtype for n, t in inputs.items()}
        self.compiled = shape_of(inputs)
        self._rows = graph.rows or 1
        self._split = [n for n, s in self.compiled if s[:1] == (self._rows,)]
        self._most = microbatches

    def rows_of(self, inputs: Inputs) -> int:
        """The rows of one microbatch."""
        return len(inputs[self._split[0]]) if self._split else 1

    def draw(self, shape: Shape) -> dict[str, torch.Tensor]:
        """A microbatch of a shape, of the dtypes that the model reads; the same on every rank.

        Integers are zeros, which index all tables; others are normal, for eager parts run on them.
        """
        made = {n: torch.zeros(s, dtype=self._dtypes[n]) for n, s in shape}
        generator = torch.Generator().manual_seed(0)
        for t in made.values():
            if t.is_floating_point():
                t.normal_(generator=generator)
        return made

    def split(self, batch: Batch) -> list[dict[str, torch.Tensor]]:
        """The microbatches of a batch; fewer than the schedule has if the batch is small.

        Raises:
            PlanError: An input is missing, unknown, no tensor, or has too many rows.
        """
        if isinstance(batch, Sequence) and batch and isinstance(batch[0], Mapping):
            if len(batch) > self._most:
                raise PlanError("too many microbatches", got=len(batch), want=self._most)
            return [self._name(part) for part in batch]
        named = self._name(batch)
        counts = {n: len(named[n]) for n in self._split}
        count = max(counts.values(), default=1)
        if len(set(counts.values())) > 1:
            got = ", ".join(f"{n}: {c}" for n, c in counts.items())
            raise PlanError("the inputs of a batch differ in their rows", got=got)
        if not 0 < count <= self._rows * self._most:
            raise PlanError(
                "the batch has a number of rows that the schedule cannot take",
                got=count,
                want=f"1 to {self._rows * self._most}: {self._most} microbatches of {self._rows}",
                hint="compile for more microbatches, or split the batch",
            )
        begins = range(0, count, self._rows)
        return [
            {n: t[b : b + self._rows] if n in counts else t for n, t in named.items()}
            for b in begins
        ]

    def _name(self, batch: object) -> dict[str, torch.Tensor]:
        if isinstance(batch, Mapping):
            given = dict(batch)
        else:
            parts = [batch] if isinstance(batch, torch.Tensor) else batch
            if not isinstance(parts, Sequence) or len(parts) != len(self._dtypes):
                raise PlanError(
                    "a batch has another number of tensors than the model has inputs",
                    got=len(parts) if isinstance(parts, Sequence) else type(batch).__name__,
                    want=", ".join(self._dtypes),
                )
            given = dict(zip(self._dtypes, parts, strict=True))
        for name, value in given.items():
            if name not in self._dtypes:
                raise PlanError(
                    "the model has no such input",
                    got=name,
                    want=", ".join(self._dtypes),
                    hint="leave it out of the batch",
                )
            if not isinstance(value, torch.Tensor):
                raise PlanError(
                    "an input is no tensor",
                    where=name,
                    got=type(value).__name__,
                    want="a torch.Tensor",
                )
            if (value.dtype, value.layout) != (self._dtypes[name], torch.strided):
                got, want = f"{value.dtype}, {value.layout}", f"{self._dtypes[name]}, dense"
                raise PlanError("an input has another type", where=name, got=got, want=want)
            if name in self._split and not value.dim():
                raise PlanError("an input has no rows", where=name, got=value)
        missing = [n for n in self._dtypes if n not in given]
        if missing:
            got = ", ".join(given) or "nothing"
            raise PlanError("a batch lacks an input", got=got, want=", ".join(missing))
        return {n: given[n] for n in self._dtypes}


def shape_of(inputs: Inputs) -> Shape:
    """The shapes of a microbatch."""
    return tuple((n, tuple(map(int, t.shape))) for n, t in inputs.items())
