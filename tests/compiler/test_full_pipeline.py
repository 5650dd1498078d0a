"""Memory of schedules without a flush is kept in a run that goes on, whose pipeline is full."""

import pytest

from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.endless import round_of
from pipec.errors import PartitionError, PlanError
from pipec.explore.beside import Rival
from pipec.plan.model import Plan
from pipec.schedule.registry import generate
from tests.compiler.test_cut_search import (
    cluster_of,
    contiguous,
    costed,
    net,
    planned,
    search_of,
    tight,
)

ROUNDS = {"pipedream": 1, "pipedream-2bw": 2, "pipemare": 1, "pipefb": 1}
"""Schedules without a flush, and microbatches of a round: fewer than a full pipeline holds."""


def figures(plan: Plan) -> tuple[float, float, float]:
    """Seconds of a step, and most bytes of a device: in a run that goes on, and of one round."""
    assert plan.timeline
    return (
        plan.timeline.seconds,
        max(round_of(plan).peak_bytes),
        max(plan.timeline.peak_bytes),
    )


def test_a_layout_stands_beside_one_more_round_of_a_run_that_goes_on() -> None:
    """As the table of an exploration has it; a drained step of the same plan takes longer."""
    graph, cluster = net(1, 512), cluster_of(1, 2)
    layout, chosen = (
        make_plan(graph, cluster, passes=default_passes(schedule=name, microbatches=2))
        for name in ("1f1b", "pipedream")
    )
    assert layout.timeline
    assert chosen.timeline
    ratio = Rival("1,1", layout, chosen).ratio
    assert ratio == layout.timeline.seconds / round_of(chosen).seconds
    assert ratio > 1.05 * layout.timeline.seconds / chosen.timeline.seconds


@pytest.mark.parametrize("name", ROUNDS)
def test_the_cut_keeps_memory_of_a_full_pipeline(name: str) -> None:
    """The fastest of all cuts that fit; of those whose drained round alone fits none."""
    count = ROUNDS[name]
    graph, cluster = net(1, 512), cluster_of(1, generate(name, 2, count).devices)
    base = costed(graph, cluster)
    cuts = [tuple(c.tolist()) for c in contiguous(search_of(base, name, 2, count), 2)]
    rows = [figures(planned(base, cut, name, count)) for cut in cuts]
    assert min(drained for _, _, drained in rows) < min(full for _, full, _ in rows)
    for limit in sorted({full for _, full, _ in rows})[::2]:
        devices = tight(cluster, limit)
        made = make_plan(graph, devices, passes=default_passes(schedule=name, microbatches=count))
        seconds, full, _ = figures(made)
        assert full <= limit
        assert seconds == pytest.approx(min(s for s, f, _ in rows if f <= limit), rel=1e-9)
    nothing = tight(cluster, min(full for _, full, _ in rows) - 1)
    with pytest.raises(PartitionError, match="no cut into 2 stages fits"):
        make_plan(graph, nothing, passes=default_passes(schedule=name, microbatches=count))
    with pytest.raises(PlanError, match="goes on from round to round does not fit the device"):
        planned(costed(graph, nothing), cuts[0], name, count)
