"""Axes of a model's inputs that stay open: planned for one size, emitted for any.

```text
out/axes.json   {"open":    [{"name": "batch", "size": 8, "places": [["ids", 0], ["mask", 0]]}],
                 "fixed":   [{"name": "seq", "size": 16, "places": [["ids", 1]], "why": "..."}],
                 "checked": [{"batch": 9}, {"batch": 12}, {"batch": 1}],
                 "stages":  [[{"node": "view", "path": [1, 0],
                               "formula": {"factors": [["ids", 0]], "times": 1, "plus": 0}}]]}
```
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

import msgspec
import torch
from torch import Tensor

from pipec.errors import PipecError, PlanError
from pipec.files import read_data
from pipec.graph.ir import Graph, InputKind
from pipec.graph.size_formula import SizedArgument

FILE = "axes.json"
"""Where a backend writes the axes of what it emitted."""

Sizes = Mapping[str, int]
"""Size of every open axis, by its name."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_TERMS = re.compile(r"(?:\b[^\W\d]\w*\b|\b\d{1,9}\b|[\s+*/()-]){1,200}")

_STEPS = (1, 4, 2, 7, 3, 5)
_COUNT = 3
_WAYS: tuple[Callable[[int, int], int], ...] = (
    lambda size, step: size + step,
    lambda size, step: size * (step + 1),
    lambda size, step: size - step,
)


@dataclass(frozen=True)
class Axis:
    """Dimensions of inputs that have one size, whatever it is.

    Attributes:
        name: What the file calls it.
        size: For which the plan was made.
        places: Inputs and the positions of their dimension, one or more.
        why: Nothing while it is open; else the reason for which it was fixed to ``size``.
    """

    name: str
    size: int
    places: tuple[tuple[str, int], ...]
    why: str = ""

    def __str__(self) -> str:
        where = ", ".join(dict.fromkeys(name for name, _ in self.places))
        if self.why:
            return f"axis {self.name!r} of {where} is fixed to {self.size}: {self.why}"
        return f"axis {self.name!r} of {where} is open, planned for {self.size}"


class _Record(TypedDict):
    open: tuple[Axis, ...]
    fixed: tuple[Axis, ...]
    checked: tuple[dict[str, int], ...]
    stages: tuple[tuple[SizedArgument, ...], ...]


@dataclass(frozen=True)
class Axes:
    """The axes of what was emitted that its source leaves open.

    Attributes:
        open: Those that may have any size.
        fixed: Those that may not, with the reason.
        checked: Sizes other than the planned ones at which the emitted stages gave what the model
            as written does.
        stages: By stage the arguments of nodes that follow sizes, where its target has any.
    """

    open: tuple[Axis, ...] = ()
    fixed: tuple[Axis, ...] = ()
    checked: tuple[Sizes, ...] = ()
    stages: tuple[tuple[SizedArgument, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.open or self.fixed)

    def all_fixed(self, why: str) -> "Axes":
        """The same with every open axis fixed for one reason."""
        fixed = (a if a.why else replace(a, why=why) for a in (*self.fixed, *self.open))
        return Axes((), tuple(fixed))

    def lines(self) -> list[str]:
        """What a user should know, an axis a line, and the sizes that were checked."""
        points = [", ".join(f"{n}={s}" for n, s in sizes.items()) for sizes in self.checked]
        checked = [f"checked against the model at {'; '.join(points)}"] if points else []
        return [str(a) for a in (*self.open, *self.fixed)] + checked

    def shapes(self, shapes: Mapping[str, Sequence[int]], sizes: Sizes) -> dict[str, list[int]]:
        """Shapes of inputs with other sizes of open axes.

        Args:
            shapes: Shape by input, as planned.
            sizes: Sizes of some or all axes; others are as planned, or follow from these.
        """
        found = {name: list(shape) for name, shape in shapes.items()}
        now = {a.name: sizes.get(a.name, a.size) for a in self.open}
        for axis in self.open:
            size = _follow(axis, self.open, now)
            for name, k in axis.places:
                found[name][k] = now[axis.name] if size is None else size
        return found

    def resize(self, examples: Mapping[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
        """Examples at other sizes: what each has, repeated along an axis or cut off."""
        found = dict(examples)
        shapes = self.shapes({n: t.shape for n, t in examples.items()}, sizes)
        for name, shape in shapes.items():
            for k, size in enumerate(shape):
                old = found[name].shape[k]
                if size != old:
                    picked = torch.arange(size) % max(old, 1)
                    found[name] = found[name].index_select(k, picked)
        return found

    def sizes_of(self, inputs: Mapping[str, Tensor]) -> Sizes:
        """The sizes that inputs have; an axis of two sizes takes that of its first place."""
        found = dict[str, int]()
        for axis in self.open:
            for name, k in axis.places:
                given = inputs.get(name)
                if isinstance(given, Tensor) and given.dim() > k:
                    found.setdefault(axis.name, given.shape[k])
        return found

    def write(self, directory: Path) -> None:
        """Write them beside the stages, if there are any."""
        if self:
            text = json.dumps(asdict(self), indent=1, sort_keys=True)
            (directory / FILE).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(directory: Path, graph: Graph) -> "Axes":
        """What `write` wrote; none where it wrote nothing.

        Raises:
            PlanError: The file is damaged, or names what is no axis of the graph's inputs.
        """
        path = directory / FILE
        if not path.is_file():
            return Axes()
        shapes = {n: t.shape for n, t in graph.tensors_of(InputKind.INPUT).items()}
        try:
            found = Axes(**msgspec.json.decode(read_data(path), type=_Record))
            wrong = [a for a in found.open if any(shapes[n][k] != a.size for n, k in a.places)]
            wrong += [a for a in found.open if not a.places]
        except (OSError, LookupError, ValueError, RecursionError) as error:
            raise PlanError("the record of open axes is damaged", where=path, got=error) from error
        if wrong:
            raise PlanError("an open axis is not of the plan's size", where=path, got=wrong[0])
        return found


def size_of(expression: str, sizes: Sizes) -> int | None:
    """The size that an arithmetic expression of axes has; None if it has none, or one is unknown.

    Example:
        >>> size_of("past + 2*seq", {"past": 6, "seq": 1}), size_of("past + seq", {"seq": 1})
        (8, None)
        >>> size_of("7", {}), size_of("axis?", {}), size_of("seq - 8", {"seq": 1})
        (None, None, None)
    """
    try:
        tree = ast.parse(expression.strip() if _TERMS.fullmatch(expression) else "", mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        return None
    if not any(isinstance(n, ast.Name) for n in ast.walk(tree)):
        return None
    found = _evaluate(tree.body, sizes)
    return None if found is None or found < 0 else found


def with_sizes(expression: str, sizes: Sizes) -> str:
    """An arithmetic expression with numbers for the axes that have a size; other names as is.

    Example:
        >>> with_sizes("past + seq", {"past": 6}), with_sizes("past.seq", {"past": 6})
        ('6 + seq', 'past.seq')
    """
    if not _TERMS.fullmatch(expression):
        return expression
    return re.sub(r"\w+", lambda term: str(sizes.get(term[0], term[0])), expression)


def _evaluate(node: ast.expr, sizes: Sizes) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return sizes.get(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _evaluate(node.left, sizes), _evaluate(node.right, sizes)
        if left is not None and right is not None and (right or type(node.op) is not ast.FloorDiv):
            return _ARITHMETIC[type(node.op)](left, right)
    return None


def _follow(axis: Axis, axes: Sequence[Axis], sizes: Sizes) -> int | None:
    """The size that an axis has by those of the others, if its name says how it follows them."""
    others = [a for a in axes if a.name != axis.name]
    if size_of(axis.name, {a.name: a.size for a in others}) != axis.size:
        return None
    return size_of(axis.name, {a.name: sizes[a.name] for a in others})


def free(axes: Sequence[Axis]) -> list[Axis]:
    """Those axes whose size does not follow from others by their name."""
    planned = {a.name: a.size for a in axes}
    return [a for a in axes if _follow(a, axes, planned) is None]


def most_open(axes: Sequence[Axis], attempt: Callable[[Sequence[Axis]], object]) -> Axes:
    """As many axes as an attempt succeeds with, and the others with its reason.

    ``attempt`` raises a `PipecError` where axes cannot stay open together.

    Where all of them together fail, those of one position and planned size are taken for one: some
    exporters give the batch of every input a name of its own.
    """
    if not _explain(attempt, axes):
        return Axes(tuple(axes))
    joined = _join(axes)
    found = Axes()
    for axis in joined if len(joined) < len(axes) else axes:
        why = _explain(attempt, (*found.open, axis))
        fixed = (*found.fixed, replace(axis, why=why)) if why else found.fixed
        found = Axes(found.open if why else (*found.open, axis), fixed)
    return found


def _explain(attempt: Callable[[Sequence[Axis]], object], axes: Sequence[Axis]) -> str:
    try:
        attempt(axes)
    except PipecError as error:
        return reason(error)
    return ""


def reason(error: PipecError) -> str:
    """An error on one line."""
    facts = (error.what, error.where, error.got)
    return ": ".join(" ".join(str(f).split())[:200] for f in facts if f is not None)


def _join(axes: Sequence[Axis]) -> list[Axis]:
    """Axes with those of one position and size as one, of all their names.

    Example:
        >>> _join([Axis("n", 2, (("x", 0),)), Axis("m", 2, (("y", 0),))])
        [Axis(name='n=m', size=2, places=(('x', 0), ('y', 0)), why='')]
    """
    alike: dict[tuple[int, int], list[Axis]] = {}
    for axis in axes:
        alike.setdefault((axis.places[0][1], axis.size), []).append(axis)
    return [
        Axis("=".join(a.name for a in same), size, tuple(p for a in same for p in a.places))
        for (_, size), same in alike.items()
    ]


def other_sizes(axes: Sequence[Axis]) -> list[list[Sizes]]:
    """Sizes to look at a model at besides the planned ones, in groups to be tried in turn.

    A model may want multiples of the planned size, or take nothing larger; each group respects one
    such wish. No two of the first axes grow alike, so that a size shows which it follows; one
    whose name says so (``past + seq``) grows as these do.

    Example:
        >>> other_sizes([Axis("n", 4, (("x", 0),))])
        [[{'n': 5}, {'n': 8}, {'n': 6}], [{'n': 8}, {'n': 20}, {'n': 12}]]
    """
    axes = free(axes)
    return [
        [
            {a.name: grown(a.size, _STEPS[(i + j) % len(_STEPS)]) for i, a in enumerate(axes)}
            for j in range(_COUNT)
        ]
        for grown in _WAYS
        if all(grown(a.size, max(_STEPS)) > 0 for a in axes)
    ]
