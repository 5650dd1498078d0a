"""How a logical tensor lies in a stream: views make reshape, permute and flatten free.

A stream carries the elements of a tensor in some order. A `View` says which: its *atoms* are the
axes of the stream, outermost first, each with its size and its stride in the row-major logical
tensor. A convolution's output ``[1, 64, 56, 56]`` in NHWC order is

```text
atoms (56, 56) (56, 1) (64, 3136)        = rows, columns, channels;   size-1 axes have no atom
```

Reshape changes the logical shape only; permute renumbers the strides. An engine that needs
another order than the stream has asks for a reorder (`permutation`), which costs a PERM engine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Atom = tuple[int, int]
"""Size, and stride in the row-major logical tensor."""


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


@dataclass(frozen=True)
class View:
    """A logical shape over the elements of a stream.

    Attributes:
        shape: Logical shape.
        atoms: Axes of the stream, outermost first, neighbours that are one axis merged.
    """

    shape: tuple[int, ...]
    atoms: tuple[Atom, ...]

    @staticmethod
    def of(shape: Sequence[int], order: Sequence[int]) -> "View":
        """The tensor of that shape, streamed row-major in the given axis order."""
        strides = strides_of(shape)
        return View(tuple(shape), merge([(shape[d], strides[d]) for d in order]))

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def reshape(self, shape: Sequence[int]) -> "View":
        """The same elements under another logical shape; always free."""
        return View(tuple(shape), self.atoms)

    def by_axis(self) -> list[tuple[int, int, int]] | None:
        """Atoms split so that each lies in one logical axis: (axis, size, stride in that axis).

        None where an atom straddles two axes in a way that no split resolves.
        """
        found = []
        for size, stride in self.atoms:
            pieces = self._pieces(size, stride)
            if pieces is None:
                return None
            found.extend(pieces)
        return found

    def _pieces(self, size: int, stride: int) -> list[tuple[int, int, int]] | None:
        pieces: list[tuple[int, int, int]] = []
        strides = strides_of(self.shape)
        for axis in reversed(range(len(self.shape))):
            end = strides[axis] * self.shape[axis]
            if size == 1 or stride >= end:
                continue
            if stride % strides[axis] or (stride * size > end and end % stride):
                return None
            take = min(size, end // stride)
            if size % take:
                return None
            pieces.append((axis, take, stride // strides[axis]))
            size, stride = size // take, end
        return pieces[::-1]

    def permute(self, order: Sequence[int]) -> "View | None":
        """The view after ``tensor.permute(order)``; None where an atom cannot be split."""
        pieces = self.by_axis()
        if pieces is None:
            return None
        shape = tuple(self.shape[d] for d in order)
        strides = strides_of(shape)
        place = {d: k for k, d in enumerate(order)}
        atoms = [(size, step * strides[place[axis]]) for axis, size, step in pieces]
        return View(shape, merge(atoms))

    def split(self, axes: Sequence[int]) -> tuple[list[Atom], list[Atom]] | None:
        """Atoms outside ``axes``, then those of ``axes``, if the latter are the innermost ones.

        Strides are those of the whole logical tensor. None if the stream has another order.
        """
        pieces = self.by_axis()
        if pieces is None:
            return None
        strides = strides_of(self.shape)
        inside = [axis in axes for axis, _, _ in pieces]
        if inside != sorted(inside):
            return None
        atoms = [(size, step * strides[axis]) for axis, size, step in pieces]
        count = inside.count(False)
        return atoms[:count], atoms[count:]

    def axis_order(self) -> tuple[int, ...] | None:
        """The axis order of the stream if each axis is one atom, size-1 axes in their place."""
        pieces = self.by_axis()
        if pieces is None:
            return None
        order = [axis for axis, _, _ in pieces]
        merged_axes = [axis for k, axis in enumerate(order) if k == 0 or order[k - 1] != axis]
        if View.of(self.shape, _complete(merged_axes, len(self.shape))).atoms != self.atoms:
            return None
        return _complete(merged_axes, len(self.shape))


def _complete(order: Sequence[int], rank: int) -> tuple[int, ...]:
    """``order`` with missing (size-1) axes put in front."""
    return (*[d for d in range(rank) if d not in order], *dict.fromkeys(order))


def merge(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Neighbouring atoms that are one axis become one; size-1 atoms vanish."""
    out: list[Atom] = []
    for size, stride in atoms:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def standard_order(shape: Sequence[int]) -> tuple[int, ...]:
    """The axis order at a cut: channels last for maps (``[N, C, H, W]``), else as it is."""
    return (0, 2, 3, 1) if len(shape) == 4 else tuple(range(len(shape)))


def permutation(have: View, want: View) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Sizes in stream order and the axis order that turns ``have`` into ``want``.

    Both view the same logical tensor. None where the two have no common refinement.
    """
    cuts = {s for view in (have, want) for size, s in view.atoms} | {
        s * size for view in (have, want) for size, s in view.atoms
    }
    a, b = _refine(have.atoms, cuts), _refine(want.atoms, cuts)
    if a is None or b is None or sorted(a) != sorted(b):
        return None
    return tuple(size for size, _ in a), tuple(a.index(atom) for atom in b)


def _refine(atoms: Sequence[Atom], cuts: set[int]) -> list[Atom] | None:
    out: list[Atom] = []
    for size, stride in atoms:
        inner = sorted(c for c in cuts if stride < c < stride * size)
        edges = [stride, *inner, stride * size]
        if any(high % low for low, high in pairwise(edges)):
            return None
        out.extend((high // low, low) for low, high in list(pairwise(edges))[::-1])
    return out


def indices(atoms: Sequence[Atom], unit: int = 1) -> NDArray[np.int64]:
    """Logical index (in units of ``unit`` elements) of every position of the atoms, in order."""
    found = np.zeros(1, dtype=np.int64)
    for size, stride in atoms:
        found = (found[:, None] + np.arange(size) * (stride // unit)).reshape(-1)
    return found
