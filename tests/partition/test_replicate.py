"""The replicated planner equals brute force on small chains and reproduces published plans."""

import os
from math import ceil, inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, Value, cost_graph
from pipec.partition.formats.workload import read_workload
from pipec.partition.replicas.plan import plan_replicated
from pipec.partition.replicas.recurrence import Level

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[3] / "shared" / "data"))
PROFILES = DATA / "pipedream-profiles"
NUMBERS = st.integers(0, 9)


@st.composite
def chains(draw: st.DrawFn, most: int) -> CostGraph:
    n = draw(st.integers(1, most))
    return cost_graph(
        [f"l{i}" for i in range(n)],
        {"gpu": [draw(NUMBERS) for _ in range(n)]},
        [Value(i, [i + 1], bytes=draw(NUMBERS)) for i in range(n - 1)],
        weight_bytes=[draw(NUMBERS) for _ in range(n)],
        activation_bytes=[draw(NUMBERS) for _ in range(n)],
    )


def brute(graph: CostGraph, i: int, j: int, m: int, levels: list[Level], limit: float) -> float:
    """Best pipeline of layers i .. j-1 on m components of the last level, by plain recursion."""
    *below, level = levels

    def single(a: int, b: int, q: int) -> float:
        if below:
            time = brute(graph, a, b, below[-1].workers, below, inf)
        else:
            time = float(graph.work[0, a:b].sum())
        sync = 2 * (q - 1) / q * graph.weight_bytes[a:b].sum() / level.bytes_per_second
        return max(time, float(sync)) / q

    def fits(a: int, b: int, q: int, behind: int) -> bool:
        held = graph.weight_bytes[a:b].sum() + graph.activation_bytes[a:b].sum()
        return bool(ceil((q + behind) / q) * held <= limit)

    best = single(i, j, m) if fits(i, j, m, 0) else inf
    for k in range(i + 1, j):
        for q in range(1, m):
            if fits(i, k, q, m - q):
                boundary = 2 * float(graph.bytes[k - 1]) / level.bytes_per_second
                rest = brute(graph, k, j, m - q, levels, limit)
                best = min(best, max(single(i, k, q), boundary, rest))
    return best


@settings(max_examples=150, deadline=None)
@given(chains(6), st.integers(1, 5), st.sampled_from([1.0, 3.0]))
def test_one_level(graph: CostGraph, workers: int, bandwidth: float) -> None:
    levels = [Level(workers, bandwidth)]
    plan = plan_replicated(graph, levels)
    assert plan.seconds == pytest.approx(brute(graph, 0, graph.size, workers, levels, inf))
    assert sum(s.replicas for s in plan.stages) == workers
    assert sorted(v for s in plan.stages for v in s.nodes) == list(range(graph.size))


@settings(max_examples=60, deadline=None)
@given(chains(5), st.integers(1, 3), st.integers(1, 3))
def test_two_levels(graph: CostGraph, inner: int, outer: int) -> None:
    levels = [Level(inner, 4.0), Level(outer, 1.0)]
    plan = plan_replicated(graph, levels)
    assert plan.seconds == pytest.approx(brute(graph, 0, graph.size, outer, levels, inf))
    for stage in plan.stages:
        assert sum(s.replicas for s in stage.inner) == inner
        assert sorted(v for s in stage.inner for v in s.nodes) == list(stage.nodes)


@settings(max_examples=150, deadline=None)
@given(chains(6), st.integers(1, 5), st.integers(1, 60))
def test_memory_by_position(graph: CostGraph, workers: int, limit: int) -> None:
    levels = [Level(workers, 2.0)]
    want = brute(graph, 0, graph.size, workers, levels, limit)
    if want == inf:
        with pytest.raises(PartitionError, match="no replicated pipeline fits"):
            plan_replicated(graph, levels, memory_bytes=limit)
    else:
        plan = plan_replicated(graph, levels, memory_bytes=limit)
        assert plan.seconds == pytest.approx(want)


@settings(max_examples=60, deadline=None)
@given(chains(5), st.sampled_from([[4], [3], [2, 2], [3, 2]]))
def test_the_least_memory_is_told(graph: CostGraph, workers: list[int]) -> None:
    levels = [Level(n, 2.0) for n in workers]
    try:
        plan_replicated(graph, levels, memory_bytes=0.5)
    except PartitionError as error:
        want = str(error.want)
    else:
        return  # it weighs nothing
    least = float(want.split(maxsplit=1)[0])
    assert "times as much" in want
    plan_replicated(graph, levels, memory_bytes=least)
    with pytest.raises(PartitionError):
        plan_replicated(graph, levels, memory_bytes=least * (1 - 1e-9))


GOLDEN = [
    ("vgg16", [(4, 1e9)], "3-1", 0.205521),
    ("vgg16", [(8, 1.25e9)], "7-1", 0.088874),
    ("vgg16", [(16, 1e9)], "15-1", 0.044159),
    ("vgg16", [(16, 1.25e9)], "15-1", 0.044159),
    ("vgg16", [(4, 1e10)], "4", 0.168134),
    ("vgg16", [(4, 1e10), (4, 1.25e9)], "3-1", 0.055199),
    ("alexnet", [(4, 1e9)], "3-1", 0.025436),
    ("gnmt", [(4, 1e9)], "1-1-1-1", 0.025868),
]


@pytest.mark.skipif(not PROFILES.is_dir(), reason="needs the PipeDream profiles")
@pytest.mark.parametrize(("name", "levels", "stages", "seconds"), GOLDEN)
def test_published_profiles(
    name: str, levels: list[tuple[int, float]], stages: str, seconds: float
) -> None:
    graph = read_workload(PROFILES / f"{name}.txt").graph
    plan = plan_replicated(graph, [Level(*level) for level in levels])
    assert plan.configuration == stages
    assert plan.seconds == pytest.approx(seconds, abs=1e-6)
    assert plan.exact


@pytest.mark.parametrize(
    ("workers", "said"),
    [((10**5,), "level 1 (.|\n)*100000(.|\n)*at most 2,048"), ((1500, 2), "at most 1,182")],
)
def test_more_workers_than_can_be_tried_are_refused_at_once(
    workers: tuple[int, ...], said: str
) -> None:
    """An inner level is solved for every end of a stage: here there are three."""
    chain = cost_graph("ab", {"gpu": [6, 2]}, [Value(0, [1], bytes=1)], weight_bytes=[0, 9])
    with pytest.raises(PartitionError, match=said):
        plan_replicated(chain, [Level(n, 1.0) for n in workers])
