"""A region of an exported graph, a node that runs a body, written out where the node stands."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

Meta = dict[str, Any]


def inline_body(
    module: fx.GraphModule,
    node: fx.Node,
    body: fx.GraphModule,
    operands: Sequence[object],
    meta: Callable[[fx.Node], Meta],
) -> None:
    """Replace a node by copies of what the body that it runs does, in place.

    Args:
        module: The module whose graph has the node.
        node: Its users take the results: all of them by number, or the only one.
        body: Takes the operands.
        operands: In the order of the body's placeholders.
        meta: The metadata of a copy of a node of the body.
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
