"""A copy of a graph that is being changed: functions of ops are written between its nodes."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from pipec.errors import GraphError
from pipec.graph.infer import type_of, type_words
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, origin, tensor, tensors
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import OpOverload, namespace_of


class Draft(GraphAppendingTracer):
    """A copy of a graph, and what is written into it, with types and origins.

    Args:
        graph: What is copied.

    Attributes:
        of: Node of the graph to what stands for it now.
        weights: By name.
        written: The new calls.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(fx.Graph())
        self.of, self.written = dict[fx.Node, fx.Node](), list[fx.Node]()
        for n in graph.module.graph.nodes:
            self.of[n] = self.graph.node_copy(n, self.of.__getitem__)
        self.weights, self._old, self._inputs = dict(graph.weights), graph, list(graph.inputs)
        self._namespaces, self._restrided = set(graph.namespaces), set[fx.Node]()
        self._unread = {self.of[n] for n in self.of if not n.users}
        nodes = graph.nodes
        self._holders = {
            id(t): (t, self.of[nodes[i.node]])
            for i in graph.inputs
            if (t := graph.weights.get(i.name)) is not None
        }
        self._mode: Any = next(t.fake_mode for n in self.of for t in tensors(n))  # type: ignore[attr-defined]

    def write(
        self,
        function: Callable[..., object],
        old: fx.Node,
        before: fx.Node,
        *args: Any,
        **given: Any,
    ) -> Any:
        """Write what a function computes.

        Args:
            function: Calls ops of `torch.ops`. A tensor that it uses becomes a weight.
            old: A node of the draft that gives new calls their origin, and their names its own.
            before: The node of the draft before which they stand.
            args: Arguments of the function; nodes of the draft stand for values.
            given: More of them, by name.

        Returns:
            What the function returns, of nodes of the draft.

        Raises:
            GraphError: It calls something that is no op, or that does not take its arguments.
        """
        self._at, self._function = old, function.__name__
        args, given = fx.map_arg((args, given), lambda n: fx.Proxy(n, self))  # type: ignore[arg-type,return-value]
        with self.graph.inserting_before(before), torch.no_grad():
            return self.create_arg(function(*args, **given))

    def create_node(self, kind: str, target: Any, *args: Any, **_: Any) -> fx.Node:
        """One call that a function makes."""
        where = f"{self._function}, at {self._at.name}, {target}"
        if kind != "call_function":
            raise GraphError("no op of torch.ops", where=where, got=kind)
        # the name of a node of another value is never taken: nodes go only at the end
        name = f"{self._at.name}_{target.__name__.split('.')[0]}"
        node = super().create_node(kind, target, args[0], args[1], name)
        node.meta["origin"] = origin(self._at)
        try:
            node.meta["val"] = self._yielded(node)
        except Exception as error:
            got = (str(error).strip() or repr(error)).splitlines()[0]
            raise GraphError("an op does not take its arguments", where=where, got=got) from error
        if isinstance(target, OpOverload):
            self._namespaces |= {namespace_of(target)} - OWN_NAMESPACES
        self.written.append(node)
        return node

    def create_arg(self, a: Any) -> Any:
        """A tensor is a weight: one of the graph's, or a new one."""
        if not isinstance(a, torch.Tensor):
            return super().create_arg(a)
        if id(a) not in self._holders:
            self._holders[id(a)] = a, self._add_weight(a)
        return self._holders[id(a)][1]

    def _add_weight(self, value: torch.Tensor) -> fx.Node:
        """A placeholder behind the other weights'."""
        heads = {name.split(".")[0] for name in (*self.weights, *self._old.tied)}
        names = (f"{self._function}_{k}" for k in range(len(heads) + 1))
        name = next(n for n in names if n not in heads)
        at = sum(i.kind.is_weight for i in self._inputs)
        value = value.detach().contiguous()
        with self.graph.inserting_before(list(self.graph.nodes)[at]):
            node = self.graph.placeholder(f"p_{name}")
        with self._mode:
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        self._inputs.insert(at, GraphInput(node.name, InputKind.PARAMETER, name))
        self.weights[name] = value
        return node

    def substitute(
        self, old: fx.Node, new: Any, readers: Collection[fx.Node] | None = None
    ) -> None:
        """Let readers of a value read another one of its shape and dtype; strides may differ.

        Args:
            old: The value, in the draft.
            new: What is read instead.
            readers: Who does, in the draft; all if not given.

        Raises:
            GraphError: It is of another type.
        """
        got, want = new.meta["val"] if isinstance(new, fx.Node) else new, tensor(old)
        if _kind(got) != _kind(want):
            raise GraphError(
                "a replacement of another type",
                where=f"{self._function}, at {old.name}",
                got=type_words(got),
                want=type_words(want),
            )
        if type_of(got) != type_of(want):
            self._restrided.add(new)
        old.replace_all_uses_with(new, lambda n: readers is None or n in readers)

    def finished(self) -> Graph:
        """The new graph: without what is read no more, with the strides that follow."""
        weights = {i.node: i for i in self._inputs if i.kind.is_weight}
        for n in reversed(list(self.graph.nodes)):
            if not n.users and n not in self._unread:
                if n.op == "call_function":
                    self.graph.erase_node(n)
                elif n.name in weights:
                    self.graph.erase_node(n)
                    self._inputs.remove(weights[n.name])
                    del self.weights[weights[n.name].name]
        for n in self.graph.nodes:
            if n.op == "call_function" and not self._restrided.isdisjoint(n.all_input_nodes):
                before, n.meta["val"] = n.meta["val"], self._yielded(n)
                if type_of(before) != type_of(n.meta["val"]):
                    self._restrided.add(n)
        yielded: Any = self.graph.output_node().args[0]
        return self._old.replace(
            module=fx.GraphModule({}, self.graph, type(self._old.module).__name__),
            inputs=tuple(self._inputs),
            outputs=tuple(
                GraphOutput(n.name, o.kind, o.name)
                for o, n in zip(self._old.outputs, yielded, strict=True)
            ),
            weights=self.weights,
            tied={k: v for k, v in self._old.tied.items() if k in self.weights},
            namespaces=frozenset(self._namespaces),
        )

    def _yielded(self, node: fx.Node) -> Any:
        """What a call yields of the annotated values of its arguments."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self._mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]


def _kind(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return type_words(value)
    return value.dtype, tuple(value.shape), value.device.type
