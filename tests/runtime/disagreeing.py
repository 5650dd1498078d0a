"""Ranks that were told different things; the last one is the odd one."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.errors import PipecError
from pipec.files import code_of
from pipec.frontends.torch_module import from_module
from pipec.pipeline.pipeline import Pipeline
from pipec.pipeline.valid import Count
from pipec.plan.model import Plan
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Settings
from pipec.runtime.rules import Correction
from tests.runtime.ranks import PATIENCE

LOSS = nn.functional.mse_loss


def sgd(rate: float = 0.1) -> Callable[[list[Any]], torch.optim.Optimizer]:
    return lambda p: torch.optim.SGD(p, lr=rate)


def adam(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)


def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@cache
def plan_of(
    schedule: str = "1f1b",
    *,
    seed: int = 0,
    microbatches: int = 4,
    rows: int = 4,
    activation: type[nn.Module] = nn.Tanh,
    layers: int = 4,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Plan:
    torch.manual_seed(seed)
    parts = [part for _ in range(layers) for part in (nn.Linear(8, 8), activation())]
    if tied:
        parts[-2].weight = parts[0].weight
    model = nn.Sequential(*parts).to(dtype)
    x = torch.zeros(rows, 8, dtype=dtype)
    passes = default_passes(schedule=schedule, microbatches=microbatches)
    graph = from_module(model, x, (LOSS, x)).graph
    return make_plan(graph, parse_cluster("2xh100"), passes=passes)


def data(scale: float = 1.0, shift: float = 0.0, rows: int = 4) -> Callable[[int], Any]:
    def batch(number: int) -> Mapping[str, torch.Tensor]:
        g = torch.Generator().manual_seed(number)
        x = torch.randn(rows, 8, generator=g)
        return {"input": x * scale, "target": x + shift}

    return batch


def _usual() -> dict[str, Any]:
    return {"plan": plan_of(), "batch": data(), "settings": Settings(sgd())}


KINDS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "another seed of the weights": (lambda: {"plan": plan_of(seed=1)}, "the model's weights"),
    "another activation": (lambda: {"plan": plan_of(activation=nn.ReLU)}, "the plan"),
    "a layer more": (lambda: {"plan": plan_of(layers=5)}, "the model's weights"),
    "another dtype": (lambda: {"plan": plan_of(dtype=torch.float64)}, "the model's weights"),
    "more rows": (lambda: {"plan": plan_of(rows=8)}, "the schedule"),
    "another schedule": (lambda: {"plan": plan_of("gpipe")}, "the schedule"),
    "more stages": (lambda: {"plan": plan_of("interleaved")}, "the schedule"),
    "more microbatches": (lambda: {"plan": plan_of(microbatches=6)}, "the schedule"),
    "another rate": (lambda: {"settings": Settings(sgd(0.2))}, "the optimizer"),
    "another optimizer": (lambda: {"settings": Settings(adam)}, "the optimizer"),
    "a rate that falls": (lambda: {"settings": Settings(sgd(), decay)}, "learning-rate schedule"),
    "clipping": (lambda: {"settings": Settings(sgd(), clip=1.0)}, "the clipping norm"),
    "another seed of dropout": (lambda: {"settings": Settings(sgd(), seed=7)}, "the seed"),
    "T1": (lambda: {"settings": Settings(sgd(), correction=Correction(5))}, "the correction"),
    "T2": (lambda: {"settings": Settings(sgd(), correction=Correction(0, 0.1))}, "the correction"),
    "a scale on the loss": (
        lambda: {"settings": Settings(sgd(), loss_scale=8.0)},
        "the loss scale",
    ),
    "updates without finite gradients": (
        lambda: {"settings": Settings(sgd(), on_nan="skip")},
        "gradients that are not finite",
    ),
    "other first weights": (
        lambda: {"weights": {n: w + 1 for n, w in plan_of().graph.weights.items()}},
        "are given",
    ),
    "other inputs": (lambda: {"batch": data(scale=2.0)}, "the data: input"),
    "other targets": (lambda: {"batch": data(shift=1.0)}, "the data: target"),
}
"""What is odd on the last rank, and what the message must name."""


def refused() -> dict[str, str]:
    """What every kind of disagreement is answered with on this rank, in one group."""
    found: dict[str, str] = {}
    with process_group(PATIENCE) as rank:
        odd = rank == dist.get_world_size() - 1
        for name, (change, _) in KINDS.items():
            given = {**_usual(), **(change() if odd else {})}
            found[name] = _message(partial(DistributedPipeline, **given))
        found["a shared weight"] = _message(lambda: _tied(odd=odd))
        found["other code of pipec"] = _message(lambda: _codes(odd=odd))
        found["a batch of other values"] = _message(lambda: _batch(0.5 * odd, 16))
        found["a batch of fewer rows"] = _message(lambda: _batch(0.0, 16 - 4 * odd))
        found["another count"] = _message(lambda: _batch(0.0, 16, lambda _: 1.0 + odd))
        found["nothing"] = _message(lambda: DistributedPipeline(**_usual()))
    return found


def _message(call: Callable[[], object]) -> str:
    try:
        call()
    except PipecError as error:
        return str(error)
    return ""


def _tied(*, odd: bool) -> None:
    plan = plan_of(tied=True)
    weights = {n: w + 0.1 * odd for n, w in plan.graph.weights.items()}
    DistributedPipeline(plan, data(), Settings(sgd()), weights=weights)


def _codes(*, odd: bool) -> None:
    with patch("pipec.runtime.identity.code_of", (lambda _: "0123") if odd else code_of):
        DistributedPipeline(**_usual())


def _batch(shift: float, rows: int, weight: Count | None = None) -> None:
    pipeline = Pipeline(plan_of(), optimizer=sgd(), weight=weight)
    parts = [data(shift=shift)(k) for k in range(4)]
    batch = {n: torch.cat([p[n] for p in parts])[:rows] for n in parts[0]}
    pipeline.step(batch)
