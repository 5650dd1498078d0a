"""One rank of a test: runs several plans and compares them with the same in one process."""

import sys
from datetime import timedelta

import torch

from pipec.frontends.trace import trace
from pipec.graph.extract import extract
from pipec.graph.ir import Graph, Source
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.module import StageModule
from tests.autodiff.chain import worst
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged, staged_graph

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
    ],
}


def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def main(world: int) -> None:
    torch.set_num_threads(1)
    with process_group(timedelta(seconds=120)) as rank:
        for name, stages, schedule, options, clip in RUNS[world]:
            case = CASES[name]
            plan = staged(case, seeded(case), stages)
            order = scheduled(plan, schedule, 12, **options)
            settings, batch = Settings(optimizer, clip=clip), batches(case, plan.graph)
            here = DistributedPipeline(plan, batch, settings, schedule=order)
            for _ in range(2):
                here.round()
            weights = here.state_dict()
            if weights is not None:
                alone = LocalPipeline(plan, batch, settings, schedule=order)
                alone.run(2)
                error = worst(weights, alone.state_dict())
                sys.stdout.write(f"RESULT {name} {schedule}: {error:.1e}\n")
                sys.stdout.flush()
        if world == 2:
            torchs_own_schedules(rank)


def torchs_own_schedules(rank: int) -> None:
    """Our stages run unchanged under torch's schedules, and give our losses and weights."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    case = CASES["mlp"]  # torch runs a stage on empty tensors first, which spoils a BatchNorm
    model = seeded(case)
    graph = trace(model, case.batch(0)[0], source=Source("memory", "test"))
    plan = staged_graph(graph, cut_once(graph))
    data = [case.batch(k) for k in range(4)]
    x = torch.cat([d[0][0] for d in data])
    y = torch.cat([d[1] for d in data])  # type: ignore[misc]
    for kind, schedule in ((Schedule1F1B, "1f1b"), (ScheduleGPipe, "gpipe")):
        module = StageModule(plan.stages[rank], graph.weights)
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        runner = kind(stage, 4, loss_fn=case.loss)
        losses: list[torch.Tensor] = []
        if rank == 0:
            runner.step(x)
        else:
            runner.step(target=y, losses=losses)
        optimizer(list(module.parameters())).step()
        parts: list[dict[str, torch.Tensor]] | None = None if rank else [{}, {}]
        dist.gather_object(module.state_dict(), parts)
        if parts is not None:
            _, want = accumulated(case, model, optimizer, 1, 4)
            error = worst({**parts[0], **parts[1]}, want)
            sys.stdout.write(f"RESULT torch's {schedule}: {error:.1e}\n")
            sys.stdout.flush()


def cut_once(graph: Graph) -> list[Graph]:
    """Two parts with one value between them."""
    names = [n.name for n in graph.calls]
    middle = 1 + next(k for k, n in enumerate(graph.calls) if "tanh" in str(n.target))
    return [extract(graph, set(part), "Stage") for part in (names[:middle], names[middle:])]


if __name__ == "__main__":
    main(int(sys.argv[1]))
