"""What the operations of a GPT layer take on this GPU, beside what is predicted of them.

    python -m benchmarks.kernels [KIND]       refused where there is no GPU

Measured is as `pipec profile` measures nodes; predicted by the device's roofline, and by the tables
of kernels that others measured (``silicon:KIND``). Per layer, in bfloat16 and float32: every
operation's forward and backward, their sums, and what the layer takes as a whole, as F and B of a
stage run it.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._exit import exit_status
from benchmarks._models import Layer
from pipec.cli.profile import this_kind
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.presets import preset
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.profile import Profiler
from pipec.cost.count import count
from pipec.cost.measure import Both, Measuring, measure
from pipec.cost.model import Roofline
from pipec.cost.silicon import load_silicon
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source, op_name, tensors
from pipec.plan.model import Plan
from pipec.runtime.device import device_of
from pipec.runtime.executor import Settings

PASSES = "annotate-cost,partition{stages=1},insert-comm,differentiate,time-stages"
SIZES = ((2048, 16, 4, 1024), (4096, 32, 2, 2048))
"""Width, heads, rows, tokens of a row."""
SHORT = 2e-6
"""Seconds of nodes that are not listed."""


def squares(out: Tensor, target: Tensor) -> Tensor:
    """A loss that costs little."""
    return (out.float() * target).mean()


def graph_of(width: int, heads: int, shape: tuple[int, int], dtype: torch.dtype) -> Graph:
    """One layer and a loss."""
    torch.manual_seed(0)
    x = torch.randn(*shape, width)
    layer: nn.Module = Layer(width, heads).to(dtype)
    return trace(layer, (x.to(dtype),), loss=Loss(squares, x), source=Source("memory", ""))


def measure_layer(graph: Graph, inputs: dict[str, Tensor]) -> tuple[dict[str, Both], Both]:
    """Seconds of the nodes, and of the layer as a stage."""
    nodes = measure(graph, inputs, Measuring("cuda"))
    plan: Plan = make_plan(graph, parse_cluster("1xh100"), passes=parse_pipeline(PASSES))
    rates: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.0)  # noqa: E731
    here = {n: t.cuda() for n, t in inputs.items()}
    profile = Profiler(plan, lambda _: here, Settings(rates), compute=device_of("cuda")).measure(
        0.2
    )
    (cost,) = profile.stages.values()
    return nodes, Both(cost.F, cost.B)


def table(title: str, graph: Graph, kind: str) -> list[tuple[str, float, float]]:
    """Print a layer; (kind of operation, predicted, measured) by the tables, both passes."""
    costs, device = count(graph), preset(kind)
    inputs = {
        i.name: torch.randn(value.shape).to(value.dtype)
        for i in graph.inputs_of(InputKind.INPUT)
        for value in tensors(graph.nodes[i.node])
    }
    nodes, whole = measure_layer(graph, inputs)
    there, back = load_silicon(kind).seconds(graph, costs, device)
    found, sums = [], [0.0] * 5
    head = f"{title:34} {'forward, us':>12} {'roofline':>9} {'tables':>9} "
    print(f"{head}{'backward, us':>13} {'tables':>9}")
    for n in graph.calls:
        roof = max(0.0, Roofline().seconds(n, costs[n.name], device) - device.launch_seconds)
        real = nodes[n.name]
        row = (real.forward, roof, there[n.name], real.backward, back[n.name])
        sums = [a + b for a, b in zip(sums, row, strict=True)]
        if max(real) < SHORT:
            continue
        op = op_name(n).removeprefix("aten.").split(".")[0]
        found += [(op, row[2], row[0]), (op, row[4], row[3])]
        print(line(" ".join([op, *("x".join(map(str, t.shape)) for t in tensors(n)[:1])]), row))
    print(line("all nodes", tuple(sums)))
    print(line("as a stage", (whole.forward, None, None, whole.backward, None)), flush=True)
    return [f for f in found if f[1] > SHORT and f[2] > SHORT]


def line(what: str, row: tuple[float | None, ...]) -> str:
    """Microseconds, and predictions over what was measured."""
    forward, roof, there, backward, back = row
    assert forward is not None
    assert backward is not None

    def part(seconds: float | None, of: float) -> str:
        return " " * 9 if seconds is None or not of else f"{seconds / of:9.2f}"

    return (
        f"{what[:34]:34} {forward * 1e6:12.1f} {part(roof, forward)} {part(there, forward)} "
        f"{backward * 1e6:13.1f} {part(back, backward)}"
    )


def summary(found: list[tuple[str, float, float]]) -> None:
    """Predicted over measured by the kind of operation."""
    for op in sorted({f[0] for f in found}):
        ratios = sorted(p / m for name, p, m in found if name == op)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{op:34} {statistics.median(ratios):5.2f} of the measured time, {spread}")


def tables(kind: str) -> None:
    """Print the layers of all sizes, and a summary per element type."""
    for dtype in (torch.bfloat16, torch.float32):
        found = []
        for width, heads, rows, length in SIZES if dtype == torch.bfloat16 else SIZES[:1]:
            graph = graph_of(width, heads, (rows, length), dtype)
            title = f"{str(dtype)[6:]} {rows} x {length} x {width}"
            found += table(title, graph, kind)
        summary(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?")
    options = parser.parse_args()
    return exit_status(lambda: tables(options.kind or this_kind("cuda")))


if __name__ == "__main__":
    sys.exit(main())
