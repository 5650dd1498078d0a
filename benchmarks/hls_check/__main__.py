"""Intervals and depths that emitted loops can reach, by kind of engine, models, and precisions.

    python -m benchmarks.hls_check                         three small models, all precisions
    python -m benchmarks.hls_check resnet50 --devices 4xvcu118 --precision int8

In ``mixed`` each layer has a number type of its own, all of `TYPES` in turn. The check is that of
`benchmarks.hls_check.stages` on the kernels that `pipec compile` writes. Exit status 1 if a loop
declares less than its recurrences, memory ports and operators allow, or a pragma is not as the
rules on emitted code ask.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import click
import networkx as nx

from benchmarks._fpga_models import NAMES, write_model
from benchmarks.hls_check.compiled import intervals
from benchmarks.hls_check.found import Interval
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.emit.stage import write_stage
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.errors import PipecError
from pipec.frontends.load import load
from pipec.graph.ir import Graph
from tests.fpga.lint.stage import check

MIXED = "mixed"
PRECISIONS = (
    "float32", "bfloat16", "float16", "int8", "ap_fixed<16,6>", "ap_fixed<24,8>", MIXED,
)  # fmt: skip
TYPES = ("float32", "bfloat16", "float16", "ap_fixed<20,8>", "ap_fixed<8,4>")
SMALL = ("mlp", "gru_cell", "encoder")


def in_turn(types: Sequence[str]) -> Iterator[str]:
    """Types without an end; before one pair of them comes again, all other ones have."""
    pairs = nx.complete_graph(len(types), nx.DiGraph)
    return cycle([types[there] for _, there in nx.eulerian_circuit(pairs)])


def mix(graph: Graph) -> str:
    """The precision ``TYPE; NODE = TYPE; ...`` that gives the nodes of a graph types in turn."""
    types = zip(graph.calls, in_turn(TYPES), strict=False)
    return "; ".join([TYPES[0], *(f"{node.name} = {dtype}" for node, dtype in types)])


def loops_of(name: str, devices: str, precision: str, folder: Path) -> list[Interval]:
    """The pipelined loops of all stages of a model.

    Raises:
        BackendError: A pragma is not as the rules ask.
    """
    graph = load(write_model(name, folder)).graph
    options = {"precision": mix(graph) if precision == MIXED else precision}
    plan = make_plan(graph, parse_cluster(devices), "fpga", options=options)
    found = list[Interval]()
    for design in designs_of(plan):  # without golden data, which are long in coming
        write_stage(design, folder / design.name, golden=None)
        check(folder / design.name)
        found += intervals(folder / design.name)
    return found


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(NAMES))
@click.option("--devices", default="1xvcu118", show_default=True)
@click.option(
    "--precision", "precisions", multiple=True, help="As of pipec compile, or mixed; all."
)
def main(models: tuple[str, ...], devices: str, precisions: tuple[str, ...]) -> None:
    """Print per kind of engine how many loops reach their interval."""
    failed = False
    for precision in precisions or PRECISIONS:
        kinds: dict[str, list[Interval]] = defaultdict(list)
        for name in models or SMALL:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    every = loops_of(name, devices, precision, Path(folder))
                except PipecError as error:
                    raise click.ClickException(str(error)) from error
            for found in every:
                kinds[found.kind].append(found)
        loops = [i for every in kinds.values() for i in every]
        good = sum(i.ok for i in loops)
        print(f"{precision}: {good} of {len(loops)} loops and pauses between loops are as they say")
        for kind, every in sorted(kinds.items()):
            worst = max(every, key=lambda i: i.least / i.declared)
            print(
                f"  {kind:12} {sum(i.ok for i in every):3} of {len(every):3}; worst "
                f"{worst.declared} declared, recurrence {worst.recurrence}, ports {worst.ports}, "
                f"{max(i.short for i in every)} too deep",
                flush=True,
            )
        failed = failed or not all(i.ok for i in loops)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
