"""Composite ops that functional graphs may not hold, and what each becomes.

`ExportedProgram.run_decompositions({})` runs the whole graph twice more to find this out. A graph
that is functional but for the few composites below (nearly every transformer) skips it.

| op | becomes |
|---|---|
| ``reshape``, ``flatten``, ``view``, ``view_as``, ``unflatten`` | ``reshape`` to the known shape |
| ``to``, ``type_as``, ``contiguous`` that change nothing | nothing |
| ``to`` another dtype or device | ``_to_copy`` |
| ``contiguous`` of another layout | ``clone`` |
| ``dropout`` in training | ``native_dropout`` and its first item |
| ``dropout`` otherwise | nothing |
| ``chunk`` | ``split`` |
| ``copy``, what is left of ``x.copy_(y)`` | ``y`` in the shape and dtype of ``x`` |
| ``batch_norm`` with fixed statistics | ``_native_batch_norm_legit_no_training``, its first item |
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from pipec.graph.torch_private import OpOverload, is_mutable, must_decompose

_aten = torch.ops.aten
Args = tuple[Any, ...]
Emit = Callable[[OpOverload | Callable[..., Any], Args, Mapping[str, Any], object], fx.Node]
"""Adds a call (target, arguments, keyword arguments, value) to the new graph."""
Rule = Callable[[fx.Node, Args, Emit], fx.Node]
"""Emits what a node becomes, given its arguments in the new graph; gives the node that stands
for it (an argument, where it becomes nothing)."""


def _reshape(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    shape = list(n.meta["val"].shape)
    return emit(_aten.reshape.default, (args[0], shape), {}, n.meta["val"])


def _to(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    old, new = n.args[0].meta["val"], n.meta["val"]  # type: ignore[union-attr]
    changed = {
        k: getattr(new, k) for k in ("dtype", "device") if getattr(new, k) != getattr(old, k)
    }
    if changed:
        return emit(_aten._to_copy.default, (args[0],), changed, new)
    if old.stride() != new.stride():
        layout = {"memory_format": torch.contiguous_format}
        return emit(_aten.clone.default, (args[0],), layout, new)
    node: fx.Node = args[0]
    return node


def _dropout(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    x, probability, training = args
    if not training or probability == 0:
        return x  # type: ignore[no-any-return]
    value = n.meta["val"]
    mask = torch.empty_like(value, dtype=torch.bool)
    both = emit(_aten.native_dropout.default, (x, probability, True), {}, (value, mask))
    return emit(operator.getitem, (both, 0), {}, value)


def _chunk(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    x, chunks, *rest = args
    dim = rest[0] if rest else 0
    size = -(-n.args[0].meta["val"].shape[dim] // chunks)  # type: ignore[union-attr]
    return emit(_aten.split.Tensor, (x, size, dim), {}, n.meta["val"])


def _batch_norm(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    x, weight, bias, mean, variance, _training, momentum, eps, *_ = args
    value = n.meta["val"]
    empty = value.new_empty(0)
    inputs = (x, weight, bias, mean, variance, momentum, eps)
    op = _aten._native_batch_norm_legit_no_training.default
    return emit(operator.getitem, (emit(op, inputs, {}, (value, empty, empty)), 0), {}, value)


def _copy(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    new, old = n.meta["val"], n.args[1].meta["val"]  # type: ignore[union-attr]
    source: fx.Node = args[1]
    if old.shape != new.shape:
        shape = list(new.shape)
        source = emit(_aten.expand.default, (source, shape), {}, old.expand(shape))
    dense = new.new_empty(new.shape)
    layout = {"dtype": new.dtype, "memory_format": torch.contiguous_format}
    return emit(_aten._to_copy.default, (source,), layout, dense)


def _unsafe_view(n: fx.Node, args: Args, emit: Emit) -> fx.Node:
    """A reshape that had to copy was taken apart into ``clone`` and this: put it together."""
    clone: fx.Node = args[0]
    alone = len(n.all_input_nodes[0].users) == 1
    if not (alone and clone.target is _aten.clone.default):
        return _reshape(n, args, emit)
    whole = _reshape(n, (clone.args[0],), emit)
    clone.graph.erase_node(clone)
    return whole


COMPOSITES: Mapping[object, Rule] = {
    _aten.view.default: _reshape,
    _aten._unsafe_view.default: _unsafe_view,
    _aten.reshape.default: _reshape,
    _aten.flatten.using_ints: _reshape,
    _aten.unflatten.int: _reshape,
    _aten.view_as.default: _reshape,
    _aten.reshape_as.default: _reshape,
    _aten.to.dtype: _to,
    _aten.to.device: _to,
    _aten.to.dtype_layout: _to,
    _aten.to.other: _to,
    _aten.type_as.default: _to,
    _aten.contiguous.default: _to,
    _aten.dropout.default: _dropout,
    _aten.chunk.default: _chunk,
    _aten.batch_norm.default: _batch_norm,
    _aten.copy.default: _copy,
}

_LAYOUTS = ((None, torch.preserve_format), (None, torch.contiguous_format))


def is_functional(program: ExportedProgram) -> bool:
    """Whether a program, as exported, has nothing to decompose but what `COMPOSITES` covers."""
    return all(n.op in ("placeholder", "output") or _plain(n) for n in program.graph.nodes)


def _plain(n: fx.Node) -> bool:
    if n.target is operator.getitem:
        return True
    if not isinstance(n.target, OpOverload) or is_mutable(n.target):
        return False
    if n.target is _aten.batch_norm.default:
        return not n.args[5] and not n.kwargs  # in training it changes its buffers
    if n.target in (_aten.dropout.default, _aten.chunk.default) and n.kwargs:
        return False
    if n.target in COMPOSITES:
        return n.kwargs.get("memory_format") in _LAYOUTS[n.target is _aten.contiguous.default]
    return not must_decompose(n.target)
