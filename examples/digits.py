"""scikit-learn's digits, a deep narrow network, and plain training to compare with."""

from collections.abc import Callable, Mapping

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.frontends.torch_module import from_module
from pipec.plan.model import Plan

ROWS = 32
PER_EPOCH = 1437 // ROWS


def network(layers: int = 5, width: int = 48, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    inner = [part for _ in range(layers - 2) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *inner, nn.Linear(width, 10))


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then those for the test."""
    found = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32) / 8 - 1
    y = torch.tensor(found.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def batch(number: int) -> Mapping[str, Tensor]:
    """Microbatch ``number``: every epoch in another order, the last incomplete one left out."""
    x, y, _, _ = _DATA
    epoch, k = divmod(number, PER_EPOCH)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rows = rows[k * ROWS : (k + 1) * ROWS]
    return {"input": x[rows], "target": y[rows]}


_DATA = data()


def plan_of(model: nn.Module, schedule: str, stages: int, microbatches: int) -> Plan:
    first = batch(0)
    loss = nn.functional.cross_entropy, first["target"]
    graph = from_module(model, first["input"], loss).graph
    devices = 2 * stages if schedule == "pipefb" else stages
    passes = default_passes(stages=stages, schedule=schedule, microbatches=microbatches)
    return make_plan(graph, parse_cluster(f"{devices}xh100"), passes=passes)


def accuracy(model: nn.Module, weights: Mapping[str, Tensor]) -> float:
    _, _, x, y = _DATA
    out = torch.func.functional_call(model, dict(weights), (x,))
    return float((out.argmax(1) == y).float().mean())


def adam(lr: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


def plain(
    model: nn.Module,
    microbatches: int,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> float:
    """Accuracy after as many updates by ordinary training; the model is left as it was."""
    names = dict(model.named_parameters())
    weights = {n: nn.Parameter(p.detach().clone()) for n, p in names.items()}
    optimizer = make(list(weights.values()))
    for k in range(microbatches):
        given = batch(k)
        out = torch.func.functional_call(model, weights, (given["input"],))
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, given["target"]).backward()
        optimizer.step()
    return accuracy(model, weights)
