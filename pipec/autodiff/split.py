"""From a joint graph to F, B, I and W, by reachability alone.

```text
F = what the stage's outputs need             saved = what B reads of F
B = what the gradients need, beyond F         kept  = what W reads of I
I = what the gradients of received values need, of B
W = the rest of B
```
"""

import operator
from collections.abc import Collection, Iterable

from torch import fx

from pipec.autodiff.joint import Joint
from pipec.autodiff.model import Training
from pipec.autodiff.recompute import Recompute, views
from pipec.autodiff.tidy import results
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.written import ancestors, copy_calls

_WEIGHTS = (InputKind.PARAMETER, InputKind.CONSTANT)

_Named = list[tuple[str, fx.Node]]


def split_joint(joint: Joint, recompute: Recompute = views) -> Training:
    """Split a joint graph into the four graphs of a stage."""
    F, B = _Splitter(joint, recompute).forward_backward()
    I, W = _Splitter(joint.split_convolutions(), recompute).inputs_weights()  # noqa: E741
    return Training(F, B, I, W)


class _Splitter:
    """The sets of nodes of one joint graph, and the graphs made of them."""

    def __init__(self, joint: Joint, recompute: Recompute) -> None:
        self._joint, self._recompute = joint, recompute
        self._order = {n: k for k, n in enumerate(joint.graph.nodes)}
        self._outputs, received, weights = _results(joint)
        self._yielded = {OutputKind.GRADIENT: received, OutputKind.WEIGHT_GRADIENT: weights}
        placeholders = [n for n in self._order if n.op == "placeholder"]
        n = len(joint.stage.inputs)
        self._stage_inputs: dict[fx.Node, GraphInput] = dict(
            zip(placeholders[:n], joint.stage.inputs, strict=True)
        )
        self._gradient_inputs = {
            p: joint.stage.outputs[k].name
            for p, k in zip(placeholders[n:], joint.gradients, strict=True)
        }
        self._received = [n for _, n in received]
        self._weights = [n for _, n in weights]
        needed = ancestors(self._outputs)
        self._forward = needed | self._items_of(needed) | set(self._stage_inputs)

    def forward_backward(self) -> tuple[Graph, Graph]:
        roots = [*self._received, *self._weights, *self._gradient_inputs]
        copied, read = self._needs(roots, self._forward)
        weights = {n for n, i in self._stage_inputs.items() if i.kind in _WEIGHTS}
        saved = [n for n in read if n in self._forward and n not in weights]
        computed = ancestors([*self._outputs, *saved])
        outputs = [
            GraphOutput(n.name, o.kind, o.name)
            for n, o in zip(self._outputs, self._joint.stage.outputs, strict=True)
        ]
        F = self._graph("F", computed, [*outputs, *_list_saved(saved)], list(self._stage_inputs))
        B = self._graph("B", copied, self._gradients(*self._yielded), read)
        return F, B

    def inputs_weights(self) -> tuple[Graph, Graph]:
        shared = ancestors(self._received) - self._forward
        shared = {n for n in shared if n.op == "call_function"}
        again = self._needs(self._received, self._forward)[0] & self._forward
        shared |= again
        shared |= self._items_of(shared)
        w_nodes, w_read = self._needs(self._weights, self._forward | shared, made=shared)
        kept = [n for n in w_read if n in shared or n in self._gradient_inputs]
        roots = [*self._received, *kept, *self._gradient_inputs]
        i_nodes, i_read = self._needs(roots, self._forward)
        outputs = [*self._gradients(OutputKind.GRADIENT), *_list_saved(kept)]
        I = self._graph("I", i_nodes, outputs, i_read)  # noqa: E741
        W = self._graph("W", w_nodes, self._gradients(OutputKind.WEIGHT_GRADIENT), w_read)
        return I, W

    @staticmethod
    def _items_of(nodes: set[fx.Node]) -> set[fx.Node]:
        return {u for n in nodes for u in n.users if u.target is operator.getitem}

    def _needs(
        self, roots: Iterable[fx.Node], given: set[fx.Node], made: Collection[fx.Node] = ()
    ) -> tuple[set[fx.Node], list[fx.Node]]:
        """What a graph that yields ``roots`` computes and reads, when ``given`` exists already.

        Returns:
            Call nodes to copy, nodes of ``given`` that are recomputed among them; and what is
            read: placeholders and nodes of ``given``, in graph order.
        """

        def is_read(node: fx.Node) -> bool:
            """Whether it is there, and not to be computed again."""
            again = views if node in made else self._recompute
            return node.op == "placeholder" or (node in given and not again(node))

        found = ancestors(roots, lambda n: not is_read(n))
        read = set(filter(is_read, found))
        return found - read, sorted(read, key=self._order.__getitem__)

    def _gradients(self, *kinds: OutputKind) -> list[GraphOutput]:
        return [GraphOutput(n.name, kind, of) for kind in kinds for of, n in self._yielded[kind]]

    def _graph(
        self, title: str, nodes: set[fx.Node], outputs: Iterable[GraphOutput], read: list[fx.Node]
    ) -> Graph:
        """One graph that computes ``nodes`` and takes ``read`` as inputs, sorted by kind."""
        kinds = list(InputKind)
        inputs = sorted((self._input(n, title) for n in read), key=lambda i: kinds.index(i.kind))
        calls = [n for n in nodes.difference(read) if n.op == "call_function"]
        calls.sort(key=self._order.__getitem__)
        known = {n.name: n for n in read}
        return copy_calls(self._joint.stage, inputs, calls, outputs, nodes=known, title=title)

    def _input(self, node: fx.Node, title: str) -> GraphInput:
        """What a placeholder stands for; W finds gradients among what I has kept."""
        if node in self._gradient_inputs and title != "W":
            return GraphInput(node.name, InputKind.GRADIENT, self._gradient_inputs[node])
        known: GraphInput | None = self._stage_inputs.get(node)
        if known is not None and (title == "F" or known.kind in _WEIGHTS):
            return known
        return GraphInput(node.name, InputKind.SAVED, node.name)


def _results(joint: Joint) -> tuple[list[fx.Node], _Named, _Named]:
    """The output tuple of a joint graph, sorted by what it is: outputs, and gradients by name."""
    found = results(joint.graph)
    n = len(joint.stage.outputs)
    received, weights = _Named(), _Named()
    for k, node in zip(joint.wanted, found[n:], strict=False):
        source = joint.stage.inputs[k]
        if isinstance(node, fx.Node):
            kept = received if source.kind is InputKind.VALUE else weights
            kept.append((source.name, node))
    return list(found[:n]), received, weights


def _list_saved(nodes: list[fx.Node]) -> list[GraphOutput]:
    return [GraphOutput(n.name, OutputKind.SAVED, n.name) for n in nodes]
