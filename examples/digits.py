"""scikit-learn's digits, a deep narrow network, and plain training to compare with."""

import math
from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.frontends.torch_module import from_module
from pipec.plan.model import Plan
from pipec.runtime.weights import OptimizerFactory, SchedulerFactory

ROWS = 32
PER_EPOCH = 1437 // ROWS


class Residual(nn.Module):
    """``x + relu(W x + b)``: networks of these stand delays, as PipeMare's ResNets do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.inner(x))


def network(layers: int = 6, width: int = 48, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    inner = [Residual(width) for _ in range(layers - 2)]
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


def sgd(lr: float) -> OptimizerFactory:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def cosine(updates: int) -> SchedulerFactory:
    """A rate that falls to 0 along a cosine."""

    def factor(k: int) -> float:
        return (1 + math.cos(math.pi * min(k / updates, 1))) / 2

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def plain(model: nn.Module, updates: int, lr: float) -> float:
    """Accuracy after as many updates by ordinary training; the model is left as it was."""
    own = {n: nn.Parameter(p.detach().clone()) for n, p in model.named_parameters()}
    weights: dict[str, torch.Tensor] = {**own}
    optimizer = sgd(lr)(list(own.values()))
    scheduler = cosine(updates)(optimizer)
    for k in range(updates):
        given = batch(k)
        out = torch.func.functional_call(model, weights, (given["input"],))
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, given["target"]).backward()
        optimizer.step()
        scheduler.step()
    return accuracy(model, weights)
