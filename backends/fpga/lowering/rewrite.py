"""Ops as simpler ops that engines compute: a rule replaces one node by what it computes in torch.

A rule is run on fake tensors, and every ATen op that it calls becomes a node. Everything else is
copied. Rules of training are in `backward`, others in `written`.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx

from pipec.autodiff.fakes import fake_like, tracing
from pipec.backends.fpga.engines.constants import Constants
from pipec.errors import BackendError
from pipec.graph.ir import Graph, GraphOutput, op_name
from pipec.graph.torch_private import FakeTensorMode, TorchDispatchMode, graph_module

Rule = Callable[..., Any]
"""``rule(emit, *arguments)`` computes what a node yields: a tensor or one per item of a tuple, None
where nobody reads it. NotImplemented leaves the node as it is."""


class Emit(TorchDispatchMode):
    """Appends the ops that run to a graph, on behalf of a node of another one.

    Attributes:
        graph: The graph that grows; no new node has a name that is taken.
        old: The node that is replaced; its origin is passed on.
        mode: Mode of the fake tensors.
        constants: What depends on weights alone in the old graph.
        env: Old nodes to new ones, or to one per item.
    """

    old: fx.Node

    def __init__(
        self, graph: fx.Graph, mode: FakeTensorMode, constants: Constants, taken: frozenset[str]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.mode, self.constants, self._recording = graph, mode, constants, True
        self.env, self._taken = dict[fx.Node, Any](), taken
        self._nodes = dict[int, tuple[fx.Node, Tensor]]()  # by the tensor that stands for a node
        self._tensors = dict[fx.Node, Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op on fake tensors; it is a node from now on."""
        kwargs = kwargs or {}
        recorded = self._recording and func.namespace != "prim"  # that asks for a tensor's device
        return self._append(func, args, kwargs) if recorded else func(*args, **kwargs)

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an op that torch would take apart as one node."""
        self._recording = False
        found = self._append(op, args, kwargs)
        self._recording = True
        return found

    def _append(self, op: Any, args: Any, kwargs: Any) -> Any:
        given, named = self.nodes((args, kwargs))
        found = op(*args, **kwargs)
        node = self._call(_pure(op), given, named, found)
        for k, item in enumerate(found if isinstance(found, tuple | list) else ()):
            if item is not None:
                self._call(operator.getitem, (node, k), {}, item)
        return found

    def _call(self, op: Any, args: Any, kwargs: Any, found: Any) -> fx.Node:
        name = f"{self.old.name}_{len(self.graph.nodes)}"
        while name in self._taken:
            name += "_"
        node = self.graph.create_node("call_function", op, args, kwargs, name=name)
        node.meta = {k: v for k, v in self.old.meta.items() if k != "val"} | {"val": found}
        if isinstance(found, Tensor):
            self._nodes[id(found)] = node, found
        return node

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        """The same elements under another shape, in one node."""
        found: Tensor = self.call(torch.ops.aten.reshape.default, x, list(shape))
        return found

    def rename(self, x: Tensor) -> Tensor:
        """A tensor whose node takes the name of the one that is replaced."""
        self._nodes[id(x)][0].name = self.old.name
        return x

    def value(self, old: fx.Node) -> Tensor:
        """The fake tensor that stands for a node of the old graph."""
        return self._tensor(self.env[old])

    def _tensor(self, node: fx.Node) -> Tensor:
        if node not in self._tensors:
            self._tensors[node] = found = self._like(node.meta["val"])
            self._nodes[id(found)] = node, found
        return self._tensors[node]

    def _like(self, value: Tensor) -> Tensor:
        before, self._recording = self._recording, False
        found = fake_like(value, self.mode)
        self._recording = before
        return found

    def nodes(self, found: Any) -> Any:
        """The nodes in place of the tensors that they yield, in tuples, lists and the like."""
        return fx.node.map_aggregate(
            found, lambda a: self._nodes[id(a)][0] if isinstance(a, Tensor) else a
        )

    def input(self, name: str, like: Tensor) -> Tensor:
        """A new input of the graph, behind the others; its value is like a tensor."""
        *_, last = (n for n in self.graph.nodes if n.op == "placeholder")
        with self.graph.inserting_after(last):
            node = self.graph.placeholder(name)
        node.meta = {"val": self._like(like)}
        return self._tensor(node)


def _pure(op: Any) -> Any:
    """``add`` in place of ``add_``: what reads the tensor afterwards reads the result."""
    name, _, overload = str(op).removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(packet, overload, op)


def rewrite(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    """The graph with rules, by op name, applied; names of inputs and of what is copied stay.

    What depends on weights alone stays too: it is computed, not lowered.
    """
    constants = Constants(graph)
    with tracing() as mode:
        emit = Emit(fx.Graph(), mode, constants, frozenset(graph.nodes))
        for old in graph.module.graph.nodes:
            if old.op != "output":
                emit.env[old] = _replace(emit, old, {} if old in constants else rules)
    return _with_outputs(graph, emit.graph, emit.env)


def _replace(emit: Emit, old: fx.Node, rules: Mapping[str, Rule]) -> Any:
    """The replacement of a node: the result of its rule, or a copy."""
    if old.target is operator.getitem:
        source, item = cast("tuple[fx.Node, int]", old.args)
        if isinstance(emit.env[source], tuple):
            return emit.env[source][item]
    rule = rules.get(op_name(old)) if old.op == "call_function" else None
    if rule is not None:
        emit.old = old
        args = fx.node.map_arg(old.args, emit.value)
        with torch.no_grad(), emit.mode, emit:
            found = rule(emit, *args)
        if found is not NotImplemented:
            return emit.nodes(found)
    return emit.graph.node_copy(old, emit.env.__getitem__)


def _with_outputs(graph: Graph, new: fx.Graph, env: dict[fx.Node, Any]) -> Graph:
    old = graph.nodes
    results = [env[old[o.node]] for o in graph.outputs]
    if not all(isinstance(r, fx.Node) for r in results):
        whole = [o.name for o, r in zip(graph.outputs, results, strict=True) if type(r) is tuple]
        raise BackendError("all results of an op leave a stage as one", got=", ".join(whole))
    new.output(tuple(results))
    for node in reversed(list(new.nodes)):
        if node.op == "call_function" and not node.users:
            new.erase_node(node)
    outputs = tuple(
        GraphOutput(node.name, o.kind, o.name)
        for node, o in zip(results, graph.outputs, strict=True)
    )
    module = graph_module(new, type(graph.module).__name__)
    return graph.replace(module=module, outputs=outputs)
