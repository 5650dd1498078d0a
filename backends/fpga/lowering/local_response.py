"""Local response normalisation: torch writes it as ten nodes, the board has one engine for it.

```text
div(x, pow(add(mul(avg_pool(pad(mul(x, x))), alpha), k), beta))     reshapes in between
```
"""

from collections.abc import Iterator
from typing import TypeGuard, cast

from torch import fx

from pipec.backends.fpga.lowering.network import Builder, Composite, Value, integers
from pipec.backends.fpga.lowering.norms import rows_through
from pipec.graph.ir import Graph, op_name

_SHAPE_ONLY = ("aten.reshape.default", "aten.squeeze.dim", "aten.unsqueeze.default")
_POOLS = ("aten.avg_pool2d.default", "aten.avg_pool3d.default")


def find(graph: Graph) -> dict[fx.Node, Composite]:
    """The last node of every local response normalisation in a graph, as a NORM over channels."""
    found = {node: _match(node) for node in graph.calls if op_name(node) == "aten.div.Tensor"}
    return {node: one for node, one in found.items() if one is not None}


def _match(node: fx.Node) -> Composite | None:
    """Follows the chain of nodes upwards from a division; None where it is something else."""
    x, power = node.args[:2]
    pool, numbers, inner = power, list[float](), list[fx.Node]()
    for op in ("aten.pow.Tensor_Scalar", "aten.add.Tensor", "aten.mul.Tensor"):
        if not _is(pool, op) or not isinstance(pool.args[1], int | float):
            return None
        numbers.append(float(pool.args[1]))
        inner.append(pool)
        pool = pool.args[0]
    inner += (above := list(_through_shapes(pool)))
    pool = above[-1].args[0] if above else pool
    if not _is(pool, *_POOLS):
        return None
    pad = pool.args[0]
    if not _is(pad, "aten.pad.default", "aten.constant_pad_nd.default"):
        return None
    inner += [pool, pad, *(above := list(_through_shapes(pad.args[0])))]
    square = above[-1].args[0] if above else pad.args[0]
    if not _is(square, "aten.mul.Tensor") or square.args[:2] != (x, x):
        return None
    inner.append(square)
    size = integers(pool.args[1], 1)[0]
    if not _is_window(pool, pad, size) or not _alone(inner, node):
        return None
    beta, k, alpha = numbers

    def lower(b: Builder) -> Value:
        """A NORM layer over the channels of every pixel."""
        rows = b.innermost(node, b.value(x), (1,))
        return rows_through(b, node, rows, (1,), op="lrn", size=size, alpha=alpha, beta=beta, k=k)

    return Composite(frozenset(inner), lower)


def _is(node: object, *ops: str) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and op_name(node) in ops


def _through_shapes(node: object) -> Iterator[fx.Node]:
    while _is(node, *_SHAPE_ONLY):
        yield node
        node = node.args[0]


def _is_window(pool: fx.Node, pad: fx.Node, size: int) -> bool:
    """Whether the pooling runs over channels alone, with zeros that keep their number."""
    kernel, pads = list(integers(pool.args[1], 1)), list(cast("list[int]", pad.args[1]))
    stride = integers(pool.args[2], 1) if len(pool.args) > 2 else kernel
    before, after = (size - 1) // 2, size // 2
    others = pads[:-2]
    value = pad.args[3] if len(pad.args) > 3 else pad.kwargs.get("value")
    return (
        set(kernel[1:]) == {1}
        and set(stride) == {1}
        and pads[-2:] == [before, after]
        and not any(others)
        and not value
        and len(pool.args) <= 3
    )


def _alone(inner: list[fx.Node], last: fx.Node) -> bool:
    """Whether nobody else reads what the chain computes."""
    chain = {*inner, last}
    return all(user in chain for node in inner for user in node.users)
