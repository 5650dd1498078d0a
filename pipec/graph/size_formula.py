"""A size from other sizes: what fits at several sizes of the open axes of a model.

```text
given   x[batch, seq, 8]   at   (2, 5, 8)  (3, 9, 8)  (6, 7, 8)  (4, 12, 8)
wanted  20, 54, 84, 96     is   2 * x.0 * x.1
```
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise

Sizes = tuple[int, ...]
"""What one dimension is at the planned sizes of the open axes and at others."""

Place = tuple[str, int]
"""A tensor and one of its dimensions."""


@dataclass(frozen=True)
class Formula:
    """``times`` the product of some dimensions, ``plus`` a number.

    Attributes:
        factors: The dimensions; none in a number.
        times: A factor.
        plus: What is added.
    """

    factors: tuple[Place, ...]
    times: int
    plus: int

    def __call__(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """The size, from the shapes of what is given."""
        size = 1
        for name, k in self.factors:
            size = size * shapes[name][k]
        return self.times * size + self.plus


@dataclass(frozen=True)
class SizedArgument:
    """A whole number among the arguments of a node, as a formula.

    Attributes:
        node: The node.
        path: Where it stands: a position or a keyword, then positions in lists.
        formula: The size as a formula of the shapes of the stage's inputs.
    """

    node: str
    path: tuple[int | str, ...]
    formula: Formula


class Fit:
    """Finds formulas, given shapes by tensor, each dimension at all sizes.

    A size is looked for among ``a * d + b`` of a dimension ``d`` of what is given, and among
    ``a * d * e + b`` of two. What agrees at all sizes is taken.
    """

    def __init__(self, given: Mapping[str, tuple[Sizes, ...]]) -> None:
        self._given: dict[Sizes, Place] = {}
        for name, dims in given.items():
            for k, sizes in enumerate(dims):
                if len(set(sizes)) > 1:
                    self._given.setdefault(sizes, (name, k))

    def __call__(self, sizes: Sizes) -> Formula | None:
        """The formula of a size; None if it follows from nothing that is given."""
        for factors, have in self._products():
            slope = _slope(have, sizes)
            if slope is not None:
                return Formula(factors, slope, sizes[0] - slope * have[0])
        return None

    def _products(self) -> Iterator[tuple[tuple[Place, ...], Sizes]]:
        for have, place in self._given.items():
            yield (place,), have
        for (one, first), (two, second) in combinations_with_replacement(self._given.items(), 2):
            yield (first, second), tuple(a * b for a, b in zip(one, two, strict=True))


def _slope(have: Sizes, want: Sizes) -> int | None:
    """The integer ``a`` of ``want = a * have + b``, if there is one.

    Example:
        >>> _slope((2, 3, 6), (5, 7, 13))
        2
    """
    steps = [
        (h1 - h0, w1 - w0)
        for (h0, h1), (w0, w1) in zip(pairwise(have), pairwise(want), strict=True)
    ]
    found = {w // h if h and w % h == 0 else None for h, w in steps if h or w}
    return found.pop() if len(found) == 1 else None
