"""Measuring nodes: the graph is run once, and every distinct node some more times.

Two nodes with the same op on arguments of the same types take the same time and are measured once.
Where the graph has a loss, so are their backwards, by autograd; its own time is taken off.
"""

import operator
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pipec.cost.backward import needing_gradients
from pipec.cost.count import count, moves_data
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.graph.ir import Graph, OutputKind, op_name, origin
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


class Both(NamedTuple):
    """Seconds of a node's forward and of its backward."""

    forward: float
    backward: float


def measured_costs(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    kind: str,
    how: Measuring | None = None,
    progress: Progress = lambda _: None,
) -> CostTable:
    """The cost table of one kind of device, with the seconds that `measure` finds.

    Args:
        graph: What to run.
        inputs: Example inputs by name.
        kind: What the table calls the device.
        how: Device and number of runs.
        progress: Told every node.

    Raises:
        CostError: As `measure`.
    """
    found = measure(graph, inputs, how, progress)
    backward = {kind: {name: s.backward for name, s in found.items()}}
    return CostTable(
        count(graph),
        {kind: {name: s.forward for name, s in found.items()}},
        {kind: "measured"},
        backward=backward if graph.outputs_of(OutputKind.LOSS) else {},
    )


def measure(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    how: Measuring | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Both]:
    """Seconds of every call node, by name.

    Args:
        graph: What to run. Weights without data are replaced by random ones.
        inputs: Example inputs by name.
        how: Device and number of runs.
        progress: Told every node.

    Returns:
        Node name to the median seconds of one run; 0 for nodes that only relabel memory. Backwards
        are 0 where nothing is trained.

    Raises:
        CostError: There is no such device, an input is missing, or a node cannot be run.
    """
    how = how or Measuring()
    if how.device == "cuda" and not torch.cuda.is_available():
        raise CostError("this machine has no usable GPU", got=how.device, want="cpu")
    env = _placeholders(graph, inputs, how.device)
    trains = bool(graph.outputs_of(OutputKind.LOSS))
    needing = needing_gradients(graph) if trains else frozenset[fx.Node]()
    bare = _bare_backward(how) if trains else 0.0
    last = {r: n for n in graph.module.graph.nodes for r in n.all_input_nodes}
    known: dict[object, Both] = {}
    seconds: dict[str, Both] = {}
    for node in graph.calls:
        wanted = tuple(n in needing for n in node.all_input_nodes)
        key = (op_name(node), repr(_types(node, env)), wanted)
        try:
            if key not in known:
                known[key] = _both(node, env, how, needing, bare)
            with torch.no_grad():
                env[node] = _call(node, env, how.device)()
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


def _both(
    node: fx.Node,
    env: Mapping[fx.Node, Any],
    how: Measuring,
    needing: frozenset[fx.Node],
    bare: float,
) -> Both:
    with torch.no_grad():
        run = _call(node, env, how.device)
        forward = _median(run, how) if moves_data(node) else 0.0
    if node not in needing:
        return Both(forward, 0.0)
    backward = _backward(node, env, how.device, needing)
    return Both(forward, max(0.0, _median(backward, how) - bare) if backward else 0.0)


def _backward(
    node: fx.Node, env: Mapping[fx.Node, Any], device: str, needing: frozenset[fx.Node]
) -> Callable[[], Any] | None:
    """The gradients of the node's inputs as a function of nothing; None if it passes none on."""
    wanted = {n: _tracked(env[n]) for n in node.all_input_nodes if n in needing}
    with torch.enable_grad():
        result = _call(node, {**env, **wanted}, device)()
    outputs = [t for t in _flat(result) if t.requires_grad]
    if not outputs:
        return None
    leaves = [t for value in wanted.values() for t in _flat(value) if t.requires_grad]
    given = [torch.ones_like(t) for t in outputs]
    return lambda: torch.autograd.grad(outputs, leaves, given, retain_graph=True, allow_unused=True)


def _bare_backward(how: Measuring) -> float:
    """Seconds that autograd takes for a backward without work."""
    x = torch.ones(1, device=how.device, requires_grad=True)
    y, given = x.view_as(x), torch.ones(1, device=how.device)
    return _median(lambda: torch.autograd.grad(y, x, given, retain_graph=True), how)


def _tracked(value: Any) -> Any:
    """The value as leaves of a graph of autograd's."""
    if isinstance(value, list | tuple):
        return type(value)(map(_tracked, value))
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    return value.detach().requires_grad_()


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _flat(part)] if isinstance(value, list | tuple) else []


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
