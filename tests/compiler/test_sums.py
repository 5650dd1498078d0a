"""What devices add up before they step: counted in the timeline, and the steps that wait for it."""

import pytest

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.facts import count_trained, list_sums
from pipec.compiler.timeline import plan_timeline
from pipec.cost.stage import MessageCost, StageCost
from pipec.cost.table import CostTable
from pipec.errors import ScheduleError
from pipec.passes.time_stages import TimeStages
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.json_form import from_json, to_json
from pipec.schedule.registry import SYNCHRONOUS, generate
from pipec.schedule.schedule import Schedule
from pipec.schedule.steps import insert_steps
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import scheduled, staged

CHUNKED = ("interleaved", "zbv", "dualpipev")
FREE = MessageCost((0, 1), (0.0,) * 2, (0.0,) * 2, (0.0,) * 2, sums=(100.0, 100.0))
"""Messages take no time, a sum of two 100 s whatever its size."""


def timed(name: str, stages: int) -> Plan:
    """Stages that take 1, 2 and 5 s for F, B and a step; stage s takes s + 1 times as long."""
    plan = staged(CASES[name], seeded(CASES[name]), stages)
    kind = plan.cluster.devices[0].kind
    found = {
        s.training.key: StageCost(F=s.index + 1, B=2 * s.index + 2, step=5 * s.index + 5)
        for s in plan.stages
        if s.training
    }
    assert len(found) == stages
    costs = CostTable({}, {kind: {}}, {kind: "given"}, {kind: found}, {kind: FREE})
    place = generate("1f1b", stages, 2).placement
    return TimeStages().run(plan.replace(costs=costs, placement=place))


def ends(plan: Plan, order: Schedule) -> dict[str, tuple[float, float]]:
    """Steps to when they begin and end."""
    timeline = plan_timeline(plan, order)
    every = (timeline.action(k) for k in range(len(order)))
    return {str(a): (begin, end) for a, begin, end in every if a.kind is ActionKind.STEP}


def test_devices_that_share_a_weight_step_together_after_its_sum() -> None:
    plan = timed("gpt-2", 3)
    assert any(len(stages) > 1 for stages in plan.find_tied().values())
    order = scheduled(plan, "1f1b", 2)
    assert order.joint == ((0, 1, 2),)
    timeline = plan_timeline(plan, order)
    compute = [timeline.action(k) for k in range(len(order)) if order[k].kind.is_compute]
    last = {s: max(end for a, _, end in compute if a.stage == s) for s in range(3)}
    assert last[0] == max(last.values())  # stage 0 is the last to be ready
    found, norm = ends(plan, order), 2 * 100
    assert found["0STEP@1"] == (last[0], last[0] + 100 + norm + 5)
    assert found["1STEP@1"] == (last[0], last[0] + norm + 10)  # shares no weight
    assert found["2STEP@1"] == (last[0], last[0] + 100 + norm + 15)


def test_replicas_add_up_their_gradients_before_they_step() -> None:
    plan = timed("mlp", 2).replace(cluster=parse_cluster("4xh100"))
    order = scheduled(plan, "1f1b", 4, replicas=2)
    plan = plan.replace(placement=order.placement)
    timeline = plan_timeline(plan, order)
    took = {str(a): end - begin for a, begin, end in map(timeline.action, range(len(order)))}
    assert [took[f"{s}REDUCE_GRAD@1"] for s in range(2)] == [100, 100]
    shares = [1 / 2, 16 / 17]  # a replica steps whole parameters: 16 weights, or their bias
    norm = 3 * 100  # of four devices
    steps = [took[f"{s}STEP@1"] for s in range(2)]
    assert steps == pytest.approx([norm + 5 * shares[0], norm + 10 * shares[1]])
    trained = sum(len(s.training.trained) for s in plan.stages if s.training)
    assert list_sums(plan) == {8 * trained, *map(count_trained, plan.stages)}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("schedule", SYNCHRONOUS)
def test_all_devices_step_behind_the_norm_of_all_gradients(schedule: str, replicas: int) -> None:
    """The last backward, or sum of gradients, of all; one all-reduce; then a device's own steps."""
    plan = timed("mlp", 4 if schedule in CHUNKED else 2).replace(cluster=parse_cluster("4xh100"))
    order = scheduled(plan, schedule, 8, **({"replicas": 2} if replicas > 1 else {}))
    timeline = plan_timeline(plan.replace(placement=order.placement), order)
    actions = [timeline.action(k) for k in range(len(order))]
    before = (a for a in actions if a[0].kind.is_compute or a[0].kind is ActionKind.REDUCE_GRAD)
    last = max(end for _, _, end in before)
    norm = 100 * (order.devices - 1)
    ends = []
    for device, stages in enumerate(order.list_stages()):
        own = [a for k, a in enumerate(actions) if order.device[k] == device]
        steps = [a for a in own if a[0].kind is ActionKind.STEP]
        assert [a.stage for a, _, _ in steps] == stages
        assert [begin for _, begin, _ in steps] == [last, *(end for _, _, end in steps[:-1])]
        took = norm + sum(5 * s + 5 for s in stages)
        if replicas == 1:
            assert steps[-1][2] - last == pytest.approx(took)
        ends.append(steps[-1][2])
    assert timeline.seconds == max(ends)


@pytest.mark.parametrize("schedule", ["interleaved", "zbv"])
def test_joint_steps_stand_behind_the_rows(schedule: str) -> None:
    plan = staged(CASES["gpt-2"], seeded(CASES["gpt-2"]), 4)
    order = scheduled(plan, schedule, 4)
    assert order.joint
    for device in {d for group in order.joint for d in group}:
        kinds = [a.kind is ActionKind.STEP for a in order.row(device)]
        assert kinds == sorted(kinds)
    again = from_json(to_json(order))
    assert (str(again), again.joint) == (str(order), order.joint)


def test_joint_steps_need_a_flush() -> None:
    with pytest.raises(ScheduleError, match="flush"):
        insert_steps(generate("pipedream", 2, 4), ((0, 1),))


@pytest.mark.parametrize("listed", ["v100,h100", "h100,v100"])
def test_messages_between_unlike_devices(listed: str) -> None:
    """On the way as long as between two of the slower kind; each end takes its own processor."""
    way = {"v100": MessageCost((0, 1), (9.0,) * 2, (1.0,) * 2, (2.0,) * 2),
           "h100": MessageCost((0, 1), (5.0,) * 2, (0.5,) * 2, (0.25,) * 2)}  # fmt: skip
    plan = timed("mlp", 2)
    assert plan.costs
    (stages,) = plan.costs.stages.values()
    none = {kind: dict[str, float]() for kind in way}
    costs = CostTable({}, none, dict.fromkeys(way, "given"), dict.fromkeys(way, stages), way)
    plan = plan.replace(costs=costs, cluster=parse_cluster(listed))
    timeline = plan_timeline(plan, order := scheduled(plan, "1f1b", 1))
    actions = map(timeline.action, range(len(order)))
    found = {str(a): (begin, end) for a, begin, end in actions}
    (_, sent), (received, _) = found["0F0"], found["1F0"]
    assert received - sent == max(9 - 1 - 2, 5 - 0.5 - 0.25)
    ends = [way[kind] for kind in listed.split(",")]
    took = {name: end - begin for name, (begin, end) in found.items()}
    assert took["0F0"] == 1 + ends[0].send[0]
    assert took["1F0"] == 2 + ends[1].receive[0]
