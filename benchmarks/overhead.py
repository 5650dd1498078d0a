"""What the interpreter of schedules costs per action, and how that grows with microbatches.

    python -m benchmarks.overhead

One process runs both devices of a small plan whose graphs do nothing: what is left is the
interpreter, messages by reference, and the sums of small gradients. Processor time, so that a busy
machine matters little; every size is measured over as many actions. The bound beside it is what a
compute action of a benchmark's model takes.
"""

import argparse
import sys
import time

import torch
from torch import Tensor, fx, nn

from benchmarks._models import WORKLOADS, Mlp, loss_of
from benchmarks._ranks import pin
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import complete
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.stage import Callables
from pipec.schedule.registry import generate

PASSES = "simplify,annotate-cost,partition,insert-comm,differentiate,time-stages"


def nothing(module: fx.GraphModule) -> Callables:
    """Results of the right types, always the same."""
    node = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    values = [o.meta["val"] for o in node.args[0]]
    results = tuple(torch.zeros(v.shape, dtype=v.dtype) for v in values)
    return lambda *_: results


def plan_of(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Plan, Batch]:
    """Two stages of a model; every microbatch is the same."""
    graph = trace(model, (x,), loss=Loss(loss_of, y), source=Source("memory", ""))
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]
    given = dict(zip(names, (x, y), strict=True))
    plan = make_plan(graph, parse_cluster("2xcpu"), passes=parse_pipeline(PASSES))
    return plan, lambda _: given


def seconds(pipeline: LocalPipeline, samples: int, rounds: int = 1) -> float:
    """Fewest processor seconds of one round, over samples of so many rounds."""
    pipeline.round()
    found = []
    for _ in range(samples):
        start = time.process_time()
        for _ in range(rounds):
            pipeline.round()
        found.append((time.process_time() - start) / rounds)
    return min(found)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="8,64,512,4096", help="microbatches")
    parser.add_argument("--model", default="transformer")
    options = parser.parse_args()
    pin()
    plan, batch = plan_of(*WORKLOADS[options.model].make_seeded(1))
    order = complete(generate("1f1b", 2, 8), plan)
    real = seconds(LocalPipeline(plan, batch, Settings(sgd), schedule=order), 3)
    per_compute = real / sum(a.kind.is_compute for a in order) * 1e6
    print(f"{options.model}: {per_compute:.0f} us of processor per compute action, all included")
    plan, batch = plan_of(Mlp(6, 8), torch.randn(2, 8), torch.randint(0, 10, (2,)))
    print("microbatches  actions   us per action   growth   share of a compute action")
    first = None
    sizes = [int(size) for size in options.sizes.split(",")]
    for size in sizes:
        order = complete(generate("1f1b", 2, size), plan)
        settings = Settings(None, compiled=nothing)
        rounds = max(1, max(sizes) // size)  # every sample has as many actions
        took = seconds(LocalPipeline(plan, batch, settings, schedule=order), 5, rounds)
        each = took / len(order) * 1e6
        first = first or each
        share = each / per_compute
        print(f"{size:12} {len(order):8} {each:15.2f} {each / first:7.2f}x {share:12.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
