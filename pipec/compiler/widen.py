"""Plans in 16 bits once more in float32, where a fault of a few percent is no rounding."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx

from pipec.autodiff.model import Training
from pipec.graph.ir import Graph
from pipec.graph.torch_private import graph_module
from pipec.plan.model import Plan, Stage

_NARROW = (torch.bfloat16, torch.float16)


def widen(value: Any) -> Any:
    """A tensor of 16 bits, or their dtype, in float32; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(torch.float32) if value.dtype in _NARROW else value
    return torch.float32 if isinstance(value, torch.dtype) and value in _NARROW else value


def widen_graph(graph: Graph) -> Graph:
    """The same ops, in float32 where they are in 16 bits."""
    return _Wide().graph(graph)


def widen_plan(plan: Plan) -> Plan:
    """The same stages and training graphs, in float32 where they are in 16 bits."""
    wide = _Wide()
    stages = tuple(map(wide.stage, plan.stages))
    return plan.replace(graph=wide.graph(plan.graph), stages=stages)


class _Wide:
    """Graphs in float32; those that share a module, as stages of one structure do, share it."""

    def __init__(self) -> None:
        self._modules = dict[fx.GraphModule, fx.GraphModule]()
        self._fakes = dict[object, Any]()

    def graph(self, graph: Graph) -> Graph:
        if graph.module not in self._modules:
            self._modules[graph.module] = self._copy(graph.module)
        module = self._modules[graph.module]
        weights = {name: widen(t) for name, t in graph.weights.items()}
        return graph.replace(module=module, weights=weights)

    def stage(self, stage: Stage) -> Stage:
        phases = stage.training and {k: self.graph(g) for k, g in stage.training.graphs.items()}
        trained = Training(**phases) if phases else None
        return dataclasses.replace(stage, graph=self.graph(stage.graph), training=trained)

    def _copy(self, module: fx.GraphModule) -> fx.GraphModule:
        new, env = fx.Graph(), dict[fx.Node, fx.Node]()
        for n in module.graph.nodes:
            copy = env[n] = new.node_copy(n, env.__getitem__)
            copy.args, copy.kwargs = fx.node.map_aggregate((copy.args, copy.kwargs), widen)
            copy.meta["val"] = fx.node.map_aggregate(n.meta.get("val"), self._fake)
        return graph_module(new, type(module).__name__)

    def _fake(self, value: Any) -> Any:
        """A fake tensor of 16 bits in float32: one for all of a type, as making them takes long."""
        if not isinstance(value, Tensor) or value.dtype not in _NARROW:
            return value
        key = value.shape, value.stride()
        if key not in self._fakes:
            self._fakes[key] = widen(value)
        return self._fakes[key]
