"""Plans for small models under any schedule, and gradient accumulation to compare with."""

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.passes.differentiate import Differentiate
from pipec.passes.insert_comm import InsertComm
from pipec.plan.model import Plan, cut_stages
from pipec.runtime.executor import Batch
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from tests.autodiff.chain import Case, cut, flat
from tests.content import content
from tests.plans import by_hand


def _told(plan: Plan) -> bytes:
    stages = [(s.key, s.cost_key) for s in plan.stages]
    return content(str(plan.graph.module.graph), dict(plan.graph.weights), stages)


_plans: dict[tuple[object, ...], tuple[Plan, bytes]] = {}


def staged(case: Case, module: nn.Module, stages: int, *, recompute: str = "views") -> Plan:
    """Cut into ``stages`` of equal node count, with channels and backward graphs.

    Made once per process for equal modules, of a copy, where a module can be pickled. Whoever
    changes the plan is found out by the next one who asks for it.
    """
    try:
        key = (case.loss, case.batch, stages, recompute, content(module))
    except (pickle.PicklingError, AttributeError, TypeError):  # of a class inside a test
        return _stage(case, module, stages, recompute)
    if key not in _plans:
        plan = _stage(case, copy.deepcopy(module), stages, recompute)
        _plans[key] = (plan, _told(plan))
    plan, told = _plans[key]
    assert _told(plan) == told, "a test has changed a plan that others share"
    return plan


def _stage(case: Case, module: nn.Module, stages: int, recompute: str) -> Plan:
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    return staged_graph(graph, cut(graph, stages), recompute=recompute)


def staged_graph(graph: Graph, parts: list[Graph], *, recompute: str = "views") -> Plan:
    cut = by_hand({n.name: k for k, part in enumerate(parts) for n in part.calls})
    stages = cut_stages(graph, cut.stage_of, len(parts))
    plan = Plan(graph, parse_cluster(f"{len(parts)}xh100"), partition=cut, stages=stages)
    return Differentiate(recompute=recompute).run(InsertComm().run(plan))  # type: ignore[arg-type]


def scheduled(plan: Plan, name: str, microbatches: int, **options: object) -> Schedule:
    """A named schedule with everything that the plan needs."""
    return complete(generate(name, len(plan.stages), microbatches, **options), plan)


def emitted(directory: Path, devices: int, *, schedule: str = "1f1b") -> Plan:
    """A small classifier with BatchNorm and dropout, compiled for training into ``directory``."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )
    loss = nn.functional.cross_entropy, torch.randint(0, 3, (4,))
    graph = from_module(model, torch.randn(4, 8), loss).graph
    passes = default_passes(stages=devices, schedule=schedule, microbatches=4)
    plan = make_plan(graph, parse_cluster(f"{devices}xh100"), passes=passes)
    emit(plan, directory)
    return plan


def batches(case: Case, graph: Graph) -> Batch:
    """Microbatch number to inputs by name."""
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]

    def batch(k: int) -> Mapping[str, Tensor]:
        args, target = case.batch(k)
        return dict(zip(names, flat(args, target), strict=True))

    return batch


Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def accumulated(
    case: Case, module: nn.Module, optimizer: Optimizer, steps: int, microbatches: int,
    clip: float | None = None,
) -> tuple[list[float], dict[str, Tensor]]:  # fmt: skip
    """Plain training in one process: every step accumulates the gradients of its microbatches."""
    module = copy.deepcopy(module)
    update, losses = optimizer(list(module.parameters())), []
    for step in range(steps):
        update.zero_grad()
        for k in range(step * microbatches, (step + 1) * microbatches):
            args, target = case.batch(k)
            loss = Loss(case.loss, target)
            value = loss(module(*args), list(loss.inputs.values()))
            value.backward()
            losses.append(float(value.detach()))
        for p in module.parameters():
            if p.grad is not None:
                p.grad /= microbatches
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        update.step()
    return losses, {n: w.detach() for n, w in module.state_dict().items()}
