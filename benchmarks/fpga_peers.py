"""Folding and cutting for FPGAs beside FINN's SetFolding rule and FINN+'s partitioner.

    python -m benchmarks.fpga_peers

1. ResNet-18 in int8 as 21 matrix-vector units, at the same number of multiply-accumulate units:
   FINN's rule (written anew here from its description: raise SIMD over the divisors of the row
   while a PE's weight word stays within the limit, then PE; a second pass with the interval
   reached) and pipec's factors, both for the same units. FINN+ itself says beside it what its
   SetFolding and its cycle estimates give.
2. The same network on four U280. FINN+ 1.6.1 folds first (target 0.5 M, width 36) and then cuts by
   resources; its figures are recorded from a run of that release. pipec folds and cuts jointly,
   with line buffers, FIFOs, memories and the boards' shells counted.
3. ResNet-50 on VCU118 and VCU129 boards against the bound of all boards' DSPs.
4. Two networks trained on digits, the same ONNX file through hls4ml 1.3 (its project and its C
   simulation; its interval is what the pragmas ask for, as it estimates none), FINN+ (folding of
   its matrix-vector units) and pipec, which then takes so many units for the same interval.

hls4ml and FINN+ are installed to ``.bench/`` when they are first asked for (`_fpga_site`).

The bound is all multiply-accumulates on all usable DSPs; intervals are cycles at 200 MHz.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks._fpga_site import Unavailable, ask
from benchmarks._peers_digits import HEAD, digits
from examples.resnet import resnet18, resnet50
from pipec.backends.fpga.cutting.joint import joint_cut
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.base import Layer as Folded
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.tiles import divisors
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.search import Board, Search
from pipec.backends.fpga.timing import mac_units
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.frontends.trace import trace
from pipec.graph.ir import Graph, Source
from pipec.graph.written import extract

RECORDED = (614_656, 3_953)
"""FINN+ 1.6.1 with ResNet-18 on four U280: interval, and multiply-accumulate units."""
CLOCK = 200e6


@dataclass(frozen=True)
class Layer:
    """A matrix-vector unit to fold: ``rows x columns``, ``vectors`` times per frame."""

    vectors: int
    columns: int
    rows: int

    @classmethod
    def of(cls, layer: Folded) -> "Layer":
        """That of one of our layers."""
        assert isinstance(layer.nest, Mvu)
        return cls(layer.nest.n, layer.nest.taps * layer.nest.channels, layer.nest.rows)

    def cycles(self, pe: int, simd: int) -> int:
        return self.vectors * math.ceil(self.rows / pe) * math.ceil(self.columns / simd)


def _one_folding(layer: Layer, target: int, width: float, bits: int) -> tuple[int, int]:
    simd = 1
    for wider in divisors(layer.columns):
        if bits * wider > width and wider > 1:
            break
        simd = wider
        if layer.cycles(1, simd) <= target:
            return 1, simd
    pe = next((p for p in divisors(layer.rows) if layer.cycles(p, simd) <= target), layer.rows)
    return pe, simd


def finn_interval(layers: Sequence[Layer], target: int, width: float) -> tuple[int, int]:
    """Interval and units by FINN's rule; the second pass aims at what the first one reached."""
    found = [_one_folding(layer, target, width, 8) for layer in layers]
    slowest = max(y.cycles(*f) for y, f in zip(layers, found, strict=True))
    if slowest > target:
        found = [_one_folding(layer, slowest, width, 8) for layer in layers]
        slowest = max(y.cycles(*f) for y, f in zip(layers, found, strict=True))
    return slowest, sum(pe * simd for pe, simd in found)


def our_units(layers: Sequence[Folded], target: int, precision: str = "int8") -> int | None:
    """Units of pipec's factors for a target; None if a layer cannot reach it."""
    total = 0
    for layer in layers:
        nest = layer.nest.fold(layer, target, precision).nest
        assert isinstance(nest, Mvu)
        if nest.n * nest.nf * nest.sf > target:
            return None
        total += nest.pe * nest.simd
    return total


def our_interval(layers: Sequence[Folded], units: int) -> tuple[int, int]:
    """The least interval within so many units, by bisection, and the units that it takes."""
    low, high = 0, 1 << 32
    while high - low > 1:
        middle = (low + high) // 2
        used = our_units(layers, middle)
        low, high = (low, middle) if used is not None and used <= units else (middle, high)
    return high, our_units(layers, high) or 0


TARGETS = ((3_000_000, 36.0), (500_000, 36.0), (100_000, math.inf))
"""Cycles to aim at, and the widest weight word of a PE in bits."""
UNLIMITED = 10**6


def finn_itself(layers: Sequence[Layer]) -> str:
    """The result of FINN+ for the targets: intervals and units."""
    question = {
        "layers": [[y.vectors, y.columns, y.rows] for y in layers],
        "targets": [[t, int(min(width, UNLIMITED))] for t, width in TARGETS],
    }
    try:
        found = ask("benchmarks._finn", question)
    except Unavailable as why:
        return f"FINN+ itself: {why}"
    return "FINN+ 1.6.1: " + ", ".join(
        f"{interval:,} with {units:,}" for interval, units, _ in found
    )


def same_units(graph: Graph) -> Iterator[str]:
    """Rows of part 1."""
    dense = [y for y in lower(graph, "int8").layers if isinstance(y.nest, Mvu)]
    layers = list(map(Layer.of, dense))
    work = sum(y.vectors * y.columns * y.rows for y in layers)
    for target, width in TARGETS:
        theirs, units = finn_interval(layers, target, width)
        ours, used = our_interval(dense, units)
        yield (
            f"{target:>10,} {width:>6.0f} {theirs:>11,} {units:>8,} {ours:>11,} {used:>8,} "
            f"{theirs / ours:>7.3f} {ours / (work / units):>7.3f}"
        )
    yield finn_itself(layers)


def chain(graph: Graph, devices: str, precision: str) -> tuple[list[StageDesign], float, float]:
    """Designs of a joint cut, the bound in cycles, and seconds of the processor."""
    began = time.process_time()
    cluster = parse_cluster(devices)
    passes, options = parse_pipeline("simplify,annotate-cost"), {"precision": precision}
    plan = make_plan(graph, cluster, "fpga", passes=passes, options=options)
    boards = [Board(d, precision) for d in cluster.devices]
    links = [cluster.link(k, k + 1) for k in range(cluster.size - 1)]
    cut = joint_cut(plan, boards, links, free_order=True)
    assert cut is not None
    names, orders = [n.name for n in plan.graph.calls], dict[str, tuple[int, ...]]()
    designs = []
    for k, at in enumerate(cut.device_order):
        nodes = {n for n, s in zip(names, cut.stage.tolist(), strict=True) if s == k}
        pace = int(cut.max_load * CLOCK)
        network = lower(extract(plan.graph, nodes, f"Stage{k}"), precision, orders, pace)
        orders |= {p.value: p.order for p in network.outputs}
        designs.append(Search(network, boards[at], f"stage{k}").best(pace))
    return designs, cut.lower_bound * CLOCK, time.process_time() - began


def chains(graphs: dict[str, Graph]) -> Iterator[tuple[str, bool]]:
    """Rows of parts 2 and 3, and whether each is within 1.18 of its bound."""
    cases = (
        ("resnet18", "4xu280", "int8"),
        ("resnet50", "4xvcu118", "float32"),
        ("resnet50", "4xvcu118", "int8"),
        ("resnet50", "2xvcu129,2xvcu118", "int8"),
    )
    for name, devices, precision in cases:
        designs, bound, seconds = chain(graphs[name], devices, precision)
        interval = max(d.interval for d in designs)
        units = sum(map(mac_units, designs))
        yield (
            f"{name:<9} {devices:<18} {precision:<8} {interval:>9,} {bound:>9,.0f} "
            f"{interval / bound:>6.3f} {units:>8,} {seconds:>6.1f} s",
            interval <= 1.18 * bound,
        )


def graph_of(factory: object) -> Graph:
    """A traced example."""
    assert callable(factory)
    model, inputs = factory()
    return trace(model, inputs, source=Source("factory", "examples/resnet.py"))


def main() -> int:
    """Print the tables; 1 if a figure is worse than FINN's or further than 1.18 from its bound."""
    graphs = {"resnet18": graph_of(resnet18), "resnet50": graph_of(resnet50)}
    print("ResNet-18, int8, 21 matrix-vector units, at the units that FINN's rule takes")
    print("    target  width   FINN rule    units       pipec    units   ratio   bound")
    bad = 0
    for row in same_units(graphs["resnet18"]):
        print(row)
        bad += not row.startswith("FINN") and float(row.split()[6]) < 1
    print("\nboards                                  interval     bound  ratio    units     time")
    for row, good in chains(graphs):
        print(row, flush=True)
        bad += not good
    interval, units = RECORDED
    print(f"FINN+ 1.6.1, folded before it is cut {interval:>11,} {'':16} {units:>8,} recorded")
    print(f"\n{HEAD}")
    for row, good in digits(mac_units, our_units):
        print(row, flush=True)
        bad += not good
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
