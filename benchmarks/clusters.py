"""Measured iterations of GPT models on GPU clusters, beside what the roofline predicts, unfitted.

``python -m benchmarks.clusters [FILE.csv ...]`` reads files with vTrain's columns (Bang et al.,
MICRO'24; by default those in PIPEC_DATA) and predicts every row without tensor parallelism: one
layer, the embedding and the head are traced and costed as any model is, layers are spread evenly
as Megatron-LM does, and 1F1B is simulated with the all-reduce behind it. Nothing is fitted: figures
of the A100 are its data sheet's, so what a kernel leaves of the peak is all in the error.
"""

import csv
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.frontends.torch_module import from_module
from pipec.plan.model import Plan
from pipec.schedule.comm import insert_comm
from pipec.schedule.registry import generate
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[2] / "shared" / "data")) / "gpu"
VOCABULARY = 51_200
"""Megatron-LM's padded one of GPT-2; the files do not say."""
NUMBER = 2  # bytes of weights, gradients and activations in half precision
OPTIMIZER = 28  # bytes that Adam in mixed precision reads and writes per weight
NODE, NETWORK = 8, 100e9  # GPUs of one node; bytes/s that they share between nodes (4 x 200 Gb/s)
FIRST = 3  # plans of a group whose order is compared
GPU = parse_cluster("1xa100").devices[0]


class Layer(nn.Module):
    """A GPT layer: attention and a perceptron of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Through attention, then the perceptron; [batch, tokens, width]."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        q, k, v = parts.chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Head(nn.Module):
    """The last norm, the logits and their loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [batch, tokens, vocabulary]."""
        out: Tensor = self.logits(self.norm(x))
        return out


@dataclass(frozen=True)
class Row:
    """One measured iteration.

    Attributes:
        file: Where it stands.
        gpus: How many there are.
        batch: Sequences of one step.
        micro: Of one microbatch.
        width: Hidden size.
        heads: Of attention.
        layers: How many.
        tokens: Per sequence.
        data: Pipelines side by side.
        stages: Of one pipeline.
        seconds: Measured.
    """

    file: str
    gpus: int
    batch: int
    micro: int
    width: int
    heads: int
    layers: int
    tokens: int
    data: int
    stages: int
    seconds: float

    @property
    def group(self) -> tuple[str, int, int, int, int, int]:
        """Rows that differ in the plan alone."""
        return self.file, self.gpus, self.batch, self.width, self.layers, self.tokens

    @property
    def plan(self) -> str:
        """What varies within a group."""
        return f"data {self.data} x pipeline {self.stages}, microbatch {self.micro}"


def read(path: Path) -> Iterator[Row]:
    """Rows without tensor parallelism."""
    names = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers")
    names += ("sequence length", "data parallelism", "pipeline parallelism")
    with path.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if int(row["tensor parallelism"]) == 1:
                numbers = [int(row[name]) for name in names]
                yield Row(path.name, *numbers, float(row["iteration time (ms)"]) / 1e3)


@cache
def seconds_of(kind: str, micro: int, tokens: int, width: int, heads: int) -> tuple[float, float]:
    """Forward and backward of one layer, or of the head, on one microbatch."""
    with torch.device("meta"):
        module = Layer(width, heads) if kind == "layer" else Head(width)
        x = torch.zeros(micro, tokens, width, dtype=torch.bfloat16)
    graph = from_module(module.to(torch.bfloat16), (x,)).graph
    plan = run_passes(
        parse_pipeline("simplify,annotate-cost"), Plan(graph, parse_cluster("1xa100"))
    )
    assert plan.costs is not None
    forward, backward = plan.costs.of("a100"), plan.costs.backward_of("a100")
    names = [n.name for n in plan.graph.calls]
    return sum(forward[n] for n in names), sum(backward[n] for n in names)


def predict(row: Row) -> float:
    """Seconds of one step: 1F1B, then the all-reduce and Adam of the largest stage."""
    p, each = row.stages, (row.micro, row.tokens, row.width, row.heads)
    counts = [row.layers * (k + 1) // p - row.layers * k // p for k in range(p)]
    layer, head = seconds_of("layer", *each), seconds_of("head", *each)
    times = [[n * part for n in counts] for part in layer]
    for side, part in zip(times, head, strict=True):
        side[-1] += part
    size = NUMBER * row.micro * row.tokens * row.width
    apart = row.gpus > NODE
    link = NETWORK / NODE if apart else GPU.link_bandwidth
    schedule = insert_comm(generate("1f1b", p, row.batch // (row.micro * row.data)))
    step = simulate(schedule, Times.of_stages(*times, comm=size / link if p > 1 else 0.0)).seconds
    weights = 12 * row.width**2 * max(counts) + VOCABULARY * row.width
    shared = NETWORK if apart else GPU.link_bandwidth
    reduce = 2 * (row.data - 1) / row.data * NUMBER * weights / shared
    return step + reduce + OPTIMIZER * weights / GPU.memory_bandwidth


def _order(rows: list[tuple[Row, float]]) -> bool:
    """Whether the best plans of a group are predicted in the order that was measured."""
    measured = sorted(rows, key=lambda pair: pair[0].seconds)[:FIRST]
    predicted = sorted(rows, key=lambda pair: pair[1])[:FIRST]
    return [r for r, _ in measured] == [r for r, _ in predicted]


def main(paths: list[Path]) -> None:
    """Print rows, groups and a summary."""
    rows = [(row, predict(row)) for path in paths for row in read(path)]
    if not rows:
        print("no rows: name files with vTrain's columns, or set PIPEC_DATA")
        return
    groups = defaultdict(list)
    for row, seconds in rows:
        groups[row.group].append((row, seconds))
        print(
            f"{row.file:18} {row.gpus:3} GPUs, {row.width:5} x {row.layers:2} layers, batch "
            f"{row.batch:4}, {row.plan:36} measured {row.seconds:9.4f} s  predicted "
            f"{seconds:9.4f} s  {seconds / row.seconds - 1:+7.1%}"
        )
    several = {k: v for k, v in groups.items() if len(v) > 1}
    for key, found in several.items():
        best = min(found, key=lambda pair: pair[0].seconds)[0]
        print(f"{key}: {len(found)} plans, best {best.plan}, order right: {_order(found)}")
    off = [abs(seconds / row.seconds - 1) for row, seconds in rows]
    right = mean(_order(found) for found in several.values()) if several else 1.0
    print(
        f"{len(rows)} rows: mean error {mean(off):.1%} (want 10 %), worst {max(off):.1%} (want "
        f"25 %); best {FIRST} plans in the right order in {right:.0%} of {len(several)} groups "
        "(want 90 %); nothing fitted"
    )


if __name__ == "__main__":
    default = [DATA / "vtrain_single.csv", DATA / "vtrain_multi.csv"]
    given = [Path(name) for name in sys.argv[1:]]
    main(given or [path for path in default if path.is_file()])
