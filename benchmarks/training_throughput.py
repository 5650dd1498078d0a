"""Throughput of training against torch.distributed.pipelining: same cut, model, optimizer, threads.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/training_throughput.py

Both run in the same two processes on gloo and take turns, so that a busy machine slows both; the
figure is the median of the ratios of neighbouring measurements.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import completed
from pipec.frontends.trace import Loss, trace
from pipec.graph.extract import extract
from pipec.graph.ir import Source, origin
from pipec.graph.structure import structural_key
from pipec.passes.differentiate import Differentiate
from pipec.passes.insert_comm import InsertComm
from pipec.plan.model import Plan, Stage
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Settings
from pipec.schedule.registry import generate

MICROBATCHES, ROWS, LR = 8, 4, 0.01


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.n2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int = 8, width: int = 256, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Cnn(nn.Module):
    def __init__(self, blocks: int = 8, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, -2), target.flatten())


def workload(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Model, and a whole step's inputs and targets."""
    torch.manual_seed(0)
    rows = MICROBATCHES * ROWS
    if name == "transformer":
        ids = torch.randint(0, 1000, (rows, 65))
        return Transformer(), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Cnn(), torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))


def ours(model: nn.Module, x: Tensor, y: Tensor, schedule: str) -> Callable[[], float | None]:
    graph = trace(model, (x[:ROWS],), loss=Loss(loss_of, y[:ROWS]), source=Source("memory", ""))
    names = [n.name for n in graph.calls]
    at = next(k for k, n in enumerate(graph.calls) if origin(n).name.startswith("layers.4"))
    parts = [extract(graph, set(part), "Stage") for part in (names[:at], names[at:])]
    stages = tuple(Stage(k, g, structural_key(g)) for k, g in enumerate(parts))
    plan = Plan(graph, parse_cluster("2xh100"), stages=stages)
    plan = Differentiate().run(InsertComm().run(plan))
    order = completed(generate(schedule, 2, MICROBATCHES), plan)

    first = graph.inputs[-2].name

    def batch(k: int) -> dict[str, Tensor]:
        m = k % MICROBATCHES
        rows = slice(m * ROWS, (m + 1) * ROWS)
        return {first: x[rows], "target": y[rows]}

    def optimizer(p: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=LR)

    pipeline = DistributedPipeline(plan, batch, Settings(optimizer), schedule=order)

    def step() -> float | None:
        losses = pipeline.round().losses
        return float(sum(losses.values())) / len(losses) if losses else None

    return step


def theirs(model: nn.Module, x: Tensor, y: Tensor, schedule: str) -> Callable[[], float | None]:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline

    rank = dist.get_rank()
    cut = {"layers.4": SplitPoint.BEGINNING}
    pipe = pipeline(model, mb_args=(x[:ROWS],), split_spec=cut)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[schedule]
    runner = kind(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=LR)

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            runner.step(x)
        else:
            runner.step(target=y, losses=losses)
        optimizer.step()
        return float(sum(losses)) / len(losses) if losses else None

    return step


def timed(step: Callable[[], float | None], repeats: int) -> tuple[float, float | None]:
    dist.barrier()
    begin, loss = time.perf_counter(), None
    for _ in range(repeats):
        loss = step()
    dist.barrier()
    return MICROBATCHES * ROWS * repeats / (time.perf_counter() - begin), loss


def compare(name: str, schedule: str, windows: int, repeats: int) -> None:
    """Print medians of both and of their ratio."""
    import copy

    model, x, y = workload(name)
    steps = [
        ours(copy.deepcopy(model), x, y, schedule), theirs(copy.deepcopy(model), x, y, schedule)
    ]  # fmt: skip
    losses = [timed(step, 2)[1] for step in steps]
    speeds: list[list[float]] = [[], []]
    for window in range(windows):
        for k in (0, 1) if window % 2 == 0 else (1, 0):
            speeds[k].append(timed(steps[k], repeats)[0])
    ratio = statistics.median(a / b for a, b in zip(*speeds, strict=True))
    if dist.get_rank() == 1:
        a, b = (statistics.median(s) for s in speeds)
        print(
            f"{name:12} {schedule:6} pipec {a:7.1f} torch {b:7.1f} samples/s  ratio {ratio:.3f}  "
            f"best {max(speeds[0]):.1f} / {max(speeds[1]):.1f}  "
            f"loss after 2 steps {losses[0]:.5f} / {losses[1]:.5f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with process_group(timedelta(minutes=5)):
        for name in ("transformer", "cnn"):
            for schedule in ("1f1b", "gpipe"):
                compare(name, schedule, options.windows, options.repeats)


if __name__ == "__main__":
    main()
