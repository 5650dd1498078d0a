"""Cut a traced model, differentiate its stages, and run them as a pipeline in one process."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pipec.autodiff.differentiate import differentiate
from pipec.autodiff.model import Training
from pipec.autodiff.recompute import Recompute, views
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, OutputKind, Source
from pipec.graph.written import extract

Tensors = dict[str, Tensor]


@dataclass
class Case:
    """A model, its loss, and how to make microbatch ``k``: (inputs, target)."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batch: Callable[[int], tuple[tuple[Tensor, ...], object]]
    stages: int = 4
    tolerance: float = 2e-6


@dataclass
class Chain:
    """The stages of one model."""

    graph: Graph
    stages: list[Graph]
    training: list[Training]
    weights: Tensors = field(default_factory=dict)


def cut(graph: Graph, stages: int) -> list[Graph]:
    """``stages`` contiguous parts of about equal node count; tuples stay with their items."""
    calls = graph.calls
    bound = [(k * stages) // len(calls) for k in range(len(calls))]
    part = dict(zip((n.name for n in calls), bound, strict=True))
    for n in calls:
        if str(n.target).find("getitem") >= 0:
            part[n.name] = part[n.all_input_nodes[0].name]
    return [
        extract(graph, {n for n, p in part.items() if p == k}, f"Stage{k}") for k in range(stages)
    ]


def build(case: Case, module: nn.Module, recompute: Recompute = views) -> Chain:
    """Trace ``module`` on microbatch 0, cut and differentiate it."""
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    return chained(graph, case.stages, recompute)


def chained(graph: Graph, count: int, recompute: Recompute = views) -> Chain:
    stages = cut(graph, count)
    training = differentiate(graph, stages, recompute=recompute)
    weights = {k: w.detach().clone() for k, w in graph.weights.items()}
    return Chain(graph, stages, training, weights)


def run(graph: Graph, tensors: Mapping[tuple[InputKind, str], Tensor]) -> Sequence[Tensor]:
    """Run a graph on inputs by kind and name."""
    args = [tensors[_key(i.kind), i.name] for i in graph.inputs]
    result: Sequence[Tensor] = graph.module(*args)
    return result


def _key(kind: InputKind) -> InputKind:
    return InputKind.PARAMETER if kind.is_weight else kind


def forward(chain: Chain, inputs: Tensors) -> tuple[list[Tensors], Tensors, Tensors]:
    """All F graphs in order; saved values per stage, values (loss among them), buffer updates."""
    values: Tensors = {}
    saved: list[Tensors] = []
    buffers: Tensors = {}
    for t in chain.training:
        known = _known(chain, inputs, values)
        results = run(t.F, known)
        mine: Tensors = {}
        for o, x in zip(t.F.outputs, results, strict=True):
            place = {OutputKind.SAVED: mine, OutputKind.BUFFER_UPDATE: buffers}.get(o.kind, values)
            place[o.name] = x
        saved.append(mine)
    return saved, values, buffers


def _known(chain: Chain, inputs: Tensors, values: Tensors) -> dict[tuple[InputKind, str], Tensor]:
    known = {(InputKind.PARAMETER, n): w for n, w in chain.weights.items()}
    known |= {(InputKind.INPUT, n): x for n, x in inputs.items()}
    return known | {(InputKind.VALUE, n): x for n, x in values.items()}


def backward(chain: Chain, saved: list[Tensors], loss: str, scale: Tensor, split: bool) -> Tensors:
    """All B graphs (or I and W) from last to first; the parameters' gradients."""
    arrived: Tensors = {loss: scale}
    grads: Tensors = {}
    for t, mine in zip(reversed(chain.training), reversed(saved), strict=True):
        known = _known(chain, {}, {})
        known |= {(InputKind.GRADIENT, n): g for n, g in arrived.items()}
        known |= {(InputKind.SAVED, n): x for n, x in mine.items()}
        for graph in (t.I, t.W) if split else (t.B,):
            for o, x in zip(graph.outputs, run(graph, known), strict=True):
                if o.kind is OutputKind.SAVED:
                    known[InputKind.SAVED, o.name] = x
                else:
                    into = arrived if o.kind is OutputKind.GRADIENT else grads
                    into[o.name] = into[o.name] + x if o.name in into else x
    return grads


@dataclass
class Result:
    loss: list[Tensor]
    grads: Tensors
    buffers: Tensors


def pipeline(chain: Chain, case: Case, microbatches: int, *, split: bool = False) -> Result:
    """Gradient accumulation through the stage graphs, microbatch after microbatch."""
    total: Tensors = {}
    losses = []
    chain = dataclasses.replace(chain, weights=dict(chain.weights))
    (loss,) = chain.graph.outputs_of(OutputKind.LOSS)
    names = [i.name for i in chain.graph.inputs_of(InputKind.INPUT)]
    for k in range(microbatches):
        torch.manual_seed(100 + k)
        args, target = case.batch(k)
        saved, values, buffers = forward(chain, dict(zip(names, flat(args, target), strict=True)))
        chain.weights |= buffers
        losses.append(values[loss.name])
        scale = torch.full((), 1 / microbatches)
        for n, g in backward(chain, saved, loss.name, scale, split).items():
            total[n] = total[n] + g if n in total else g
    buffers = {i.name: chain.weights[i.name] for i in chain.graph.inputs_of(InputKind.BUFFER)}
    return Result(losses, total, buffers)


def flat(args: tuple[Tensor, ...], target: object) -> list[Tensor]:
    loss = Loss(lambda: None, target)
    return [*args, *loss.inputs.values()]


def eager(module: nn.Module, case: Case, microbatches: int) -> Result:
    """The same by ``loss.backward()`` on the module."""
    losses = []
    module = copy.deepcopy(module)
    for k in range(microbatches):
        torch.manual_seed(100 + k)
        args, target = case.batch(k)
        loss = Loss(case.loss, target)
        value = loss(module(*args), list(loss.inputs.values()))
        (value / microbatches).backward()
        losses.append(value.detach())
    grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return Result(losses, grads, {n: b.clone() for n, b in module.named_buffers()})


def worst(got: Tensors, want: Tensors) -> float:
    """Largest error relative to the largest magnitude of the same tensor; infinite for a NaN."""
    error = 0.0
    for name, w in want.items():
        scale = max(float(w.abs().max()), 1e-6) if w.numel() else 1.0
        found = float((got[name].double() - w.double()).abs().max()) / scale
        error = max(error, found if found == found else torch.inf)  # noqa: PLR0124
    return error
