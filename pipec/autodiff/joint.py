"""The joint graph of a stage: forward and backward traced as one.

```text
joint(inputs..., gradients of outputs...) -> (outputs..., gradients of inputs...)
```

Tracing runs real autograd on fake tensors, so every formula is torch's own. Three rules keep the
result right when forward and backward run apart:

* what crosses a cut is contiguous, both ways, because B is only valid for the strides it saw;
* in-place ops that autograd's formulas bring in are made functional, because recomputing around
  them would silently read the wrong value;
* ``view`` becomes ``reshape``, which does not depend on the strides of another device's kernels.

A backward node belongs to the layer whose forward made its autograd node.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import Node as GradNode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipec.autodiff.fakes import fake_inputs, fake_like, tracing
from pipec.autodiff.tidy import (
    copy_graph,
    drop_aliases,
    drop_double_transposes,
    separate_convolutions,
    views_to_reshape,
)
from pipec.errors import GraphError, first_line
from pipec.graph.eager import keep_absent
from pipec.graph.ir import Graph, InputKind, Origin, OutputKind, flat_tensors, origin
from pipec.graph.torch_private import FakeTensorMode, OpOverload, graph_being_traced, is_mutable

_BOUNDARY = (OutputKind.VALUE, OutputKind.LOSS)


@dataclass(frozen=True)
class Joint:
    """A joint graph and how to read it.

    Attributes:
        graph: Placeholders: the stage's own, then one per entry of ``gradients``. Outputs: the
            stage's own, then one gradient (or None) per entry of ``wanted``. Names of nodes are
            unique and those of the stage's placeholders are kept.
        stage: The pure stage graph that was differentiated.
        gradients: Positions of the stage's outputs whose gradient is given.
        wanted: Positions of the stage's inputs whose gradient is asked for.
    """

    graph: fx.Graph
    stage: Graph
    gradients: tuple[int, ...]
    wanted: tuple[int, ...]

    def split_convolutions(self) -> "Joint":
        """The same with the backward of every convolution in two, so that I and W can share it."""
        graph = copy_graph(self.graph)
        separate_convolutions(graph)
        return Joint(graph, self.stage, self.gradients, self.wanted)


def trace_joint(
    stage: Graph, wanted: tuple[int, ...], gradients: tuple[int, ...], *, portable: bool = False
) -> Joint:
    """Trace forward and backward of a stage together.

    Args:
        stage: A pure stage graph (no communication).
        wanted: Positions of inputs whose gradient is asked for.
        gradients: Positions of outputs whose gradient will be given; each must depend on an input
            of ``wanted``.
        portable: Write attention out in matrix products, which every device has, instead of the
            fused kernel of the device that traces.
    """
    attention = sdpa_kernel(SDPBackend.MATH) if portable else nullcontext()
    with tracing() as mode, attention:
        inputs = fake_inputs(stage, mode)
        joint = _joint_function(stage, wanted, gradients)
        outputs = [stage.node(stage.outputs[k].node).meta["val"] for k in gradients]
        given = [fake_like(t, mode, contiguous=True) for t in outputs]
        module = _trace(joint, [*inputs, *given])
        drop_aliases(module.graph)
        ops = {n.target for n in module.graph.nodes}
        if any(isinstance(op, OpOverload) and is_mutable(op) for op in ops):
            module = _functional(module, [*inputs, *given], mode)
    views_to_reshape(module.graph)
    drop_double_transposes(module.graph)
    keep_absent(module.graph)
    module.graph.eliminate_dead_code()
    names = [i.node for i in stage.inputs]
    names += [f"grad_{stage.outputs[k].node}" for k in gradients]
    updated = {o.name for o in stage.outputs_of(OutputKind.BUFFER_UPDATE)} - set(names)
    return Joint(copy_graph(module.graph, names, updated), stage, gradients, wanted)


def _joint_function(
    stage: Graph, wanted: tuple[int, ...], gradients: tuple[int, ...]
) -> Callable[..., tuple[Any, ...]]:
    """The function whose trace is the joint graph."""
    n = len(stage.inputs)
    received = {k for k in wanted if stage.inputs[k].kind is InputKind.VALUE}

    def joint(*args: torch.Tensor) -> tuple[Any, ...]:
        labels = OriginTracer()
        ins = [x.detach().requires_grad_() if k in wanted else x for k, x in enumerate(args[:n])]
        with torch.enable_grad():
            raw = labels.run(stage.module, *ins)
            outs = [
                x.contiguous() if o.kind in _BOUNDARY else x
                for x, o in zip(raw, stage.outputs, strict=True)
            ]
        if not gradients or not wanted:
            labels.finish()
            return tuple(outs)
        ends, starts = [outs[k] for k in gradients], [ins[k] for k in wanted]
        grads: list[torch.Tensor | None] = []
        try:
            grads += torch.autograd.grad(ends, starts, args[n:], allow_unused=True)
        except RuntimeError as error:  # an op without a formula is found when its turn comes
            what = "the model cannot be differentiated"
            raise GraphError(what, where=labels.current, got=first_line(error)) from None
        for k, g in zip(wanted, grads, strict=True):
            if g is not None and g.layout is not torch.strided:
                raise GraphError(
                    "a gradient is sparse",
                    where=stage.inputs[k].name,
                    got=g.layout,
                    hint="make its layer with sparse=False",
                )
        sent = [
            g.contiguous() if g is not None and k in received else g
            for k, g in zip(wanted, grads, strict=True)
        ]
        labels.finish()
        return (*outs, *sent)

    return joint


def _trace(function: Callable[..., Any], args: list[torch.Tensor]) -> fx.GraphModule:
    return make_fx(function, tracing_mode="real", _allow_non_fake_inputs=True)(*args)


def _functional(
    module: fx.GraphModule, args: list[torch.Tensor], mode: FakeTensorMode
) -> fx.GraphModule:
    """Trace a traced graph again, with writes turned into new values."""

    def rerun(*inputs: torch.Tensor) -> Any:
        labels = OriginTracer()
        result = labels.run(module, *inputs)
        labels.finish()
        return result

    with mode:
        traced = _trace(functionalize(rerun, remove="mutations"), args)
    drop_aliases(traced.graph)
    return traced


class OriginTracer:
    """Labels the nodes of a graph while it is being traced.

    The forward runs node by node through `run`. Whatever is traced meanwhile comes from that node;
    each autograd node that appeared gets a hook which switches back to it in the backward.
    """

    def __init__(self) -> None:
        self.current: Origin | None = None
        self._last: fx.Node | None = None
        self._known: set[GradNode] = set()

    def run(self, module: fx.GraphModule, *args: object) -> Any:
        """Run ``module`` on ``args``, labelling what is traced."""
        return _Labelling(module, self).run(*args)

    def enter(self, new: Origin) -> None:
        """Label what was traced since the last call, then work for ``new``."""
        self.finish()
        self.current = new

    def finish(self) -> None:
        """Label what was traced since the last call."""
        latest = reversed(graph_being_traced().nodes)
        fresh = list(takewhile(lambda node: node is not self._last, latest))
        for node in fresh:
            if self.current is not None and node.op == "call_function":
                node.meta.setdefault("origin", self.current)
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
