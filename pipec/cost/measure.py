"""Measuring nodes: the graph is run some times, and every node's seconds are noted.

Two nodes with the same op on arguments of the same types take the same time and share a median.
Where the graph has a loss, their backwards are timed too, by autograd; its own time is taken off.

On a GPU a node takes what its kernels take, or what the host takes to launch them if that is more:
as in a stage, where the host is ahead unless nodes are short. So it is launched while the GPU is
kept busy, some times in a row, between two events.
"""

import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pipec.cost.count import count, moves_data, needing_gradients
from pipec.cost.table import CostTable
from pipec.errors import CostError, first_line
from pipec.graph.ir import Graph, OutputKind, flat_tensors, op_name, origin
from pipec.graph.kernels import layout
from pipec.graph.torch_private import FakeTensor, keep_busy, tree_map

_LAUNCHES, _BUSY = 4, 1_000_000
"""Runs of a node in a row on a GPU, and cycles before them: half a millisecond, to launch them in.
"""
Progress = Callable[[str], None]
"""Called with the name of every node when it is done."""


@dataclass(frozen=True)
class Measuring:
    """How nodes are measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        warmup: Runs of the graph that are not counted.
        repeats: Runs of the graph of which the median counts.
        clock: ``time.thread_time`` where the machine does other things too and torch has one
            thread.
    """

    device: str = "cpu"
    warmup: int = 2
    repeats: int = 7
    clock: Callable[[], float] = time.perf_counter


class Both(NamedTuple):
    """Seconds of a node's forward and of its backward."""

    forward: float
    backward: float


def measure_costs(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    kind: str,
    how: Measuring | None = None,
    progress: Progress = lambda _: None,
) -> CostTable:
    """The cost table of one kind of device, with the seconds that `measure` finds.

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

    Weights without data are replaced by random ones.

    Returns:
        Node name to the median seconds of one run; 0 for nodes that only relabel memory. Backwards
        are 0 where nothing is trained.

    Raises:
        CostError: There is no such device, an input is missing, or a node cannot be run.
    """
    how = how or Measuring()
    if how.device == "cuda" and not torch.cuda.is_available():
        raise CostError("this machine has no usable GPU", got=how.device, want="cpu")
    given = _placeholders(graph, inputs, how.device)
    trains = bool(graph.outputs_of(OutputKind.LOSS))
    needing = needing_gradients(graph) if trains else frozenset[fx.Node]()
    bare = _bare_backward(how) if trains else 0.0
    key_of: dict[str, object] = {}
    samples: dict[object, list[Both]] = {}
    for turn in range(how.warmup + how.repeats):
        for node, key, took in _pass(graph, dict(given), how, needing, bare):
            if turn >= how.warmup:
                samples.setdefault(key, []).append(took)
            if not turn:
                key_of[node.name] = key
                progress(node.name)
    median = {
        key: Both(*map(statistics.median, zip(*found, strict=True)))
        for key, found in samples.items()
    }
    return {name: median[key] for name, key in key_of.items()}


def _pass(
    graph: Graph, env: dict[fx.Node, Any], how: Measuring, needing: frozenset[fx.Node], bare: float
) -> Iterator[tuple[fx.Node, object, Both]]:
    """Run the graph once: every node with what makes it equal to others, and what it took.

    Nodes follow each other as in a stage, so that each finds its weights where they were left.
    """
    last = {r: n for n in graph.module.graph.nodes for r in n.all_input_nodes}
    for node in graph.calls:
        wanted = tuple(n in needing for n in node.all_input_nodes)
        typed: Any = lambda n: tree_map(layout, env[n])  # noqa: E731
        types = fx.map_arg((node.args, dict(node.kwargs)), typed)
        key = (op_name(node), repr(types), wanted)
        try:
            with torch.no_grad():
                forward, result = _time(_call(node, env, how.device), how)
            run = _backward(node, env, how.device, needing) if node in needing else None
            backward = _time(run, how, bare)[0] if run else 0.0
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise CostError(
                "a node cannot be run", where=f"{node.name}: {origin(node)}", got=first_line(error)
            ) from error
        env[node] = result
        yield node, key, Both(forward if moves_data(node) else 0.0, backward)
        for read in [*node.all_input_nodes, node]:
            if last.get(read) in (node, None):
                env.pop(read, None)


def _backward(
    node: fx.Node, env: Mapping[fx.Node, Any], device: str, needing: frozenset[fx.Node]
) -> Callable[[], Any] | None:
    """The gradients of the node's inputs as a function of nothing; None if it passes none on."""
    wanted = {n: tree_map(_track, env[n]) for n in node.all_input_nodes if n in needing}
    with torch.enable_grad():
        result = _call(node, {**env, **wanted}, device)()
    outputs = [t for t in flat_tensors(result) if t.requires_grad]
    if not outputs:
        return None
    leaves = [t for value in wanted.values() for t in flat_tensors(value) if t.requires_grad]
    given = [torch.ones_like(t) for t in outputs]
    return lambda: torch.autograd.grad(
        outputs, leaves, given, allow_unused=True, retain_graph=device == "cuda"
    )


def _bare_backward(how: Measuring) -> float:
    """Seconds that autograd takes for a backward without work."""
    x = torch.ones(1, device=how.device, requires_grad=True)
    y, given = x.view_as(x), torch.ones(1, device=how.device)
    run = lambda: torch.autograd.grad(y, x, given, retain_graph=True)  # noqa: E731
    return statistics.median(_time(run, how)[0] for _ in range(9))


def _track(value: Any) -> Any:
    """A tensor as a leaf of a graph of autograd's."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    return value.detach().requires_grad_()


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


def _time(run: Callable[[], Any], how: Measuring, bare: float = 0.0) -> tuple[float, Any]:
    """Seconds without the ``bare`` ones of the processor, and the result."""
    if how.device == "cuda":
        return _time_launches(run, how, bare)
    start = how.clock()
    result = run()
    return max(0.0, how.clock() - start - bare), result


def _time_launches(run: Callable[[], Any], how: Measuring, bare: float) -> tuple[float, Any]:
    """Seconds of the kernels, or of the processor that launches them if these are more."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    keep_busy(_BUSY)
    begin.record()
    start = how.clock()
    results = [run() for _ in range(_LAUNCHES)]
    host = how.clock() - start
    end.record()
    torch.cuda.synchronize()
    device = begin.elapsed_time(end) / 1e3
    return max(device, host - _LAUNCHES * bare) / _LAUNCHES, results[-1]


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
