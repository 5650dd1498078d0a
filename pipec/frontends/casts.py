"""Composite ops under autocast are taken apart where autocast casts what they are made of.

Autocast acts on the ops that a composite without a rule of its own is made of: on the ``bmm`` of
an ``einsum``, the ``linear`` of a ``gru_cell``. `ExportedProgram.run_decompositions` keeps such a
composite whole, below autocast, and it would compute in float32 for good:

```text
einsum(x, w)      ──►      bmm(_to_copy(x, bfloat16), _to_copy(w, bfloat16))
```
"""

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pipec.frontends.regions import inline_body
from pipec.graph.torch_private import (
    OpOverload,
    autocast_region,
    has_rule_of_autocast,
    is_composite,
    must_decompose,
)


def explicit_casts(module: fx.GraphModule) -> None:
    """Take composites in the autocast regions of an exported graph apart that are cast inside.

    Args:
        module: The graph module of an exported program, not yet decomposed; changed in place.
    """
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)  # the dtype is one that torch expected without casts
        if node.target is not autocast_region:
            continue
        device, dtype, enabled, _cache, reference, *_operands = node.args
        body: fx.GraphModule = getattr(module, str(reference.target))
        for n in list(body.graph.nodes) if enabled else ():
            if _may_be_cast_inside(n.target, device):
                _take_apart(body, n, torch.autocast(device, dtype, cache_enabled=False))
        body.recompile()
        explicit_casts(body)


def _may_be_cast_inside(op: object, device: str) -> bool:
    if not isinstance(op, OpOverload) or has_rule_of_autocast(op, device):
        return False
    return is_composite(op) and not must_decompose(op)


def _take_apart(body: fx.GraphModule, node: fx.Node, casts: torch.autocast) -> None:
    operands = node.all_input_nodes

    def run(*given: torch.Tensor) -> object:
        values = dict(zip(operands, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        with casts, torch.backends.mkldnn.flags(enabled=False):  # its LSTM is one opaque op
            return node.target(*args, **kwargs)  # type: ignore[operator]

    parts = make_fx(run)(*(n.meta["val"] for n in operands))
    if any(n.target is torch.ops.aten._to_copy.default for n in parts.graph.nodes):
        inline_body(body, node, parts, operands, lambda n: {**node.meta, "val": n.meta["val"]})
