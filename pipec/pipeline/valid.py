"""How much a microbatch counts: the targets that its mean loss is a mean over.

A mean over microbatches of means over valid tokens is not the mean over all valid tokens, where
their numbers differ. The graph shows the denominator: of torch's cross entropy the sum over
targets t that are not ``ignore_index`` of the class weight of t, or 1; of a quotient its divisor.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import fx

from pipec.autodiff.recompute import draws_of
from pipec.errors import PlanError
from pipec.graph.arguments import bind_if_op
from pipec.graph.ir import GROWTH, Graph, InputKind, OutputKind, op_name, origin, tensor
from pipec.graph.written import ancestors, extract

Count = Callable[[Mapping[str, torch.Tensor]], float]
_MEAN, _SUM = 1, 2  # torch's numbers of reduction="mean" and "sum"
_LOSSES = (
    "aten.cross_entropy_loss.default",
    "aten.nll_loss_nd.default",
    "aten.nll_loss.default",
    "aten.nll_loss2d.default",
    "aten.nll_loss_forward.default",
    "aten.nll_loss2d_forward.default",
)
"""Ops of scores, target, class weights, reduction and ignored index."""
_SUMS = (
    *("aten.sum.", "aten.nansum.", "aten.cumsum.", "aten.dot.", "aten.trace."),
    *("aten.prod.", "aten.norm.", "aten.linalg_vector_norm.", "aten.linalg_norm."),
    *("aten.linalg_matrix_norm.", "aten.dist.", "aten.vdot."),
)
_PRODUCTS = ("aten.einsum.", "aten.matmul.", "aten.inner.", "aten.tensordot.", "aten.bmm.")
_PASSED = ("aten._to_copy", "aten.alias", "aten.clone", "aten.detach", "getitem")
_SAME = (*_PASSED, "aten.neg.", "aten.select.")
_SHAPES = "stack cat select expand squeeze unsqueeze view reshape"
_FACTORS = "mul div add sub rsub neg lerp where mean pow square sqrt exp"
_LINEAR = (*(f"aten.{n}." for n in f"{_SHAPES} {_FACTORS}".split()), *_SUMS, *_PRODUCTS)
"""Ops on scalars through which a sum stays a sum."""
_ADDED = ("aten.add.", "aten.sub.", "aten.rsub.")
_SCALED = ("aten.mul.", "aten.div.", "aten.neg.", *_PASSED)
_BOUNDED = ("aten.clamp", "aten.maximum.")


def counts_of(graph: Graph, rows: Count) -> list[Count]:
    """What each mean that the loss is made of is a mean over.

    The loss is followed back through all that is computed of scalars. These begin at the valid
    targets of a cross entropy, at what a sum is divided by, such as the sum of a mask, or at
    another op on the rows, which then are what is counted.

    Raises:
        PlanError: The loss adds up, or a part of it does: the loss of a step is a mean; or no count
            can be known from the inputs alone.
    """
    if GROWTH in graph.source.options:
        values = graph.source.options[GROWTH]
        raise _no_mean("the loss function", f"of one, two and three equal rows: {values}")
    todo = [(graph.node(o.node), False) for o in graph.outputs_of(OutputKind.LOSS)[:1]]
    inputs = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
    compiled = int(rows(graph.tensors_of(InputKind.INPUT)))
    read, scalars = _find_read(graph, inputs)
    found: dict[str, Count] = {}
    while todo:
        node, free = todo.pop()
        name = op_name(node) if node.op == "call_function" else ""
        parts = [n for n in node.all_input_nodes if n.name in read]
        count = None
        if name in _LOSSES:
            count = _cross_entropy(graph, node, rows)
        elif name == "aten.div.Tensor" and node.args[1] in parts:
            count = _quotient(graph, node, compiled, rows)
        elif name.startswith("aten.nanmean."):
            raise _unknown(node)
        if count is not None:
            found[node.name] = count
        elif name and all(n.name in scalars for n in parts):
            free |= not _keeps_sums(node, compiled, read)
            values = [(n, n.meta["val"]) for n in parts]  # conditions and counts are no values
            todo += [
                (n, free)
                for n, v in values
                if not isinstance(v, torch.Tensor) or v.is_floating_point()
            ]
        elif name and parts:
            if _reduction(node, compiled) == _SUM and not free:
                raise _no_mean(origin(node), op_name(node))
            found["rows"] = rows
    return list(found.values()) or [rows]


def _find_read(graph: Graph, inputs: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """What depends on the inputs, and of that what is a scalar or computed of scalars alone."""
    read = set(inputs)
    scalars = {n for n in inputs if not tensor(graph.node(n)).dim()}
    for node in graph.calls:
        parts = [n.name for n in node.all_input_nodes if n.name in read]
        if parts:
            read.add(node.name)
            values = node.meta["val"]
            values = values if isinstance(values, tuple | list) else [values]
            if scalars.issuperset(parts) or all(v is None or not v.dim() for v in values):
                scalars.add(node.name)
    return read, scalars


def _keeps_sums(node: fx.Node, rows: int, read: set[str]) -> bool:
    """Whether a sum stays one: it is in no quotient of sums, and no constant counts its rows."""
    name = op_name(node)
    if name.startswith("aten.div.") and getattr(node.args[1], "name", None) in read:
        return _reduction(node.args[0], rows, _SAME) == _SUM  # it would be what counts
    passed = name.startswith(_LINEAR) or any(p in name for p in _PASSED)
    return passed and not _counts_rows(node, rows)


def _counts_rows(node: fx.Node, rows: int) -> bool:
    """Whether a constant divides by a multiple of the rows, or the root of one, as below a norm."""
    power = {"aten.div.": 1, "aten.mul.": -1}.get(op_name(node)[:9], 0)
    factors = [a**power for a in node.args if isinstance(a, int | float) and a and power]
    numbers = [f if abs(f - round(f)) < 1e-6 * abs(f) else f**2 for f in factors]
    return any(abs(n - round(n / rows) * rows) < 1e-6 * abs(n) for n in numbers)


def _unknown(node: fx.Node) -> PlanError:
    return PlanError(
        "how many targets the loss is a mean over cannot be known from the inputs alone",
        where=origin(node),
        got=op_name(node),
        want="targets, class weights and masks that are inputs, or are computed from inputs",
        hint="give weight=, such as weight=lambda batch: float((batch['target'] >= 0).sum())",
    )


def _no_mean(where: object, got: str) -> PlanError:
    return PlanError(
        "the loss adds up over the batch, and the loss of a step is a mean",
        where=where,
        got=got,
        want="a mean, or a sum that is divided by what it counts",
        hint="(loss.sum() / mask.sum()), or weight=lambda batch: 1.0 for the mean of microbatches",
    )


def weights_of(counts: Sequence[Sequence[float]]) -> list[float]:
    """How much each microbatch counts, from what was counted in it for every mean of the loss.

    A loss that is computed row by row has more means where there are more rows, all over as much.

    Raises:
        PlanError: The means do not share one weight.
    """
    if len({len(c) for c in counts}) > 1 and len({n for c in counts for n in c}) == 1:
        return [sum(c) for c in counts]
    columns = [list(column) for column in zip_longest(*counts, fillvalue=0.0)]
    for column in columns[1:]:
        first, other = sum(columns[0]), sum(column)
        pairs = zip(columns[0], column, strict=True)
        if any(abs(a * other - b * first) > 1e-6 * first * other for a, b in pairs):
            raise PlanError(
                "the loss adds up means over different targets, and no one weight fits them all",
                got="; ".join(f"{sum(c):g} targets: {', '.join(f'{n:g}' for n in c)}"
                              for c in columns),
                want="the same share of both in each microbatch",
                hint="give weight=, such as weight=lambda batch: len(batch['input'])",
            )  # fmt: skip
    return columns[0]


def _cross_entropy(graph: Graph, node: fx.Node, rows: Count) -> Count | None:
    target, weight = node.args[1], bind_if_op(node).get("weight")
    if bind_if_op(node).get("reduction") != _MEAN:
        return None
    if not isinstance(target, fx.Node) or target.meta["val"].is_floating_point():
        return None
    targets, index = _compile(graph, target), bind_if_op(node).get("ignore_index")
    scale = _compile(graph, weight) if isinstance(weight, fx.Node) else None
    if targets is None and scale is weight is None and not _may_be(graph, target, index):
        return rows  # the model's own labels, all of which count
    if targets is None or (scale is None and weight is not None):
        raise _unknown(node)

    def count(inputs: Mapping[str, torch.Tensor]) -> float:
        """Valid targets, or the sum of their class weights."""
        found = targets(inputs)
        valid = found[found != index]
        return float(len(valid) if scale is None else scale(inputs)[valid].sum())

    return count


def _may_be(graph: Graph, target: fx.Node, index: Any) -> bool:
    """Whether a number stands somewhere in what computes a target."""
    seen = ancestors([target])
    written = [a for n in seen for a in (*n.args, *n.kwargs.values())]
    if index in [a for a in written if isinstance(a, int | float)]:
        return True
    names = {n.name for n in seen}
    held = [graph.weights[i.name] for i in graph.inputs if i.node in names and i.kind.is_weight]
    return any(bool((w == index).any()) for w in held if not w.is_floating_point())


def _reduction(node: object, rows: int, through: tuple[str, ...] = ("",)) -> int | None:
    """Whether a scalar is a sum or a mean over the rows: the innermost reduction of them says so.

    It is looked for through ops of one value; None of a mean over the valid targets, or of none.
    """
    found = None
    while isinstance(node, fx.Node) and node.op == "call_function":
        name, read = op_name(node), node.all_input_nodes
        if (reduction := bind_if_op(node).get("reduction")) in {_MEAN, _SUM}:
            return None if reduction == _MEAN and name in _LOSSES else reduction
        if name.startswith(_PRODUCTS) and not tensor(node).dim():
            return _SUM
        if name.startswith((*_SUMS, "aten.mean.")):
            dims, shape = bind_if_op(node).get("dim"), tensor(read[0]).shape
            dims = [dims] if isinstance(dims, int) else dims
            if not dims or len(dims) == len(shape) or (
                any(d % len(shape) == 0 for d in dims) and shape[0] % rows == 0
            ):  # fmt: skip
                found = _SUM if name.startswith(_SUMS) else _MEAN
        elif len(read) != 1 or not any(p in name for p in through) or _counts_rows(node, rows):
            break
        node = read[0]
    return found


def _quotient(graph: Graph, node: fx.Node, compiled: int, rows: Count) -> Count | None:
    """What sums are divided by, or means, which are sums over the number of rows, by another.

    What divides says which: a loss that is a mean has the same kind above, up to a constant.
    """
    above, below = _reductions(node.args[0], compiled), _reduction(node.args[1], compiled)
    count = _divisor(graph, node.args[1])
    if count is None or above - {_SUM, _MEAN} or (below is None and _MEAN in above):
        return None
    return (lambda inputs: count(inputs) * rows(inputs)) if below == _MEAN else count


def _reductions(node: object, rows: int) -> set[int | None]:
    """Sums or means that a value is added up from, whatever constants they are times."""
    if isinstance(node, fx.Node) and node.op == "call_function":
        name, read = op_name(node), node.all_input_nodes
        if name.startswith(_ADDED) or (len(read) == 1 and name.startswith(_SCALED)):
            return set[int | None]().union(*(_reductions(n, rows) for n in read))
    return {_reduction(node, rows)}


def _divisor(graph: Graph, node: object) -> Count | None:
    """What a sum is divided by, without the bound that keeps it from zero."""
    while isinstance(node, fx.Node) and node.op == "call_function":
        if not any(p in op_name(node) for p in (*_BOUNDED, *_PASSED)):
            break
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.op == "placeholder" or node.meta["val"].dim():
        return None
    value = _compile(graph, node)
    return None if value is None else lambda inputs: float(value(inputs))


def _compile(
    graph: Graph, target: fx.Node
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
    """A function from inputs to a value that depends on them and on what never changes alone."""
    changed = {o.name for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)}
    fixed = {
        i.node: i.name
        for i in graph.inputs_of(InputKind.CONSTANT, InputKind.BUFFER)
        if i.name not in changed
    }
    inputs = {i.node: i.name for i in graph.inputs_of(InputKind.INPUT)}
    read = ancestors([target])
    calls = {n.name for n in read if n.op != "placeholder"}
    if not calls.union(inputs, fixed).issuperset(n.name for n in read) or any(map(draws_of, read)):
        return None
    if target.name in inputs:
        return lambda values: values[inputs[target.name]]
    if target.name in fixed:
        return lambda _: graph.weights[fixed[target.name]]
    part = extract(graph, calls, "Targets")
    place = next(k for k, o in enumerate(part.outputs) if o.node == target.name)

    def run(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            held = {**graph.weights, **values}
            results = part.module(*(held[i.name] for i in part.inputs))
        found: torch.Tensor = results[place]
        return found

    return run
