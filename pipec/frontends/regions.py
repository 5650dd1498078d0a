"""Regions of an exported graph, no-grad and autocast, made explicit before anything forgets them.

`ExportedProgram.run_decompositions` inlines no-grad regions without a trace, and
``torch.export.export`` itself drops those inside autocast; what is then differentiated is another
function, and nothing says so. So regions are inlined here, and every float value that leaves one
goes through ``aten.detach``, which survives decomposition and which autograd honours. Autocast acts
on the ops that a composite without a rule of its own is made of; decomposition keeps such a
composite whole, below autocast, and it would compute in float32 for good:

```text
 y ──► [no_grad: exp] ──► mul          y ──► exp ──► detach ──► mul
 einsum(x, w), under autocast          bmm(_to_copy(x, bfloat16), _to_copy(w, bfloat16))
```
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from pipec.errors import FrontendError
from pipec.frontends.origins import module_origin
from pipec.graph.torch_private import (
    HigherOrderOperator,
    OpOverload,
    autocast_region,
    grad_mode_region,
    has_rule_of_autocast,
    is_composite,
    is_mutable,
    is_view,
    must_decompose,
    set_grad_enabled,
)

Meta = dict[str, Any]


def inline_body(
    module: fx.GraphModule,
    node: fx.Node,
    body: fx.GraphModule,
    operands: Sequence[object],
    meta: Callable[[fx.Node], Meta],
) -> None:
    """Replace a node by copies of what the body that it runs does, in place.

    Operands are in the order of the placeholders of ``body``; users of the node take all results by
    number, or the only one.
    """
    holes = [n for n in body.graph.nodes if n.op == "placeholder"]
    env: dict[fx.Node, Any] = dict(zip(holes, operands, strict=True))
    results: object = ()
    with module.graph.inserting_before(node):
        for n in body.graph.nodes:
            if n.op == "output":
                results = fx.node.map_arg(n.args[0], env.__getitem__)
            elif n.op == "get_attr":
                env[n] = _adopt(module, body, n)
            elif n.op != "placeholder":
                env[n] = module.graph.node_copy(n, env.__getitem__)
                env[n].meta = meta(n)
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    else:
        for item in list(node.users):
            item.replace_all_uses_with(results[item.args[1]])  # type: ignore[index]
            module.graph.erase_node(item)
    module.graph.erase_node(node)


def _adopt(module: fx.GraphModule, body: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A reference, in ``module``, to what ``node`` refers to in ``body``."""
    stem = f"{node.target}_of_region"
    name = next(c for k in range(10**6) if not hasattr(module, c := f"{stem}_{k}"))
    setattr(module, name, getattr(body, str(node.target)))
    return module.graph.get_attr(name)


def explicit_casts(module: fx.GraphModule) -> None:
    """Take composites apart, in place, that are cast inside of autocast regions of a graph."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)  # the dtype is one that torch expected without casts
        if node.target is not autocast_region:
            continue
        device, dtype, enabled, _cache, reference, *_operands = node.args
        body: fx.GraphModule = getattr(module, str(reference.target))
        for n in list(body.graph.nodes) if enabled else ():
            op = n.target
            if not isinstance(op, OpOverload) or has_rule_of_autocast(op, device):
                continue
            if is_composite(op) and not must_decompose(op):
                _take_apart(body, n, torch.autocast(device, dtype, cache_enabled=False))
        explicit_casts(body)
        setattr(module, str(reference.target), _Noted(body))


class _Noted(nn.Module):
    """The body of a region, run node by node, so that what is noted on its nodes is passed on."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, *operands: torch.Tensor) -> Any:
        return fx.Interpreter(self.body).run(*operands)


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


_MARK = "pipec_no_grad"


class MarkNoGrad(TorchFunctionMode):
    """Annotates every node that is traced while gradients are off; entered by the model's call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note changes of the grad mode in what tracing copies to each new node."""
        result = func(*args, **(kwargs or {}))
        if func is set_grad_enabled:  # a node of its own belongs to what was before
            notes = fx.traceback.current_meta
            notes["custom"] = {**notes.get("custom", {}), _MARK: not args[0]}
        return result


def explicit_no_grad(module: fx.GraphModule, trained: Sequence[str]) -> None:
    """Inline no-grad regions of an exported graph and detach what leaves them, in place.

    Raises:
        FrontendError: A value that carries gradients is changed in place inside a region: autograd
            would not see the change, and a functional graph cannot say so.
    """
    while regions := [n for n in module.graph.nodes if n.target is grad_mode_region]:
        for node in regions:
            _inline(module, node)
    carries = _refuse_hidden_updates(module.graph, trained)
    for node in module.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            _enter(module, node, carries)
    for node in [n for n in module.graph.nodes if _is_marked(n) and _is_float(n)]:
        _detach(module.graph, node)
    module.recompile()


def _enter(module: fx.GraphModule, node: fx.Node, carries: set[fx.Node]) -> None:
    """Do the same in the body of an operator that runs one, such as an autocast region."""
    references = [a for a in node.all_input_nodes if a.op == "get_attr"]
    if len(references) != 1:
        return
    body = getattr(module, str(references[0].target))
    operands = node.args[node.args.index(references[0]) + 1 :]
    holes = [n for n in body.graph.nodes if n.op == "placeholder"]
    explicit_no_grad(body, [h.name for h, o in zip(holes, operands, strict=False) if o in carries])


def _is_marked(node: fx.Node) -> bool:
    return bool((node.meta.get("custom") or {}).get(_MARK)) and node.op == "call_function"


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _inline(module: fx.GraphModule, node: fx.Node) -> None:
    """Replace one ``wrap_with_set_grad_enabled(enabled, body, *operands)`` by its body."""
    enabled, reference, *operands = node.args
    assert isinstance(reference, fx.Node)

    def mark(n: fx.Node) -> dict[str, Any]:
        return {**n.meta, "custom": {**(n.meta.get("custom") or {}), _MARK: not enabled}}

    inline_body(module, node, getattr(module, str(reference.target)), operands, mark)
    if not reference.users:
        module.graph.erase_node(reference)


def _detach(graph: fx.Graph, node: fx.Node) -> None:
    """Let the users of ``node`` that are outside its region read a detached value."""
    outside = [u for u in node.users if not _is_marked(u)]
    if not outside:
        return
    with graph.inserting_after(node):
        cut = graph.call_function(torch.ops.aten.detach.default, (node,))
    cut.meta = {**node.meta}
    for user in outside:
        user.replace_input_with(node, cut)


def _refuse_hidden_updates(graph: fx.Graph, trained: Sequence[str]) -> set[fx.Node]:
    """The nodes that carry gradients, after checking that none is changed behind autograd."""
    carries = {n for n in graph.nodes if n.op == "placeholder" and n.name in set(trained)}
    for n in graph.nodes:
        if _is_marked(n):
            writes = isinstance(n.target, OpOverload) and is_mutable(n.target)
            for changed in _bases(n) if writes else ():
                if changed in carries and _is_float(changed):
                    raise FrontendError(
                        "a value that carries gradients is changed in place under torch.no_grad()",
                        where=f"{n.name}: {module_origin(n)}",
                        got=f"{n.target} on {changed.name}",
                        hint="write the change out of place",
                    )
        elif n.op == "call_function" and any(r in carries for r in n.all_input_nodes):
            carries.add(n)
    return carries


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    """What ``node`` writes to, through the views taken of it inside the region."""
    target = node.args[0] if node.args else None
    while isinstance(target, fx.Node):
        yield target
        shown = isinstance(target.target, OpOverload) and is_view(target.target)
        target = target.args[0] if shown else None
