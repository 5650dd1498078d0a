"""A copy of a graph that is being changed: functions of ops are written between its nodes."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from pipec.errors import GraphError, first_line
from pipec.graph.infer import same_type, type_of, type_words
from pipec.graph.ir import (
    Graph,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    op_name,
    origin,
    tensors,
)
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import graph_module


class Draft(GraphAppendingTracer):
    """A copy of a graph, and what is written into it, with types, origins and weights.

    Attributes:
        of: Node of the copied graph to its copy.
        fixed: Placeholders of weights that never change, with their tensors.
        written: The new calls.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(fx.Graph())
        self.of, self.written, self._old = dict[fx.Node, fx.Node](), list[fx.Node](), graph
        for n in graph.module.graph.nodes:
            self.of[n] = self.graph.node_copy(n, self.of.__getitem__)
        self._inputs = dict(zip(self.of.values(), graph.inputs, strict=False))
        held = [(n, i.name) for n, i in self._inputs.items() if i.kind.is_weight]
        self._weights = {n: graph.weights[name] for n, name in held}
        self._holder = {id(t): (n, t) for n, t in self._weights.items()}
        changing = {o.name for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)}
        trains = bool(graph.outputs_of(OutputKind.LOSS))
        fixed = [n for n, name in held if not trains and name not in changing]
        self.fixed = {n: self._weights[n] for n in fixed}
        inputs = self._inputs.keys() - self._weights.keys()
        self._kept = inputs | {n for n in self.graph.nodes if not n.users}
        self._mode: Any = next(t.fake_mode for n in self.of for t in tensors(n))  # type: ignore[attr-defined]

    def write(
        self,
        function: Callable[..., object],
        before: fx.Node,
        at: fx.Node,
        /,
        *args: Any,
        **given: Any,
    ) -> Any:
        """Write what a function computes, and return what it returns, of nodes of the draft.

        Args:
            function: Calls ops of `torch.ops`. A tensor that it uses becomes a weight.
            before: The node before which it is written.
            at: A node that gives new calls their origin, and their names its own.
            args: Arguments of the function; nodes of the draft stand for values.
            given: More of them, by name.

        Raises:
            GraphError: It calls something that is no op, or that does not take its arguments.
        """
        self._at, self._function = at, function.__name__
        args, given = fx.map_arg((args, given), lambda n: fx.Proxy(n, self))  # type: ignore[arg-type,return-value]
        with self.graph.inserting_before(before), torch.no_grad():
            return self.create_arg(function(*args, **given))

    def create_node(self, kind: str, target: Any, *args: Any, **_: Any) -> fx.Node:
        """One call that a function makes."""
        where = f"{self._function}, at {self._at.name}, {target}"
        if kind != "call_function":
            raise GraphError("no op of torch.ops", where=where, got=kind)
        name = f"{self._at.name}_{target.__name__.split('.')[0]}"
        node = super().create_node(kind, target, args[0], args[1], name)
        node.meta["origin"] = origin(self._at)
        try:
            node.meta["val"] = self._infer(node)
        except Exception as error:
            got = first_line(error)
            raise GraphError("an op does not take its arguments", where=where, got=got) from error
        self.written.append(node)
        return node

    def create_arg(self, a: Any) -> Any:
        """A tensor is a weight: one of the graph's, or a new one behind these."""
        if not isinstance(a, torch.Tensor):
            return super().create_arg(a)
        if id(a) not in self._holder:
            # with the tensor, or another one might come to have its id
            self._holder[id(a)] = self._add_weight(a.detach().contiguous()), a
        return self._holder[id(a)][0]

    def _add_weight(self, value: torch.Tensor) -> fx.Node:
        taken = {x for i in self._inputs.values() for x in (i.name.split(".")[0], i.node)}
        names = (f"{self._function}_{k}" for k in range(len(taken) + 1))
        name = next(n for n in names if n not in {*taken, *self._old.tied})
        with self.graph.inserting_before(
            next(n for n in self.graph.nodes if n not in self._weights)
        ):
            node = self.graph.placeholder(f"p_{name}")
        with self._mode:
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        self._inputs[node] = GraphInput(node.name, InputKind.PARAMETER, name)
        self._weights[node] = self.fixed[node] = value
        return node

    def substitute(
        self, old: fx.Node, new: Any, readers: Collection[fx.Node] | None = None
    ) -> None:
        """Let readers of a value, or all, read another one of its shape and dtype.

        Raises:
            GraphError: It is of another type.
        """
        got, want = new.meta["val"] if isinstance(new, fx.Node) else new, old.meta["val"]
        if not same_type(type_of(got), type_of(want), strided=False):
            where = f"{self._function}, at {old.name}"
            words = {"got": type_words(got), "want": type_words(want)}
            raise GraphError("a replacement of another type", where=where, **words)
        old.replace_all_uses_with(new, lambda n: readers is None or n in readers)
        restrided = {new} if type_of(got) != type_of(want) else set()
        for n in self.graph.nodes if restrided else ():
            if n.op == "call_function" and not restrided.isdisjoint(n.all_input_nodes):
                before, n.meta["val"] = n.meta["val"], self._infer(n)
                if type_of(before) != type_of(n.meta["val"]):
                    restrided.add(n)

    def erase_unread(self) -> None:
        """Calls and weights go that are no longer read; what never was stays."""
        self.graph.eliminate_dead_code(lambda n: n in self._kept)
        left = set(self.graph.nodes)
        self._holder = {k: held for k, held in self._holder.items() if held[0] in left}

    def finish(self) -> Graph:
        """The new graph."""
        self.erase_unread()
        *nodes, yielded = self.graph.nodes
        outputs = zip(self._old.outputs, yielded.args[0], strict=True)
        inputs = [self._inputs[n] for n in nodes if n.op == "placeholder"]
        weights = {self._inputs[n].name: self._weights[n] for n in nodes if n in self._weights}
        spaces = {op_name(n).split(".")[0] for n in self.written if "." in op_name(n)}
        return self._old.replace(
            module=graph_module(self.graph, type(self._old.module).__name__),
            inputs=tuple(inputs),
            outputs=tuple(GraphOutput(n.name, o.kind, o.name) for o, n in outputs),
            weights=weights,
            tied={k: v for k, v in self._old.tied.items() if k in weights},
            namespaces=self._old.namespaces | (spaces - OWN_NAMESPACES),
        )

    def _infer(self, node: fx.Node) -> Any:
        """What a call yields of the annotated values of its arguments."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self._mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
