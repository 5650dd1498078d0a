"""What a stage's training graphs look like on a board: one pure graph per kernel.

```text
F    inputs, values, running statistics ─► values, loss, statistics, saved values
B    saved values, gradients, inputs    ─► gradients of values and of weights
```

The gradient of the loss is the number 1; what divides it by microbatches is the update's. Saved
values that no engine of B reads (statistics that it computes again) are not saved. Counters of
batches stay with the host.

Dropout is ``y = x * m`` and ``dx = dy * m`` with a mask m of zeros, where x is dropped, and
1 / (1 - p): the one that torch draws for the op's seed (`pipec.runtime.draws`). The host draws it,
F reads it as an input and saves it for B.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import is_random
from pipec.backends.fpga.lowering.backward import RULES, layer_norm_backward
from pipec.backends.fpga.lowering.rewrite import Emit, Rule, rewrite
from pipec.errors import BackendError
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind, op_name, tensor
from pipec.graph.written import ancestors, copy_calls, with_outputs
from pipec.runtime.draws import Draws, Stream


@dataclass(frozen=True)
class Mask:
    """A mask that the host sends to F for every microbatch.

    Attributes:
        name: Name of F's input.
        draw: Number of the random op in the model.
        probability: Probability that an element is dropped.
        shape: Shape of the mask, float32.
    """

    name: str
    draw: int
    probability: float
    shape: tuple[int, ...]

    def draw_mask(self, stream: Stream) -> torch.Tensor:
        """The mask that torch draws where the op's seed is ``stream(draw)``."""
        ones = torch.ones(self.shape)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream(self.draw))
            return torch.native_dropout(ones, self.probability, True)[0]


def masks_of(forward: Graph, draws: Draws | None) -> tuple[Mask, ...]:
    """The masks of a stage with this F.

    Its random ops have these numbers in the model, from 0 on if none are given.
    """
    random = [n for n in forward.calls if is_random(n)]
    numbers = range(len(random)) if draws is None else draws
    return tuple(
        Mask(_name(n), k, cast("float", n.args[1]), tuple(tensor(n.all_input_nodes[0]).shape))
        for k, n in zip(numbers, random, strict=True)
        if k is not None and _is_dropout(n)
    )


def _is_dropout(node: fx.Node) -> bool:
    return op_name(node) == "aten.native_dropout.default" and node.args[2] is True


def _name(node: fx.Node) -> str:
    return f"mask_{node.name}"


def dropout(emit: Emit, x: Tensor, *_: Any) -> Any:
    """X times an input."""
    if not _is_dropout(emit.old):
        return NotImplemented
    mask = emit.input(_name(emit.old), x)
    return (x * mask, mask)


_DROPOUT: dict[str, Rule] = {
    "aten.native_dropout.default": dropout,
    # the saved mask holds the scale already
    "aten.native_dropout_backward.default": lambda _, dy, mask, scale: dy * mask,
}


def floating_masks(before: Graph, after: Graph) -> Graph:
    """B, rewritten, with saved masks as numbers, as F sends them; before they are truth values."""
    old, new = before.nodes, after.nodes
    for i in before.inputs_of(InputKind.SAVED):
        users = old[i.node].users
        if users and all(op_name(u) in _DROPOUT for u in users) and i.node in new:
            value = new[i.node].meta["val"]
            new[i.node].meta["val"] = torch.empty_like(value, dtype=torch.float32)
    return after


@dataclass(frozen=True)
class Phases:
    """The graphs of a stage's two kernels.

    Attributes:
        F: Forward.
        B: Backward, weight gradients included.
        saved: Names of the values that F yields and B reads.
        counters: Names of the counters of batches, which the host keeps.
        masks: Masks of dropout, inputs of F.
    """

    F: Graph
    B: Graph
    saved: tuple[str, ...]
    counters: tuple[str, ...]
    masks: tuple[Mask, ...] = ()

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameters that get a gradient, in the order of the update."""
        outputs = self.B.outputs_of(OutputKind.WEIGHT_GRADIENT)
        return tuple(o.name.removeprefix(gradient_name("")) for o in outputs)


def gradient_name(name: str) -> str:
    """The name of the gradient of a value or weight on a board."""
    return f"grad_{name}"


def name_saved(name: str) -> str:
    """The name of a value on its way from F to B."""
    return f"saved_{name}"


def phases_of(training: Training, draws: Draws | None = None) -> Phases:
    """The graphs of a stage's kernels.

    Its random ops have these numbers in the model, from 0 on if it is the whole model.
    """
    low = training.lower()
    rules = {**RULES, **_DROPOUT, **_layer_norm_rules(low.F)}
    backward = _prune(floating_masks(low.B, rewrite(low.B, rules)))
    read = {i.name for i in backward.inputs_of(InputKind.SAVED)}
    masks = masks_of(low.F, draws)
    forward = rewrite(_forward(_stateful(low.F), read), rules)
    drawn = (GraphInput(m.name, InputKind.INPUT, m.name) for m in masks)
    forward = _prune(forward.replace(inputs=(*forward.inputs, *drawn)))
    named = _rename(backward, {o.name for o in low.F.outputs_of(OutputKind.LOSS)})
    saved = tuple(i.name for i in named.inputs_of(InputKind.SAVED))
    nodes, updated = low.F.nodes, low.F.outputs_of(OutputKind.BUFFER_UPDATE)
    counters = tuple(o.name for o in updated if not _floating(nodes[o.node]))
    return Phases(forward, named, saved, counters, masks)


def _layer_norm_rules(forward: Graph) -> Mapping[str, Rule]:
    """The rule for layer normalisation: B gets the statistics, whose epsilon F knows."""
    norms = [n for n in forward.calls if op_name(n) == "aten.native_layer_norm.default"]
    epsilons = {float(cast("float", n.args[4])) for n in norms}
    if not epsilons:
        return {}
    if len(epsilons) > 1:
        raise BackendError("layer normalisations of one stage with unlike epsilons", got=epsilons)
    rule: Rule = partial(layer_norm_backward, eps=epsilons.pop())
    return {"aten.native_layer_norm_backward.default": rule}


def _stateful(graph: Graph) -> Graph:
    """Running statistics are read and yielded like inputs and outputs, not kept in tables."""
    updated = {o.name for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)}
    inputs = tuple(
        GraphInput(i.node, InputKind.INPUT, i.name) if i.name in updated else i
        for i in graph.inputs
    )
    weights = {n: w for n, w in graph.weights.items() if n not in updated}
    return graph.replace(inputs=inputs, weights=weights)


def _forward(graph: Graph, read: set[str]) -> Graph:
    """F without what nobody reads: saved values that B does not read, counters."""
    nodes, outputs = graph.nodes, list[GraphOutput]()
    for o in graph.outputs:
        counter = o.kind is OutputKind.BUFFER_UPDATE and not _floating(nodes[o.node])
        if o.kind is OutputKind.SAVED and o.name in read:
            outputs.append(GraphOutput(o.node, o.kind, name_saved(o.name)))
        elif o.kind is not OutputKind.SAVED and not counter:
            outputs.append(o)
    return _prune(with_outputs(graph, outputs))


def _floating(node: fx.Node) -> bool:
    return tensor(node).dtype.is_floating_point


def _prune(graph: Graph) -> Graph:
    """The graph without nodes that no output needs, and without inputs that nobody reads."""
    nodes = graph.nodes
    needed = ancestors(nodes[o.node] for o in graph.outputs)
    inputs = [i for i in graph.inputs if nodes[i.node] in needed]
    return copy_calls(graph, inputs, [n for n in graph.calls if n in needed], graph.outputs)


def _rename(graph: Graph, losses: set[str]) -> Graph:
    """B with its gradients and what F saved under names of their own; a loss's gradient is 1."""
    renamed = {InputKind.GRADIENT: gradient_name, InputKind.SAVED: name_saved}
    inputs, weights = list[GraphInput](), dict(graph.weights)
    for i in graph.inputs:
        kind, name = i.kind, renamed.get(i.kind, str)(i.name)
        if kind is InputKind.GRADIENT and i.name in losses:
            kind, weights[name] = InputKind.CONSTANT, torch.ones(())
        inputs.append(GraphInput(i.node, kind, name))
    outputs = tuple(GraphOutput(o.node, o.kind, gradient_name(o.name)) for o in graph.outputs)
    return graph.replace(inputs=tuple(inputs), outputs=outputs, weights=weights)
