"""In-place ops on fresh values, which have a plain functional form.

``y = a @ b; y += c`` writes to a value that nothing else shows, so it is ``y = a @ b + c``. What is
subtler (writes to buffers, inputs, through views) is left to functionalization:

```text
 matmul ──► add_ ──► softmax          matmul ──► add ──► softmax
    └──────────────► mul                          └────► mul        readers after it see the sum
```
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from pipec.graph.torch_private import OpOverload, is_mutable, is_view, must_decompose

_aten = torch.ops.aten
FUNCTIONAL: Mapping[object, OpOverload] = {
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.sub_.Tensor: _aten.sub.Tensor,
    _aten.mul_.Tensor: _aten.mul.Tensor,
    _aten.div_.Tensor: _aten.div.Tensor,
    _aten.relu_.default: _aten.relu.default,
    _aten.silu_.default: _aten.silu.default,
    _aten.hardtanh_.default: _aten.hardtanh.default,
    _aten.hardswish_.default: _aten.hardswish.default,
    _aten.leaky_relu_.default: _aten.leaky_relu.default,
    _aten.masked_fill_.Scalar: _aten.masked_fill.Scalar,
    _aten.index_put_.default: _aten.index_put.default,
}
"""In-place op to its functional form, for those that keep dtype and shape."""


def find_written(nodes: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Every in-place node that may be made functional, with the node whose value it changes.

    The value must be fresh (not an input, not a view), no view of it may have been taken before,
    and the functional op must give the same dtype.
    """
    rank = {n: k for k, n in enumerate(nodes)}
    found: dict[fx.Node, fx.Node] = {}
    shown: dict[fx.Node, list[fx.Node]] = {}
    for n in nodes:
        if n.target not in FUNCTIONAL or not isinstance(n.args[0], fx.Node):
            continue
        base = found.get(n.args[0], n.args[0])
        same = shown.setdefault(base, [base])
        readers = {u for s in same for u in s.users if rank[u] < rank[n] and u not in found}
        if _is_fresh(base) and not any(map(_may_alias, readers)) and _keeps_dtype(n):
            found[n] = base
            same.append(n)
    return found


def _is_fresh(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload):  # an item of several results
        return isinstance(node.args[0], fx.Node) and _is_fresh(node.args[0])
    return not _may_alias(node) or node.target is _aten.batch_norm.default


def _may_alias(node: fx.Node) -> bool:
    """Whether a result may share memory with an argument."""
    target = node.target
    if node.op == "output":
        return False
    if not isinstance(target, OpOverload):
        return True
    return is_view(target) or is_mutable(target) or must_decompose(target)


def _keeps_dtype(node: fx.Node) -> bool:
    value = node.meta["val"]
    for other in node.args[1:]:
        if isinstance(other, fx.Node):
            t = other.meta["val"]
            if not isinstance(t, Tensor) or t.dtype not in (value.dtype, torch.bool):
                return False
        elif isinstance(other, float) and not value.is_floating_point():
            return False
    return True
