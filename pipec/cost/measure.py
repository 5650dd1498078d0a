"""Measuring nodes: the graph is run once, and every distinct node some more times.

Two nodes with the same op on arguments of the same types take the same time and are measured once.
"""

import operator
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pipec.cost.count import moves_data
from pipec.errors import CostError
from pipec.graph.ir import Graph, op_name, origin
from pipec.graph.torch_private import FakeTensor

Progress = Callable[[str], None]
"""Told the name of every node when it is done."""


@dataclass(frozen=True)
class Measuring:
    """How nodes are measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        warmup: Runs that are not counted.
        repeats: Runs of which the median counts.
    """

    device: str = "cpu"
    warmup: int = 2
    repeats: int = 7


def measure(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    how: Measuring | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, float]:
    """Seconds of every call node, by name.

    Args:
        graph: What to run. Weights without data are replaced by random ones.
        inputs: Example inputs by name.
        how: Device and number of runs.
        progress: Told every node.

    Returns:
        Node name to the median seconds of one run; 0 for nodes that only relabel memory.

    Raises:
        CostError: There is no such device, an input is missing, or a node cannot be run.
    """
    how = how or Measuring()
    if how.device == "cuda" and not torch.cuda.is_available():
        raise CostError("this machine has no usable GPU", got=how.device, want="cpu")
    env = _placeholders(graph, inputs, how.device)
    last = {r: n for n in graph.module.graph.nodes for r in n.all_input_nodes}
    known: dict[object, float] = {}
    seconds: dict[str, float] = {}
    with torch.no_grad():
        for node in graph.calls:
            run = _call(node, env, how.device)
            key = (op_name(node), repr(_types(node, env)))
            try:
                if not moves_data(node):
                    known[key] = 0.0
                if key not in known:
                    known[key] = _median(run, how)
                env[node] = run()
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                raise CostError(
                    "a node cannot be run",
                    where=f"{node.name}: {origin(node)}",
                    got=str(error).split("\n")[0],
                ) from error
            seconds[node.name] = known[key]
            for read in [*node.all_input_nodes, node]:
                if last.get(read) in (node, None):
                    env.pop(read, None)
            progress(node.name)
    return seconds


def _call(node: fx.Node, env: Mapping[fx.Node, Any], device: str) -> Callable[[], Any]:
    """The node as a function of nothing; constants that name a device name this one."""
    place = torch.device(device)
    args: Any = fx.map_arg(node.args, env.__getitem__)
    kwargs: Any = fx.map_arg(dict(node.kwargs), env.__getitem__)
    kwargs = {k: place if isinstance(v, torch.device) else v for k, v in kwargs.items()}
    target: Any = node.target
    if target is operator.getitem:
        return lambda: args[0][args[1]]
    return lambda: target(*args, **kwargs)


def _median(run: Callable[[], object], how: Measuring) -> float:
    wait: Callable[[], object] = torch.cuda.synchronize if how.device == "cuda" else int
    samples = []
    for k in range(how.warmup + how.repeats):
        wait()
        start = time.perf_counter()
        run()
        wait()
        if k >= how.warmup:
            samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _types(node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
    """The node's arguments with every value replaced by its type."""
    typed: Any = lambda n: _type(env[n])  # noqa: E731
    return fx.map_arg((node.args, dict(node.kwargs)), typed)


def _type(value: object) -> object:
    if isinstance(value, Tensor):
        return (tuple(value.shape), str(value.dtype), value.stride())
    return tuple(map(_type, value)) if isinstance(value, list | tuple) else value


def _placeholders(graph: Graph, inputs: Mapping[str, Tensor], device: str) -> dict[fx.Node, Any]:
    nodes, env = graph.nodes, dict[fx.Node, Any]()
    for i in graph.inputs:
        held = graph.weights if i.kind.is_weight else inputs
        if i.name not in held:
            raise CostError("an input has no example", got=i.name)
        env[nodes[i.node]] = _real(held[i.name].detach()).to(device)
    return env


def _real(tensor: Tensor) -> Tensor:
    if tensor.device.type != "meta" and not isinstance(tensor, FakeTensor):
        return tensor
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return torch.randn(tensor.shape, dtype=tensor.dtype) * 0.02
