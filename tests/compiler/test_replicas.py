"""Plans of several copies of a pipeline: where stages are, what summing gradients takes."""

from dataclasses import replace

import pytest

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.simulate.simulate import simulate
from tests.trained import trained_mlp


@pytest.mark.parametrize(
    ("adjacent", "devices"),
    [("stages", ((0, 2), (1, 3))), ("replicas", ((0, 1), (2, 3)))],
)
def test_copies_of_a_pipeline_reduce_their_gradients(
    adjacent: str, devices: tuple[tuple[int, ...], ...]
) -> None:
    name = f"1f1b{{replicas=2 adjacent={adjacent}}}"
    passes = default_passes(schedule=name, microbatches=8)
    plan = make_plan(trained_mlp(4), parse_cluster("4xv100"), passes=passes)
    assert plan.schedule
    assert plan.timeline
    assert plan.placement == plan.schedule.placement
    assert plan.schedule.placement.backward == devices
    times, ring = plan.timeline.times, plan.cluster.link(0, 1)
    assert times.reduce == pytest.approx([ring.seconds(b) for b in plan.timeline.memory.gradients])
    free = simulate(plan.schedule, replace(times, reduce=()))
    assert plan.timeline.seconds - free.seconds == pytest.approx(times.reduce[0])
