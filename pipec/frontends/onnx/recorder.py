"""Every op that runs on a model's fake tensors, as a node of a graph.

The model is run once: what its evaluation decides is what the graph holds. Ops arrive above the
level at which composite ones (``linear``, ``matmul``) are taken apart; those that a graph may not
hold are taken apart here (`pipec.frontends.composites`).
"""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, fx

from pipec.errors import FrontendError
from pipec.frontends.composites import COMPOSITES
from pipec.graph.torch_private import (
    OpOverload,
    TorchDispatchMode,
    is_mutable,
    must_decompose,
    namespace_of,
    tree_map,
)

ANNOTATION = "onnx"
"""Key of the ONNX node's index in ``node.meta["custom"]``."""


class Recorder(TorchDispatchMode):
    """Writes ops down while it is entered, inside `below_autograd`.

    Those of a way to run a node that was given up stay there; nothing reads them.

    Attributes:
        graph: What was written down: placeholders and calls in their order.
        index: Index of the ONNX node that is run.
        names: Placeholder to the name of the weight or input that it stands for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.index: int | None = None
        self.names: dict[fx.Node, str] = {}
        # Tensors stay alive here, so that an id names one tensor.
        self._made: dict[int, tuple[fx.Node, Tensor]] = {}

    def add_input(self, name: str, value: Tensor) -> Tensor:
        """Let a tensor be one that the graph is given."""
        node = self.graph.placeholder(f"given_{len(self.names)}")
        self.names[node] = name
        node.meta["val"] = value
        self._made[id(value)] = node, value
        return value

    def node_of(self, value: Tensor) -> fx.Node:
        """The node that yields a tensor.

        Raises:
            FrontendError: No op that was written down does.
        """
        found = self._made.get(id(value))
        if found is None:
            raise FrontendError("a tensor comes from nowhere", got=f"{value.dtype}{value.shape}")
        return found[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op and write it down."""
        del types
        given = dict(kwargs or {})
        if namespace_of(func) == "prim":
            return func(*args, **given)
        if _is_decomposed(func):
            with self:
                found: object = func.decompose(*args, **given)
            if found is not NotImplemented:
                return found
        if is_mutable(func):
            raise FrontendError("an ONNX node would change a tensor in place", got=func)
        value = func(*args, **given)
        node = self._call(func, args, given, value)
        for k, item in enumerate(value) if isinstance(value, list | tuple) else ():
            if isinstance(item, Tensor):
                self._call(operator.getitem, (node, k), {}, item)
        return value

    def _call(
        self, target: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], value: object
    ) -> fx.Node:
        node_of = lambda v: self.node_of(v) if isinstance(v, Tensor) else v  # noqa: E731
        taken, named = tree_map(node_of, (args, kwargs))
        name = getattr(target, "overloadpacket", target).__name__
        node = self.graph.create_node("call_function", target, taken, named, name=name)
        node.meta = {"val": value, "custom": {ANNOTATION: self.index}}
        if isinstance(value, Tensor):
            self._made[id(value)] = node, value
        return node


@cache
def _is_decomposed(op: OpOverload) -> bool:
    return op not in COMPOSITES and must_decompose(op)
