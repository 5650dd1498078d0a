"""Plans of toy graphs, cut where a test wants them, without cost models or solvers."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import torch

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.loaded import Loaded
from pipec.graph.ir import Graph, GraphOutput, InputKind, OutputKind
from pipec.passes.insert_comm import InsertComm
from pipec.plan.model import Partition, Plan, cut_stages
from pipec.schedule.schedule import Placement
from tests.toys import Builder, aten, run


def cut(graph: Graph, *bounds: int, target: str = "torch", route: str = "direct") -> Plan:
    """A plan whose stage k holds the calls from ``bounds[k-1]`` to ``bounds[k]``."""
    names = [n.name for n in graph.calls]
    edges = [0, *bounds, len(names)]
    rows = [names[a:b] for a, b in itertools.pairwise(edges)]
    partition = by_hand({name: k for k, row in enumerate(rows) for name in row})
    plan = Plan(
        graph,
        parse_cluster(f"{len(rows)}xh100"),
        target,
        partition=partition,
        placement=Placement(tuple((k,) for k in range(len(rows)))),
        stages=cut_stages(graph, partition.stage_of, len(rows)),
    )
    return InsertComm(route=route).run(plan)  # type: ignore[arg-type]


def by_hand(stage_of: Mapping[str, int]) -> Partition:
    """A partition that nobody has timed."""
    seconds = (1.0,) * (max(stage_of.values()) + 1)
    return Partition(stage_of, seconds, 1.0, proven=False, answers="", method="by hand")


def chain(layers: int = 6, width: int = 8) -> Graph:
    """Equal layers without a skip: equal cuts give equal stages."""
    b = Builder()
    weights = [b.parameter(f"blocks.{k}.weight", width, width) for k in range(layers)]
    x = b.input("x", 2, width)
    for k, w in enumerate(weights):
        x = b.call(aten.linear.default, x, w, name=f"linear{k}")
        x = b.call(aten.tanh.default, x, name=f"tanh{k}")
    return b.graph(x)


def tied() -> Graph:
    """An embedding whose table is the output layer's weight too; token ids in, logits out."""
    b = Builder()
    table = b.parameter("embed.weight", 10, 4)
    unused = b.parameter("unused.bias", 3)
    ids = b.input("ids", 5)
    del unused
    with b.mode:
        ids.meta["val"] = torch.empty(5, dtype=torch.int64)
    h = b.call(aten.embedding.default, table, ids, name="embedding")
    h = b.call(aten.gelu.default, h, name="gelu")
    y = b.call(aten.linear.default, h, table, name="logits")
    graph = b.graph(y)
    outputs = (GraphOutput(y.name, OutputKind.OUTPUT, "logits.out"),)
    return graph.replace(tied={"embed.weight": ("head.weight",)}, outputs=outputs)


def loaded(graph: Graph) -> Loaded:
    """The reference of a toy graph, with example inputs."""
    nodes = graph.nodes
    examples = {}
    for i in graph.inputs_of(InputKind.INPUT):
        t = nodes[i.node].meta["val"]
        integer = not t.dtype.is_floating_point
        examples[i.name] = (
            torch.arange(t.numel()).reshape(t.shape) % 10 if integer else torch.randn(t.shape)
        )
    return Loaded(graph, examples, lambda inputs: run(graph, **inputs))


def files(directory: Path) -> dict[str, bytes]:
    """Relative path to content of every file."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.is_file()
    }
