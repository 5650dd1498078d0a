"""``torch.no_grad`` regions made explicit, before anything forgets them.

`ExportedProgram.run_decompositions` inlines no-grad regions without a trace, and
``torch.export.export`` itself drops those inside autocast; what is then differentiated is another
function, and nothing says so. So regions are inlined here, and every float value that leaves one
goes through ``aten.detach``, which survives decomposition and which autograd honours:

```text
 y ──► [no_grad: exp] ──► mul          y ──► exp ──► detach ──► mul
```
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from pipec.errors import FrontendError
from pipec.frontends.origins import module_origin
from pipec.frontends.regions import inline_body
from pipec.graph.torch_private import (
    HigherOrderOperator,
    OpOverload,
    grad_mode_region,
    is_mutable,
    is_view,
    set_grad_enabled,
)

_MARK = "pipec_no_grad"


class MarkNoGrad(TorchFunctionMode):
    """Annotates every node that is traced while gradients are off; entered around the model."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Note changes of the grad mode in what tracing copies to each new node."""
        if func is set_grad_enabled:
            notes = fx.traceback.current_meta
            notes["custom"] = {**notes.get("custom", {}), _MARK: not args[0]}
        return func(*args, **(kwargs or {}))


def explicit_no_grad(module: fx.GraphModule, trained: Sequence[str]) -> None:
    """Inline no-grad regions of an exported graph and detach what leaves them, in place.

    Args:
        module: The graph module of an exported program, not yet decomposed.
        trained: Names of the placeholders that gradients are asked for.

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
            if isinstance(n.target, OpOverload) and is_mutable(n.target):
                _refuse_hidden_update(n, carries)
        elif n.op == "call_function" and any(r in carries for r in n.all_input_nodes):
            carries.add(n)
    return carries


def _refuse_hidden_update(node: fx.Node, carries: set[fx.Node]) -> None:
    for changed in _bases(node):
        if changed in carries and _is_float(changed):
            raise FrontendError(
                "a value that carries gradients is changed in place under torch.no_grad()",
                where=f"{node.name}: {module_origin(node)}",
                got=f"{node.target} on {changed.name}",
                hint="write the change out of place",
            )


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    """What ``node`` writes to, through the views taken of it inside the region."""
    target = node.args[0] if node.args else None
    while isinstance(target, fx.Node):
        yield target
        shown = isinstance(target.target, OpOverload) and is_view(target.target)
        target = target.args[0] if shown else None
