"""Several plans run by ranks, compared with the same in one process."""

import contextlib
import itertools
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import pipec
from pipec.cli.main import main
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.compiler.endless import endless
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import trace
from pipec.graph.ir import Graph, InputKind, OutputKind, Source
from pipec.graph.written import extract
from pipec.pipeline.pipeline import Pipeline
from pipec.plan.store import load_plan
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Executor, Settings
from pipec.runtime.metrics import Step
from pipec.runtime.module import StageModule
from pipec.runtime.placing import links
from pipec.runtime.process_group import ProcessGroupTransport
from pipec.runtime.program import Program
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.stored import open_weights
from pipec.runtime.train import infer, train
from pipec.runtime.weights import OptimizerFactory
from pipec.schedule.csv_form import to_csv
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.eager_models import Sometimes
from tests.runtime.pipelines import (
    accumulated,
    batches,
    scheduled,
    staged,
    staged_graph,
)
from tests.runtime.processes import print_to
from tests.runtime.ranks import PATIENCE

RUNS: dict[int, list[tuple[str, int, str, dict[str, object], float | None]]] = {
    2: [
        ("cnn", 2, "1f1b", {}, None),
        ("bert", 2, "gpipe", {}, 0.5),
        ("long skip", 4, "zbv", {}, None),
        ("many in and out", 4, "interleaved", {}, 0.1),
        ("dropout", 2, "pipedream", {}, None),
        ("mlp", 1, "pipefb", {}, None),
    ],
    4: [
        ("cnn", 2, "pipefb", {}, None),
        ("mlp", 2, "pipedream", {"replicas": [3, 1]}, None),
        ("llama", 8, "zbv", {}, None),
        ("gpt-2", 4, "1f1b", {}, 0.1),
        ("bert", 2, "1f1b", {"replicas": 2}, 0.1),
    ],
}


def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def prepared(world: int, directory: Path) -> None:
    """Write the plans of all runs, so that no rank must trace and differentiate them."""
    for k, (name, stages, schedule, options, _) in enumerate(RUNS[world]):
        case = CASES[name]
        plan = staged(case, seeded(case), stages)
        order = scheduled(plan, schedule, 12, **options)
        emit(plan.replace(schedule=order), directory / str(k))


def compared(world: int, directory: Path) -> dict[str, float]:
    """On rank 0: run to the largest relative error of its weights."""
    found: dict[str, float] = {}
    with process_group(PATIENCE):
        for k, (name, _, schedule, _, clip) in enumerate(RUNS[world]):
            plan = load_plan(directory / str(k))
            settings, batch = Settings(optimizer, clip=clip), batches(CASES[name], plan.graph)
            order = endless(plan)
            here = DistributedPipeline(plan, batch, settings, schedule=order)
            for _ in range(2):
                here.round()
            here.drain()
            weights = here.state_dict()
            if weights is not None:
                alone = LocalPipeline(plan, batch, settings, schedule=order)
                alone.run(2)
                found[f"{name} {schedule}"] = worst(weights, alone.state_dict())
    return found


def judged(
    directory: Path, batch: Batch, settings: Settings, rounds: int
) -> tuple[list[int], dict[str, torch.Tensor] | None]:
    """Rounds whose update this rank has left out; the weights on rank 0."""
    steps: list[Step] = []
    with process_group(PATIENCE):
        pipeline = DistributedPipeline(load_plan(directory), batch, settings)
        train(pipeline, rounds, [steps.append])
        weights = pipeline.state_dict()
    return [s.step for s in steps if s.skipped], weights


SPARSE = Case(lambda: nn.Sequential(Sometimes(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)),
              nn.functional.cross_entropy, floats(4, 8, classes=5))  # fmt: skip


def sparse_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four microbatches; only in the first step one of them reaches the first layer's weights."""
    parts = [SPARSE.batch(4 * step + k) for k in range(4)]
    x = torch.cat([inputs[0] for inputs, _ in parts])
    x[:, 0] = -x[:, 0].abs()
    x[4, 0] *= -1 if step == 0 else 1
    return x, torch.cat([target for _, target in parts])  # type: ignore[misc]


def sparse_alone(optimizer: OptimizerFactory, steps: int) -> dict[str, torch.Tensor]:
    """What a plain loop makes of it."""
    model = seeded(SPARSE)
    update = optimizer(list(model.named_parameters()))
    for step in range(steps):
        update.zero_grad()
        for x, target in zip(*(t.split(4) for t in sparse_batch(step)), strict=True):
            (SPARSE.loss(model(x), target) / 4).backward()
        update.step()
    return {n: w.detach() for n, w in model.state_dict().items()}


def sparse(optimizer: OptimizerFactory, stages: int) -> dict[str, torch.Tensor] | None:
    """The same in two replicas; on rank 0 in a group."""
    x, target = sparse_batch(0)
    plan = pipec.compile(
        seeded(SPARSE), x[4:8], f"{2 * stages}xcpu", loss=(SPARSE.loss, target[4:8]), eager=True,
        stages=stages, schedule="1f1b{replicas=2}", microbatches=4,
    )  # fmt: skip
    with Pipeline(plan, optimizer=optimizer, timeout=PATIENCE) as pipeline:
        for step in range(3):
            pipeline.step(sparse_batch(step))
        found = pipeline.state_dict()
    assert (found is None) == (pipeline.rank > 0), "each rank knows its number once all is closed"
    return found


def deep(device: str) -> nn.Sequential:
    """Layers of the same size."""
    with torch.device(device):
        return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)])


def lazily(folder: Path) -> tuple[int, bool]:
    """Most bytes that this rank takes while it gets its weights, and whether all are right.

    The model itself has none; they come from shards in the folder.
    """
    graph = from_module(deep("meta"), torch.zeros(4, 2048, device="meta")).graph
    plan = make_plan(graph, parse_cluster("2xh100"), passes=default_passes(schedule="inference"))
    with process_group(PATIENCE):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmHWM")
        with Pipeline(plan, weights=folder) as pipeline:
            taken = _status("VmHWM") - before
            weights = pipeline.state_dict() or {}
        return taken, all(
            torch.equal(w, weights[n]) for n, w in open_weights(folder).items() if weights
        )


def _status(name: str) -> int:
    """Bytes, from what Linux says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def warmed_up() -> dict[str, float]:
    """On rank 0: a flush for the first rounds, then PipeDream with other groups of ranks."""
    with process_group(PATIENCE):
        case = CASES["long skip"]
        plan = staged(case, seeded(case), 2)
        first, then = (scheduled(plan, name, 4) for name in ("1f1b", "pipedream"))
        batch = batches(case, plan.graph)
        runs = [
            kind(plan, batch, Settings(optimizer), schedule=first)
            for kind in (DistributedPipeline, LocalPipeline)
        ]
        for run in runs:
            run.round()
            run.load(then)
            run.round()
        here, alone = (run.state_dict() for run in runs)
        return {} if here is None or alone is None else {"error": worst(here, alone)}


def with_a_group_per_link() -> dict[str, float]:
    """The same with the groups that NCCL needs: messages match by their order alone."""
    with process_group(PATIENCE) as rank:
        case = CASES["long skip"]
        plan = staged(case, seeded(case), 4)
        order = scheduled(plan, "interleaved", 6, chunks=2)
        program, batch = Program.of(plan, order), batches(case, plan.graph)
        cpu = torch.device("cpu")
        transport = ProcessGroupTransport(cpu, ())
        transport.connect(program.groups(), links(program))
        mine = Executor(program, rank, transport, batch, Settings(optimizer), plan.graph.weights)
        mine.start()
        while not mine.finished:
            assert mine.advance()
        mine.end()
        alone = LocalPipeline(plan, batch, Settings(optimizer), schedule=order)
        alone.run(1)
        found, want = (
            {n: w for s in e.weights for n, w in e.read_state(s).items()}
            for e in (mine, alone.executors[rank])
        )
        return {f"rank {rank}": worst(found, want)}


def _deep() -> nn.Module:
    layers = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(16, 5))


_LOSS = nn.functional.cross_entropy
_DEEP = Case(_deep, _LOSS, floats(4, 16))


def inferred(directory: Path) -> dict[str, torch.Tensor] | None:
    """The outputs of two rounds of an inference plan; None but on rank 0."""
    with process_group(PATIENCE):
        plan = load_plan(directory)
        names = [i.name for i in plan.graph.inputs_of(InputKind.INPUT)]
        pipeline = DistributedPipeline(
            plan, lambda k: dict(zip(names, _DEEP.batch(k)[0], strict=True))
        )
        return infer(pipeline, 2)


def inference_plan(directory: Path) -> nn.Module:
    """Write a plan of two stages, each of which yields an output; its model."""
    model = TwoOutputs().eval()
    graph = from_module(model, _DEEP.batch(0)[0]).graph
    passes = default_passes(stages=2, schedule="inference", microbatches=3)
    plan = make_plan(graph, parse_cluster("2xh100"), passes=passes)
    assert all(s.graph.outputs_of(OutputKind.OUTPUT) for s in plan.stages)
    emit(plan, directory)
    return model


class TwoOutputs(nn.Module):
    """One output from the first half, one from the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.halves = nn.ModuleList([_deep(), nn.Sequential(nn.Linear(5, 16), _deep())])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.halves[0](x)
        return {"early": y, "late": self.halves[1](y)}


TORCH = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb-h1": 1, "zbv": 2}
"""Schedules that torch's own runtime is given, with the stages per rank."""


def torchs_own_schedules() -> dict[str, float]:
    """On rank 0: our stages under torch's schedule classes, and under its runtime with our CSV."""
    found: dict[str, float] = {}
    with process_group(PATIENCE) as rank:
        found["torch's 1f1b"] = _under_torch(
            rank, [rank], 2, lambda stages: Schedule1F1B(stages[0], 4, loss_fn=_LOSS)
        )
        found["torch's gpipe"] = _under_torch(
            rank, [rank], 2, lambda stages: ScheduleGPipe(stages[0], 4, loss_fn=_LOSS)
        )
        found["torch's interleaved"] = _under_torch(
            rank, [rank, rank + 2], 4,
            lambda stages: ScheduleInterleaved1F1B(stages, 4, loss_fn=_LOSS),
        )  # fmt: skip
        found["torch's zbv"] = _under_torch(
            rank, [rank, 3 - rank], 4,
            lambda stages: ScheduleZBVZeroBubble(stages, 4, loss_fn=_LOSS),
        )  # fmt: skip
        for (name, chunks), sends in itertools.product(TORCH.items(), (False, True)):
            order = generate(
                name, 2 * chunks, 4, **({"chunks": 2} if name == "interleaved" else {})
            )
            mine = [s for s, devices in enumerate(order.placement.forward) if rank in devices]

            def loaded(stages: list[Any], order: Schedule = order, sends: bool = sends) -> Any:
                runtime = _PipelineScheduleRuntime(stages, 4, loss_fn=_LOSS)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "schedule.csv"
                    path.write_text(to_csv(lower(order) if sends else order))
                    runtime._load_csv(str(path), "compute_comms" if sends else "compute_only")
                return runtime

            key = f"our {name}{' with sends' * sends}"
            found[key] = _under_torch(rank, mine, 2 * chunks, loaded)
    return found if rank == 0 else {}


def _under_torch(rank: int, mine: list[int], count: int, make: Callable[[list[Any]], Any]) -> float:
    """Error of the weights after one step of a schedule of torch's, on rank 0."""
    case = _DEEP  # torch runs a stage on empty tensors first, which would spoil a BatchNorm
    model = seeded(case)
    graph = trace(model, case.batch(0)[0], source=Source("memory", "test"))
    plan = staged_graph(graph, one_value_between(graph, count))
    data = [case.batch(k) for k in range(4)]
    x = torch.cat([d[0][0] for d in data])
    y = torch.cat([d[1] for d in data])  # type: ignore[misc]
    modules = [StageModule(plan, s) for s in mine]
    cpu = torch.device("cpu")
    runner = make([PipelineStage(m, s, count, cpu) for m, s in zip(modules, mine, strict=True)])
    given: dict[str, Any] = {"target": y, "losses": []} if count - 1 in mine else {}
    runner.step(*([x] if 0 in mine else []), **given)
    for module in modules:
        optimizer(list(module.parameters())).step()
    parts: list[dict[str, torch.Tensor]] | None = None if rank else [{}, {}]
    dist.gather_object({n: w for m in modules for n, w in m.state_dict().items()}, parts)
    if parts is None:
        return 0.0
    _, want = accumulated(case, model, optimizer, 1, 4)
    return worst({**parts[0], **parts[1]}, want)


class Partly(nn.Module):
    """The second layer is frozen; the third one's weight has a second name and is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.layers[1].requires_grad_(False)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.layers[2].weight  # type: ignore[assignment]
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.layers, self.again):
            x = torch.tanh(layer(x))
        found: torch.Tensor = self.head(x)
        return found


_PARTLY = Case(Partly, _LOSS, floats(4, 16))
Wrap = Callable[[StageModule, dist.ProcessGroup], nn.Module]


def _sharded(module: StageModule, group: dist.ProcessGroup) -> nn.Module:
    fully_shard(module, mesh=DeviceMesh.from_group(group, "cpu"))
    return module


WRAPPED: dict[str, Wrap] = {
    "DDP": lambda module, group: DistributedDataParallel(module, process_group=group),
    "fully_shard": _sharded,
}


def replicated() -> dict[str, float]:
    """On rank 0: error of 2 stages x 2 replicas of our modules under torch's wrappers."""
    with process_group(PATIENCE) as rank:
        pipes, copies = ([dist.new_group(g) for g in groups]
                         for groups in (([0, 1], [2, 3]), ([0, 2], [1, 3])))  # fmt: skip
        pipe, group = pipes[rank // 2], copies[rank % 2]
        found = {n: _replicated(rank, pipe, group, wrap) for n, wrap in WRAPPED.items()}
    return found if rank == 0 else {}


def _replicated(rank: int, pipe: dist.ProcessGroup, group: dist.ProcessGroup, wrap: Wrap) -> float:
    stage, replica, model = rank % 2, rank // 2, seeded(_PARTLY)
    graph = trace(model, _PARTLY.batch(0)[0], source=Source("memory", "test"))
    plan = staged_graph(graph, one_value_between(graph, 2))
    module = StageModule(plan, stage)
    wrapped = wrap(module, group)
    runner = Schedule1F1B(
        PipelineStage(wrapped, stage, 2, torch.device("cpu"), group=pipe), 4, loss_fn=_LOSS
    )
    update = optimizer(list(wrapped.parameters()))
    for step in range(2):
        data = [_PARTLY.batch(8 * step + 4 * replica + k) for k in range(4)]
        x = torch.cat([d[0][0] for d in data])
        y = torch.cat([d[1] for d in data])  # type: ignore[misc]
        given: dict[str, Any] = {"target": y} if stage else {}
        runner.step(*([] if stage else [x]), **given)
        update.step()
        update.zero_grad()
    mine = {n: w.full_tensor() if isinstance(w, DTensor) else w
            for n, w in module.state_dict().items()}  # fmt: skip
    parts: list[dict[str, torch.Tensor]] | None = None if rank else [{}, {}, {}, {}]
    dist.gather_object(mine, parts)
    if parts is None:
        return 0.0
    _, want = accumulated(_PARTLY, model, optimizer, 2, 8)
    assert parts[0].keys() | parts[1].keys() == want.keys()
    return max(worst({**parts[k], **parts[k + 1]}, want) for k in (0, 2))


def one_value_between(graph: Graph, count: int) -> list[Graph]:
    """Parts with one value between any two: cut behind activations."""
    names = [n.name for n in graph.calls]
    ends = [k + 1 for k, n in enumerate(graph.calls) if "tanh" in str(n.target)]
    bounds = [0, *ends[: count - 1], len(names)]
    return [extract(graph, set(names[a:b]), "Stage") for a, b in itertools.pairwise(bounds)]


def command(directory: Path, words: list[list[str]]) -> None:
    """The command line, with the words of each rank; its errors go to ``says<rank>``."""
    rank = int(os.environ["RANK"])
    sys.argv = ["pipec", *words[rank]]
    with (directory / f"says{rank}").open("w") as said, contextlib.redirect_stderr(said):
        main()


def script(words: list[str], said: Path, folder: Path) -> None:
    """A program with its arguments, in a folder; what it prints is in ``said``."""
    print_to(said, folder)
    sys.argv = words
    sys.path.insert(0, str(folder))
    runpy.run_path(words[0], run_name="__main__")
