"""Inputs that stages are verified on: integers over their legal range, floats of three kinds."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from pipec.errors import FrontendError
from pipec.graph.ir import Graph, InputKind, op_name, tensors

Tensors = Mapping[str, Tensor]
Model = Callable[[Tensors], dict[str, Tensor]]


class Floats(StrEnum):
    """How floats are drawn.

    ``EXAMPLE``: uniform between the example's smallest and largest number.
    """

    NORMAL = "normal"
    UNIT = "uniform in [0, 1]"
    LARGE = "normal, 32 times as large"
    EXAMPLE = "as the example"


KINDS = (Floats.NORMAL, Floats.UNIT, Floats.LARGE)
"""What seeds take in turn."""

_LARGE = 32.0

_SAME_NUMBERS = frozenset(
    f"aten.{op}"
    for op in (
        "reshape.default", "view.default", "unsqueeze.default", "squeeze.dim", "squeeze.default",
        "squeeze.dims", "expand.default", "clone.default", "_to_copy.default", "slice.Tensor",
        "select.int", "permute.default", "transpose.int", "t.default", "cat.default",
        "stack.default", "flatten.using_ints", "where.self", "contiguous.default",
        "constant_pad_nd.default", "pad.default",
    )
)  # fmt: skip
"""Ops that pass on numbers as they are (``where``: those that it chooses from)."""

_TABLES: Mapping[str, tuple[int, int | None]] = {
    "aten.embedding.default": (1, 0),
    "aten.index_select.default": (2, None),
    "aten.gather.default": (2, None),
    "aten.scatter.src": (2, None),
    "aten.scatter.value": (2, None),
    "aten.scatter_add.default": (2, None),
    "aten.nll_loss_forward.default": (1, 1),
    "aten.nll_loss.default": (1, 1),
    "aten.nll_loss_nd.default": (1, 1),
    "aten.cross_entropy_loss.default": (1, 1),
}
"""Op to the argument that counts rows of argument 0, and along which axis; None: as argument 1."""


def choose_inputs(
    graph: Graph, examples: Tensors, original: Model, seed: int, tolerance: float, trials: int = 1
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs that the model as written takes and for which it yields finite, settled numbers.

    Seeds take the `KINDS` of floats in turn. A kind is passed over where the model as written
    refuses it, yields infinities that the example does not yield, or is so steep that as many
    roundings of its inputs as there are trials move an output by more than the tolerance.

    Args:
        graph: The traced model.
        examples: One tensor per input.
        original: The model as written.
        seed: Seed of the inputs, and of the kind to begin with.
        tolerance: Largest relative error of what is compared.
        trials: How often it is seen how steep the model is.

    Returns:
        The inputs by name and the outputs of the model as written.

    Raises:
        FrontendError: The model as written refuses even what is like its example.
    """
    floating = any(x.is_floating_point() for x in examples.values())
    turn = seed % len(KINDS)
    for kind in (*KINDS[turn:], *KINDS[:turn]) if floating else (Floats.EXAMPLE,):
        inputs = draw(graph, examples, seed, kind)
        try:
            found = _run(original, inputs, seed)
        except FrontendError:
            continue
        steady = partial(_is_steady, original, inputs, found, tolerance=tolerance / trials)
        real = [t for t in found.values() if t.is_floating_point()]
        finite = all(bool(t.isfinite().all()) for t in real)
        if not floating or (finite and all(steady(seed + k) for k in range(trials))):
            return inputs, found
    inputs = draw(graph, examples, seed)
    try:
        return inputs, _run(original, inputs, seed)
    except FrontendError:  # it takes no other integers, say
        return dict(examples), _run(original, examples, seed)


def _run(original: Model, inputs: Tensors, seed: int) -> dict[str, Tensor]:
    torch.default_generator.manual_seed(seed)
    return original(inputs)


def _is_steady(
    original: Model, inputs: Tensors, found: Tensors, seed: int, *, tolerance: float
) -> bool:
    """Whether inputs that are rounded once more give the same, within the tolerance."""
    generator = torch.Generator().manual_seed(seed)
    again = _run(original, {n: round_off(x, generator) for n, x in inputs.items()}, seed)
    return all(
        float((again[n].double() - t.double()).detach().abs().max())
        <= tolerance * float(t.detach().double().abs().max())
        for n, t in found.items()
        if t.is_floating_point() and t.numel()
    )


def round_off(t: Tensor, generator: torch.Generator, step: float = 0.0) -> Tensor:
    """Floats, each off by up to one rounding of its own, or a relative ``step`` if that is more."""
    if not t.is_floating_point():
        return t
    off = torch.rand(t.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return t.detach() * (1 + max(step, torch.finfo(t.dtype).eps) * off).to(t.dtype)


def draw(
    graph: Graph, examples: Tensors, seed: int, kind: Floats = Floats.EXAMPLE
) -> dict[str, Tensor]:
    """Random inputs of the examples' shapes and dtypes.

    Integers that pick rows are below the size of their table, but for those of the example that are
    not (targets that a loss ignores). Others are in the range of the example, from zero to it where
    that is constant (any number, of 8 bits); booleans are fair coins where the example is constant.
    An example that is not finite everywhere is taken as it is.
    """
    below = table_sizes(graph)
    generator = torch.Generator().manual_seed(seed)
    return {n: _draw(x, kind, below.get(n), generator) for n, x in examples.items()}


def _draw(example: Tensor, kind: Floats, below: int | None, generator: torch.Generator) -> Tensor:
    shape, dtype = example.shape, example.dtype
    if example.numel() == 0 or dtype.is_complex:
        return example.clone()
    if not dtype.is_floating_point:
        first, last = (0, below - 1) if below else _range(example)
        numbers = torch.randint(first, last + 1, shape, generator=generator).to(dtype)
        return torch.where((example < first) | (example > last), example, numbers)
    wide = example.detach().double()
    if not bool(wide.isfinite().all()):
        return example.clone()
    low, span = float(wide.min()), float(wide.max() - wide.min())
    if kind is Floats.EXAMPLE and span:
        drawn = low + span * torch.rand(shape, generator=generator, dtype=torch.float64)
    elif kind is Floats.UNIT:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    else:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        drawn *= _LARGE if kind is Floats.LARGE else 1.0
    return drawn.to(dtype)


def _range(example: Tensor) -> tuple[int, int]:
    """Smallest and largest number of an integer or boolean input that picks no rows."""
    low, high = int(example.min()), int(example.max())
    if low < high or example.dtype == torch.bool:
        return (low, high) if low < high else (0, 1)
    if example.element_size() == 1:
        return int(torch.iinfo(example.dtype).min), int(torch.iinfo(example.dtype).max)
    return min(0, low), max(1, high)


def table_sizes(graph: Graph) -> dict[str, int]:
    """Input to the rows of the smallest table that its numbers pick from, where they do."""
    nodes = graph.nodes
    found = {
        i.name: min(_tables(nodes[i.node]), default=0) for i in graph.inputs_of(InputKind.INPUT)
    }
    return {name: size for name, size in found.items() if size > 0}


def _tables(start: fx.Node) -> Iterator[int]:
    """Sizes of the tables that the numbers of a node pick rows of, the node's shifts taken off."""
    todo, seen = [(start, 0)], set[tuple[fx.Node, int]]()
    while todo:
        node, shift = todo.pop()
        if (node, shift) in seen:
            continue
        seen.add((node, shift))
        for user in node.users:
            op = op_name(user)
            size = _rows(user, op, node)
            if size is not None and size > shift:
                yield size - shift
            if op in _SAME_NUMBERS and (op != "aten.where.self" or node is not user.args[0]):
                todo.append((user, shift))
            elif op == "aten.add.Tensor" and isinstance(user.args[1], int):
                todo.append((user, shift + user.args[1]))


def _rows(user: fx.Node, op: str, index: fx.Node) -> int | None:
    """Rows of the table that ``user`` picks from by ``index``, if it does."""
    args: Any = user.args
    if op == "aten.index.Tensor" and index in args[1]:
        return int(tensors(args[0])[0].shape[list(args[1]).index(index)])
    if op not in _TABLES or len(args) <= _TABLES[op][0] or args[_TABLES[op][0]] is not index:
        return None
    fixed = _TABLES[op][1]
    axis = int(args[1]) if fixed is None else fixed
    shape = tensors(args[0])[0].shape
    return int(shape[min(axis, len(shape) - 1)]) if shape else None
