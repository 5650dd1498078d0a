"""No coarse-graining step: the exact cut leaves an edge that its link cannot carry by itself."""

from dataclasses import replace
from itertools import pairwise

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_manager import run_passes
from pipec.graph.ir import Graph
from pipec.plan.model import Plan
from tests.toys import Builder, aten

FAST, SLOW = Link(1e12, 0.0), Link(2e8, 0.0)


def hourglass() -> Graph:
    """Widths 256, 4096, 4096, 32: the balanced cut crosses 4,096 wide, the cheap one 32 wide."""
    b = Builder()
    widths = [256, 4096, 4096, 32, 4096]
    x = b.input("x", 64, widths[0])
    for k, (a, c) in enumerate(pairwise(widths)):
        w = b.parameter(f"w{k}", c, a)
        x = b.call(aten.linear.default, x, w, name=f"linear{k}")
    return b.graph(x)


def on(link: Link) -> Cluster:
    return Cluster(parse_cluster("2xv100").devices, {(0, 1): link})


def test_a_cut_that_is_bound_by_communication_moves_to_a_cheaper_edge() -> None:
    graph = hourglass()
    balanced, coarse = make_plan(graph, on(FAST)), make_plan(graph, on(SLOW))
    (wide,), (narrow,) = balanced.channels, coarse.channels
    assert narrow.nbytes < wide.nbytes
    again = replace(balanced, cluster=on(SLOW), schedule=None, timing=(), timeline=None)
    late = default_passes()[-3:]
    forced = run_passes(late, again)
    assert coarse.timeline is not None
    assert forced.timeline is not None
    assert coarse.timeline.seconds < forced.timeline.seconds
    assert slowest_compute(coarse) > slowest_compute(balanced)  # it is a trade, not a free choice


def slowest_compute(plan: Plan) -> float:
    assert plan.costs is not None
    assert plan.partition is not None
    loads = [0.0, 0.0]
    for name, stage in plan.partition.stage_of.items():
        loads[stage] += plan.costs.of("v100")[name]
    return max(loads)
