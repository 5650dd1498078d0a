"""Which layer a backward node belongs to: the one whose forward made its autograd node."""

from typing import Any

from torch import fx
from torch.autograd.graph import Node as GradNode

from pipec.graph.ir import Origin, flat_tensors, origin
from pipec.graph.torch_private import graph_being_traced


class OriginTracer:
    """Labels the nodes of a graph while it is being traced.

    The forward runs node by node through `run`. Whatever is traced meanwhile comes from that node;
    each autograd node that appeared gets a hook which switches back to it in the backward.
    """

    def __init__(self) -> None:
        self._current: Origin | None = None
        self._last: fx.Node | None = None
        self._known: set[GradNode] = set()

    def run(self, module: fx.GraphModule, *args: object) -> Any:
        """Run ``module`` on ``args``, labelling what is traced."""
        return _Labelling(module, self).run(*args)

    def enter(self, new: Origin) -> None:
        """Label what was traced since the last call, then work for ``new``."""
        self.finish()
        self._current = new

    def finish(self) -> None:
        """Label what was traced since the last call."""
        graph = graph_being_traced()
        fresh = []
        for node in reversed(graph.nodes):
            if node is self._last:
                break
            fresh.append(node)
        for node in fresh:
            if self._current is not None and node.op == "call_function":
                node.meta.setdefault("origin", self._current)
        if fresh:
            self._last = fresh[0]

    def watch(self, result: object, label: Origin) -> None:
        """Hook the autograd nodes that made ``result`` and were not seen before."""
        stack = [t.grad_fn for t in flat_tensors(result) if t.grad_fn is not None]
        while stack:
            node = stack.pop()
            if node in self._known:
                continue
            self._known.add(node)
            node.register_prehook(lambda _, label=label: self.enter(label))
            stack.extend(n for n, _ in node.next_functions if n is not None)


class _Labelling(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, labels: OriginTracer) -> None:
        super().__init__(module)
        self._labels = labels

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and note its origin on what it traces."""
        label = origin(n)
        if n.op == "call_function":
            self._labels.enter(label)
        result = super().run_node(n)
        self._labels.watch(result, label)
        return result
