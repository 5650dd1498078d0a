"""Orders made from costs: played again by the simulator, between a bound and the generators."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from pipec.errors import ScheduleError
from pipec.schedule.build import build
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Placement, Schedule
from pipec.schedule.synthesis import Order, StageCosts, least_seconds, synthesize
from pipec.simulate.costs import generate_for, stage_costs
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times
from pipec.simulate.verify import check

LINE = ("1f1b", "gpipe", "1f1b-so", "zb-h1", "zb-h1{memory=2}")

seconds = st.integers(1, 40).map(lambda n: n / 16)


@st.composite
def problems(
    draw: st.DrawFn, stages: int = 6, microbatches: int = 10, slowest: float = 0.25
) -> tuple[StageCosts, list[int], int]:
    """Unlike stages on devices of one or several stages, with or without limits of memory."""
    n, chunks = draw(st.integers(1, stages)), draw(st.sampled_from([1, 1, 2]))
    device = [s % n for s in range(n * chunks)]
    rows = [[draw(seconds) for _ in device] for _ in range(4)]
    hop = draw(st.sampled_from([0.0, 0.25, slowest]))
    hops = [hop if a != b else 0.0 for a, b in pairwise(device)] + [0.0]
    least = [sum(rows[3][s] for s in range(len(device)) if device[s] == d) for d in range(n)]
    factor = draw(st.sampled_from([1.0, 1.5, 3.0, math.inf]))
    kept = [v / 2 for v in rows[3]]
    limits = [factor * v for v in least]
    split = rows[2] if draw(st.booleans()) else []
    costs = StageCosts(rows[0], rows[1], split, hops, rows[3], kept, limits)
    return costs, device, draw(st.integers(1, microbatches))


def played(costs: StageCosts, device: list[int], microbatches: int, order: Order) -> Timeline:
    """The order in the simulator, which knows nothing of how it was found."""
    place = Placement.together(tuple((d,) for d in device))
    made = lower(build("synthesized", order.rows, microbatches, placement=place))
    check(made)
    return simulate(made, times_of(costs), memory_of(costs))


def times_of(costs: StageCosts) -> Times:
    backward = None if costs.weight_gradient else costs.input_gradient
    weights = costs.weight_gradient or None
    inputs = costs.input_gradient if costs.weight_gradient else None
    return Times.of_stages(costs.forward, backward, inputs, weights, comm=max(costs.transfer))


def memory_of(costs: StageCosts) -> Memory:
    return Memory(saved=costs.saved, saved_for_w=costs.saved_for_w)


@settings(max_examples=60, deadline=None)
@given(problems(slowest=4.0))  # a link that is slower than the stages carries one value at a time
def test_simulator_agrees_limits_are_kept_and_the_bound_is_a_bound(
    problem: tuple[StageCosts, list[int], int],
) -> None:
    costs, device, microbatches = problem
    order = synthesize(costs, device, microbatches)
    timeline = played(costs, device, microbatches, order)
    assert timeline.seconds == pytest.approx(order.seconds)
    for peak, limit in zip(timeline.peak_bytes, costs.limits, strict=True):
        assert peak <= limit * (1 + 1e-9)
    assert sum(timeline.peak_bytes) == pytest.approx(order.held)
    assert least_seconds(costs, device, microbatches) <= order.seconds * (1 + 1e-9)


def optimum(costs: StageCosts, device: list[int], microbatches: int, most: float) -> float:
    """The least seconds of any order, by a constraint solver; times are multiples of 1/16."""
    model, unit = cp_model.CpModel(), 16
    horizon = round(most * unit)
    begin = {
        (k, s, m): model.new_int_var(0, horizon, "")
        for k in range(len(costs.seconds)) for s in range(len(device)) for m in range(microbatches)
    }  # fmt: skip
    took = {key: round(costs.seconds[key[0]][key[1]] * unit) for key in begin}
    end = {key: begin[key] + took[key] for key in begin}
    for d in set(device):
        mine = [key for key in begin if device[key[1]] == d]
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(begin[k], took[k], "") for k in mine]
        )
        changes: list[tuple[cp_model.IntVar | cp_model.LinearExpr, float]]
        changes = [(begin[k], costs.saved[k[1]]) for k in mine if k[0] == 0]
        split = bool(costs.weight_gradient)
        left = [costs.saved_for_w[s] if split else 0.0 for s in range(len(device))]
        changes += [(end[k], left[k[1]] - costs.saved[k[1]]) for k in mine if k[0] == 1]
        changes += [(end[k], -left[k[1]]) for k in mine if k[0] == 2]
        if costs.limits[d] < math.inf:
            times, sizes = zip(*((t, round(c * 32)) for t, c in changes), strict=True)
            model.add_reservoir_constraint(times, sizes, 0, round(costs.limits[d] * 32))
    last = len(device) - 1
    for (k, s, m), start in begin.items():
        hop = round((costs.transfer[s - 1] if s else 0) * unit)
        if k == 0 and s:
            model.add(start >= end[0, s - 1, m] + hop)
        if k == 1:
            model.add(start >= end[0, s, m])
            if s < last:
                model.add(start >= end[1, s + 1, m] + round(costs.transfer[s] * unit))
        if k == 2:
            model.add(start >= end[1, s, m])
    whole = model.new_int_var(0, horizon, "")
    for when in end.values():
        model.add(whole >= when)
    model.minimize(whole)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / unit


@settings(max_examples=15, deadline=None)
@given(problems(stages=2, microbatches=3))
def test_beside_the_optimum_of_a_constraint_solver(
    problem: tuple[StageCosts, list[int], int],
) -> None:
    costs, device, microbatches = problem
    order = synthesize(costs, device, microbatches)
    best = optimum(costs, device, microbatches, order.seconds)
    assert least_seconds(costs, device, microbatches) <= best + 1e-9
    assert best <= order.seconds + 1e-9 <= 1.25 * best


def of_generator(made: Schedule, costs: StageCosts) -> Timeline:
    return simulate(lower(made), times_of(costs), memory_of(costs))


@pytest.mark.parametrize("name", LINE)
@pytest.mark.parametrize("seed", range(4))
def test_in_the_memory_of_a_generator_no_slower(name: str, seed: int) -> None:
    n, m = 4 + seed, 12
    rows = [[1 + ((7 * s + 3 * k + seed) % 5) / 4 for s in range(n)] for k in range(4)]
    device = list(range(n))
    half = [v / 2 for v in rows[3]]
    free = StageCosts(rows[0], rows[1], rows[2], [0.1] * n, rows[3], half, [math.inf] * n)
    other = of_generator(generate(name, n, m), free)
    limits = [peak * (1 + 1e-9) for peak in other.peak_bytes]
    costs = StageCosts(rows[0], rows[1], rows[2], [0.1] * n, rows[3], half, limits)
    assert synthesize(costs, device, m).seconds <= other.seconds * (1 + 1e-9)


def test_uneven_stages_gain_over_every_generator_of_one_stage_per_device() -> None:
    times = Times.of_stages([1, 2, 1, 1], None, [1, 1, 2, 1], [1, 1, 1, 0.5], comm=0.2)
    mine = simulate(lower(generate_for("synthesized", 4, 16, times)), times).seconds
    others = [simulate(lower(generate(name, 4, 16)), times).seconds for name in LINE]
    assert mine < min(others)


def test_over_slow_links_no_slower_than_a_generator() -> None:
    """A transfer takes longer than a stage: links set the pace, and order their values."""
    rows = [[1 + ((7 * s + 3 * k) % 5) / 4 for s in range(5)] for k in range(2)]
    none = [0.0] * 5
    costs = StageCosts(rows[0], rows[1], [], [3.0] * 5, none, none, [math.inf] * 5)
    order = synthesize(costs, range(5), 18)
    others = [of_generator(generate(name, 5, 18), costs) for name in ("1f1b", "gpipe", "1f1b-so")]
    assert played(costs, list(range(5)), 18, order).seconds <= min(t.seconds for t in others)


@pytest.mark.parametrize(("stages", "slow"), [(4, 0), (5, 0), (5, 1)])
def test_in_little_memory_no_slower_than_1f1b(stages: int, slow: int) -> None:
    """As many microbatches as stages: no rule of list scheduling waits as 1F1B does."""
    forward = [4.0 if s == slow else 1.0 for s in range(stages)]
    memory = [float(stages - s) for s in range(stages)]
    made = generate(
        "synthesized", stages, 4, F=forward, I=[0.5], W=[0.5], transfer=[0.1], memory=memory,
        split=False,
    )  # fmt: skip
    times = Times.of_stages(forward, [1.0] * stages, comm=0.1)
    mine, other = (simulate(lower(s), times) for s in (made, generate("1f1b", stages, 4)))
    assert mine.seconds <= other.seconds * (1 + 1e-9)
    assert all(n <= m for n, m in zip(mine.peak_in_flight, memory, strict=True))


def test_memory_counts_microbatches_where_sizes_are_not_given() -> None:
    made = generate("synthesized", 3, 8, memory=(2, 2, 1))
    assert simulate(lower(made), Times.uniform(3)).peak_in_flight == (2.0, 2.0, 1.0)


def test_made_again_from_its_own_record() -> None:
    times = Times.of_stages([1, 2, 3], None, [1, 1, 1], [2, 1, 1])
    first = generate_for("synthesized", 3, 5, times)
    again = generate(first.name, 3, 5, **first.options)
    assert str(first) == str(again)


def test_costs_of_a_timeline_leave_room_for_what_always_stays() -> None:
    memory = Memory(weights=[5, 5], saved=[2, 2], workspace={"F": [1, 3]})
    timeline = simulate(lower(generate("1f1b", 2, 4)), Times.uniform(2, comm=0.5), memory)
    found = stage_costs(timeline, [20, 20])
    assert found["memory"] == [14, 12]
    assert found["transfer"] == [0.5, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"F": (1, 2)}, "F of synthesized cannot be used"),
        ({"W": (-1,)}, "W of synthesized cannot be used"),
        ({"memory": (0.5,)}, "no order keeps the limits of memory"),
    ],
)
def test_refused(options: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        generate("synthesized", 3, 4, **options)
