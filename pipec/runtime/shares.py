"""What the microbatches of one round are: how much each counts, and which compiled shape it has.

With w_m the valid tokens (or samples) of microbatch m, whose loss L_m is a mean over them, an
update over the microbatches M makes a step with

```text
grad = sum over m in M of w_m grad L_m / sum over m in M of w_m
```

which is the gradient of the mean over all valid tokens. A microbatch without any has weight 0:
of it outputs alone are kept, for its mean is NaN. One that is not there (the data ended) has, too,
and runs on a copy of another one's inputs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shares:
    """The microbatches of a round.

    Attributes:
        weights: How much each counts, on any scale; empty if all count the same.
        shapes: The compiled shape of each, an index; empty if all have the first.
    """

    weights: Sequence[float] = ()
    shapes: Sequence[int] = ()

    def weight(self, microbatch: int) -> float:
        """How much a microbatch counts, the heaviest one being 1: equal ones keep their bits."""
        return self.weights[microbatch] / max(self.weights) if self.weights else 1.0

    def total(self, microbatches: Iterable[int]) -> float:
        """The weight of several together."""
        return float(sum(map(self.weight, microbatches)))

    def shape(self, microbatch: int | None) -> int:
        """Which compiled shape a microbatch has."""
        return self.shapes[microbatch] if self.shapes and microbatch is not None else 0
