"""Iterations of GPT models on GPU clusters, beside what pipec predicts, unfitted.

``python -m benchmarks.clusters [--costs roofline] [--json] [FILE.csv ...]`` reads files with
vTrain's columns (Bang et al., MICRO'24; by default those in PIPEC_DATA) and predicts every row
without tensor parallelism: embedding, one layer and the head of `benchmarks._megatron` are traced
and costed as any model is, layers are spread evenly as Megatron-LM does, and what the stages take
goes to the predictor of all plans (`pipec.compiler.timeline`). Kernels take what the tables of
``--costs silicon:a100`` say, or the roofline where that package is missing. No figure comes from
the iterations; docs/clusters.md says where each comes from.
"""

import argparse
import csv
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks._megatron import Embedding, Head, Layer
from pipec.cluster.cluster import Cluster, Link, all_reduce_seconds, parse_cluster
from pipec.compiler.complete import assemble
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.timeline import timeline_of
from pipec.cost import silicon as tables
from pipec.cost.silicon import PREFIX, load_silicon, with_tables
from pipec.cost.stage import MessageCost, StageCost
from pipec.errors import CostError
from pipec.frontends.torch_module import from_module
from pipec.plan.facts import Facts, StageFacts
from pipec.plan.model import Plan
from pipec.schedule.channels import value
from pipec.schedule.registry import generate

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[2] / "shared" / "data")) / "gpu"
NUMBER = 2  # bytes of weights, gradients and activations in half precision
OPTIMIZER = 28  # bytes that Adam in mixed precision reads and writes per weight
HELD = 16  # bytes per weight: it, its gradient, and a copy and two moments of Adam in float32
RESERVED = 4.17e9  # bytes of context, libraries and NCCL (aiconfigurator-core, a100_sxm.yaml)
NODE, NETWORK = 8, 100e9  # GPUs of one node; bytes/s that they share between nodes (4 x 200 Gb/s)
FIRST = 3  # plans of a group whose order is compared


@dataclass(frozen=True)
class Row:
    """One measured iteration.

    Attributes:
        file: File that it stands in.
        gpus: Number of GPUs.
        batch: Sequences of one step.
        micro: Sequences of one microbatch.
        width: Hidden size.
        heads: Heads of attention.
        layers: Number of layers.
        tokens: Per sequence.
        data: Pipelines side by side.
        stages: Stages of one pipeline.
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
    def vocabulary(self) -> int:
        """GPT-2's: as it is in vTrain's model of one node, padded to 128 by Megatron-LM."""
        return 50_257 if self.gpus <= NODE else 50_304

    @property
    def layers_of(self) -> list[int]:
        """Layers of every stage."""
        p = self.stages
        return [self.layers * (k + 1) // p - self.layers * k // p for k in range(p)]

    @property
    def weights(self) -> list[int]:
        """Weights of every stage; the head has a matrix of its own."""
        found = [count * (12 * self.width + 13) * self.width for count in self.layers_of]
        found[0] += (self.vocabulary + self.tokens) * self.width
        found[-1] += self.vocabulary * self.width
        return found

    def recomputes(self, memory: float) -> bool:
        """Whether the activations of some stage do not fit: s b h (34 + 5 a s / h) bytes per layer.

        Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
        MLSys'23, eq. 1; stage k of p holds p - k microbatches in 1F1B.
        """
        one = self.tokens * self.micro * self.width * 34
        one += 5 * self.heads * self.tokens**2 * self.micro
        count = self.batch // (self.micro * self.data)
        flying = [min(self.stages - k, count) for k in range(self.stages)]
        needed = [
            HELD * w + one * n * f
            for w, n, f in zip(self.weights, self.layers_of, flying, strict=True)
        ]
        return max(needed) > memory

    @property
    def plan(self) -> str:
        """What varies within a group."""
        return f"data {self.data} x pipeline {self.stages}, microbatch {self.micro}"


def read_rows(path: Path) -> Iterator[Row]:
    """Rows without tensor parallelism."""
    names = [
        "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers",
        "sequence length", "data parallelism", "pipeline parallelism",
    ]  # fmt: skip
    with path.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if int(row["tensor parallelism"]) == 1:
                numbers = [int(row[name]) for name in names]
                fields: list[Any] = [path.name, *numbers, float(row["iteration time (ms)"]) / 1e3]
                yield Row(*fields)


class Both(NamedTuple):
    """Seconds of a forward and of its backward."""

    forward: float
    backward: float


@cache
def cluster_of(costs: str) -> Cluster:
    """One A100, timed by its roofline or by tables."""
    cluster = parse_cluster("1xa100")
    return with_tables(cluster, costs) if costs.startswith(PREFIX) else cluster


@cache
def seconds_of(kind: str, costs: str, micro: int, tokens: int, width: int, more: int) -> Both:
    """Of the embedding, a layer or the head on a microbatch; ``more``: its words, or its heads."""
    words = torch.zeros(tokens, micro, dtype=torch.int64, device="meta")
    x = torch.zeros(tokens, micro, width, dtype=torch.bfloat16, device="meta")
    made: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
        "embedding": lambda: (Embedding(width, more, tokens), words),
        "layer": lambda: (Layer(width, more), x),
        "head": lambda: (Head(width, more), x),
    }
    with torch.device("meta"):
        module, given = made[kind]()
    cluster = cluster_of(costs)
    graph = from_module(module.to(torch.bfloat16), (given,)).graph
    plan = run_passes(parse_pipeline("simplify,annotate-cost"), Plan(graph, cluster))
    assert plan.costs is not None
    device = cluster.devices[0]
    rows = plan.costs.of(device.kind), plan.costs.backward_of(device.kind)
    return Both(*(sum(row.values()) for row in rows))


def predict(row: Row, costs: str) -> float:
    """Seconds of one step of 1F1B, every replica with a whole step of Adam in mixed precision."""
    gpu, each = cluster_of(costs).devices[0], (row.micro, row.tokens, row.width)
    layer = seconds_of("layer", costs, *each, row.heads)
    again = layer.forward if row.recomputes(gpu.memory_bytes - RESERVED) else 0.0
    forward = [n * layer.forward for n in row.layers_of]
    backward = [n * (layer.backward + again) for n in row.layers_of]
    for kind, stage in (("embedding", 0), ("head", -1)):
        part = seconds_of(kind, costs, *each, row.vocabulary)
        forward[stage] += part.forward
        backward[stage] += part.backward
    stages = [
        StageFacts(
            gpu.kind,
            StageCost(f, B=b, I=b / 2, W=b / 2, step=row.data * OPTIMIZER * w / gpu.memory_rate),
            gradients=NUMBER * w,
        )
        for f, b, w in zip(forward, backward, row.weights, strict=True)  # no replica has a share
    ]
    cluster = Cluster((gpu,) * (row.stages * row.data))
    facts = Facts(cluster, tuple(stages), trains=True, messages=_messages(cluster, row))
    order = generate("1f1b", row.stages, row.batch // row.micro, replicas=row.data)
    size = NUMBER * row.micro * row.tokens * row.width
    channels = [
        channel
        for k in range(row.stages - 1)
        for channel in value(f"s{k}.s{k + 1}", k, k + 1, size, depth=2, gradient=True)
    ]
    return timeline_of(facts, assemble(order.replace(channels=()), channels)).seconds


def _messages(cluster: Cluster, row: Row) -> dict[str, MessageCost]:
    """As measured within a node; between nodes each GPU has a part of what a ring has alone."""
    gpu, sizes, none = cluster.devices[0], (0, 1 << 30), (0.0, 0.0)
    if row.gpus > NODE:
        way = tuple(Link(NETWORK / NODE, gpu.link_latency).seconds(float(n)) for n in sizes)
        ring = tuple(all_reduce_seconds(Link(NETWORK), 2, n) for n in sizes)
        return {gpu.kind: MessageCost(sizes, way, none, none, ring)}
    measured = load_silicon(gpu.tables).messages(cluster, gpu.kind) if gpu.tables else None
    return {gpu.kind: measured} if measured else {}


def _order(rows: list[tuple[Row, float]]) -> bool:
    """Whether the best plans of a group are predicted in the order that was measured."""
    measured = sorted(rows, key=lambda pair: pair[0].seconds)[:FIRST]
    predicted = sorted(rows, key=lambda pair: pair[1])[:FIRST]
    return [r for r, _ in measured] == [r for r, _ in predicted]


def parts(rows: list[tuple[Row, float]]) -> Iterator[tuple[str, list[float]]]:
    """Signed errors: of all rows, and by what varies among them."""
    by: dict[str, Callable[[Row], object]] = {
        "all": lambda _: "",
        "file": lambda r: r.file,
        "pipeline": lambda r: "1" if r.stages == 1 else "above 1",
        "data parallel": lambda r: r.data,
        "width": lambda r: r.width,
        "microbatch": lambda r: r.micro,
        "layers": lambda r: r.layers,
    }
    for name, key in by.items():
        for part in sorted({key(r) for r, _ in rows}, key=lambda v: (len(str(v)), str(v))):
            chosen = [s / r.seconds - 1 for r, s in rows if key(r) == part]
            yield f"{name} {part}".strip(), chosen


def main(paths: list[Path], costs: str, *, as_json: bool) -> None:
    """Print rows, groups and a summary."""
    rows = [(row, predict(row, costs)) for path in paths for row in read_rows(path)]
    if as_json:
        print(json.dumps([{**asdict(row), "predicted": s} for row, s in rows], indent=1))
        return
    if not rows:
        print("no rows: name files with vTrain's columns, or set PIPEC_DATA")
        return
    groups = defaultdict(list)
    for row, seconds in rows:
        groups[row.group].append((row, seconds))
        print(
            f"{row.file:18} {row.gpus:3} GPUs, {row.width:5} x {row.layers:2} layers, batch "
            f"{row.batch:4}, {row.plan:36} given {row.seconds:9.4f} s  predicted "
            f"{seconds:9.4f} s  {seconds / row.seconds - 1:+7.1%}"
        )
    several = {k: v for k, v in groups.items() if len(v) > 1}
    for key, found in several.items():
        best = min(found, key=lambda pair: pair[0].seconds)[0]
        print(f"{key}: {len(found)} plans, best {best.plan}, order right: {_order(found)}")
    print("\n| rows | number | mean error | signed | worst | over 25 % |")
    print("|---|---|---|---|---|---|")
    for name, off in parts(rows):
        size = [abs(e) for e in off]
        far, bias = sum(e > 0.25 for e in size), mean(off)
        print(f"| {name} | {len(off)} | {mean(size):.1%} | {bias:+.1%} | {max(size):.1%} | {far} |")
    right = mean(_order(found) for found in several.values()) if several else 1.0
    first = mean(_first(found) for found in several.values()) if several else 1.0
    print(
        f"\n{len(rows)} rows, kernels by {costs}; want: mean error 10 %, worst 25 %; best {FIRST} "
        f"plans in the right order in {right:.0%} of {len(several)} groups (want 90 %), the best "
        f"one in {first:.0%}; nothing fitted"
    )
    count, off_line = straight([row for row, _ in rows])
    if count:
        print(f"{count} series over the number of microbatches leave a line by {off_line:.1e} s")


def straight(rows: list[Row]) -> tuple[int, float]:
    """Series of rows that differ in the number of microbatches alone, and how straight they are.

    Returns:
        How many series have at least three rows, and the most seconds by which one leaves the line
        through its first and last.
    """
    series = defaultdict[tuple[object, ...], list[tuple[int, float]]](list)
    for r in rows:
        key = (r.file, r.gpus, r.micro, r.width, r.layers, r.tokens, r.data, r.stages)
        series[key].append((r.batch // (r.micro * r.data), r.seconds))
    long = [sorted(s) for s in series.values() if len(s) > 2]
    off = [
        abs(t - s[0][1] - (s[-1][1] - s[0][1]) * (n - s[0][0]) / (s[-1][0] - s[0][0]))
        for s in long for n, t in s
    ]  # fmt: skip
    return len(long), max(off, default=0.0)


def _first(rows: list[tuple[Row, float]]) -> bool:
    """Whether the best plan of a group is predicted."""
    best = min(rows, key=lambda pair: pair[0].seconds)
    return best == min(rows, key=lambda pair: pair[1])


def _default_costs() -> str:
    """The tables, or the roofline where the package is missing."""
    tables = f"{PREFIX}a100"
    try:
        cluster_of(tables)
    except CostError as error:
        print(f"by the roofline alone: {str(error).replace(chr(10), '; ')}")
        return "roofline"
    return tables


PARTS = {
    "launch": lambda: setattr(load_silicon("a100_sxm"), "launch", 0.0),
    "alignment": lambda: setattr(tables, "MISALIGNED", 1.0),
    "activations kept": lambda: globals().update(RESERVED=1e15),
}
"""Assumption to what takes it out."""

if __name__ == "__main__":
    default = [DATA / "vtrain_single.csv", DATA / "vtrain_multi.csv"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--costs", choices=["roofline", f"{PREFIX}a100"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without", choices=list(PARTS), help="leave one assumption out")
    given = parser.parse_args()
    given.costs = given.costs or _default_costs()
    if given.without:
        PARTS[given.without]()
    main(
        given.files or [path for path in default if path.is_file()],
        given.costs,
        as_json=given.json,
    )
