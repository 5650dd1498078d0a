"""A schedule named with its options reaches the cut, the plan and every error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.facts import count_trained
from pipec.errors import ClusterError, PartitionError, PipecError, ScheduleError
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.options import format_options, parse_list, parse_one
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.registry import generate, parse_options, stages_on
from tests.toys import mlp
from tests.trained import trained_mlp

WORDS = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)
VALUES = st.one_of(
    st.integers(-9, 9), st.booleans(), WORDS, st.lists(st.integers(0, 9), min_size=2, max_size=4)
)


@given(WORDS, st.dictionaries(WORDS, VALUES, max_size=3), WORDS)
def test_what_is_spelled_is_parsed_back(name: str, options: dict[str, object], other: str) -> None:
    text = format_options(name, options)
    found, given_ = parse_one(text, PipecError)
    assert found == name
    assert format_options(found, given_) == text
    nested = format_options(other, {"inner": text, "last": 1})
    assert parse_list(f"{text}, {nested}", PipecError) == [
        (name, given_),
        (other, {"inner": text, "last": "1"}),
    ]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trained_mlp(16)


def compiled(graph: Graph, devices: str, schedule: str, microbatches: int = 12) -> Plan:
    passes = default_passes(schedule=schedule, microbatches=microbatches)
    return make_plan(graph, parse_cluster(devices), passes=passes)


@pytest.mark.parametrize(
    ("schedule", "stages", "home"),
    [
        ("interleaved{chunks=2}", 8, (0, 1, 2, 3, 0, 1, 2, 3)),
        ("interleaved{chunks=3 split=true}", 12, (0, 1, 2, 3) * 3),
        ("zbv", 8, (0, 1, 2, 3, 3, 2, 1, 0)),
        ("pipedream{replicas=3,1}", 2, (0, 3)),
        ("pipedream-2bw{update_every=6}", 4, (0, 1, 2, 3)),
        ("pipefb", 2, (0, 1)),
        ("pipefb{publish=2 saved=direct}", 2, (0, 1)),
    ],
)
def test_the_cut_is_made_for_the_schedule(
    graph: Graph, schedule: str, stages: int, home: tuple[int, ...]
) -> None:
    plan = compiled(graph, "4xv100", schedule)
    assert plan.schedule
    assert plan.timeline
    assert plan.placement == plan.schedule.placement
    assert plan.schedule.devices == 4
    assert [d[0] for d in plan.schedule.placement.forward] == list(home)
    assert len(plan.stages) == stages
    assert dict(plan.schedule.options).items() >= parse_options(schedule, {}).items()


def test_replicas_share_the_work_of_their_stage(graph: Graph) -> None:
    plan = compiled(graph, "4xv100", "pipedream{replicas=3,1}")
    alone = compiled(graph, "2xv100", "pipedream")
    assert plan.partition
    assert alone.partition
    first = [sum(s == 0 for s in p.partition.stage_of.values()) for p in (plan, alone)]  # type: ignore[union-attr]
    assert first[0] > first[1]
    assert plan.partition.max_load < alone.partition.max_load


def test_pipefb_copies_all_that_is_saved_through_the_host(graph: Graph) -> None:
    plan = compiled(graph, "4xv100", "pipefb")
    assert plan.schedule
    assert plan.timeline
    plain = [s.training for s in compiled(graph, "4xv100", "pipefb{saved=direct}").stages]
    sizes = [training.saved_bytes for training in plain if training]
    slots = [c for c in plan.schedule.channels if c.kind is ChannelKind.H]
    assert [c.nbytes for c in slots] == [s.nbytes for s in plan.slots] == sizes
    for stage, slot in zip(plan.stages, plan.slots, strict=True):  # as nodes of F and B
        assert stage.training
        assert not stage.training.saved
        assert [t.value for t in lower(stage.training.F).offloads] == list(slot.values)
        assert [t.value for t in lower(stage.training.B).fetches] == list(slot.values)
    use = plan.timeline.lane_use
    assert [use[f"{d}.d2h"] for d in (0, 1)] == pytest.approx([use[f"{d}.h2d"] for d in (3, 2)])
    assert use["0.d2h"] > 0


def test_all_that_pipefb_moves_between_devices_has_its_bytes_and_takes_their_time(
    graph: Graph,
) -> None:
    plan = compiled(graph, "4xv100", "pipefb{saved=direct}")
    assert plan.schedule
    assert plan.timeline
    stages = [s.training for s in plan.stages if s.training]
    weights = [count_trained(s) for s in plan.stages]
    carried = {k: [c.nbytes for c in plan.schedule.channels if c.kind is k] for k in ChannelKind}
    assert carried[ChannelKind.S] == [t.saved_bytes for t in stages]
    assert carried[ChannelKind.W] == weights
    assert all(c.nbytes > 0 for c in plan.schedule.channels)
    want = {ActionKind.SEND_S: carried[ChannelKind.S], ActionKind.SEND_W: weights}
    place, seen = plan.schedule.placement, set[ActionKind]()
    for action, begin, end in map(plan.timeline.action, range(len(plan.schedule))):
        if action.kind in want:
            ends = place.forward[action.stage][0], place.backward[action.stage][0]
            seconds = plan.cluster.link(*ends).seconds(want[action.kind][action.stage])
            assert end - begin == pytest.approx(seconds)
            seen.add(action.kind)
    assert seen == set(want)


@pytest.mark.parametrize(
    ("devices", "schedule", "message"),
    [
        ("4xv100", "pipedream{replicas=3,2}", "fills the devices"),
        ("4xv100", "interleaved{chunks=two}", "not a number"),
        ("4xv100", "interleaved{slices=2}", "no option 'slices'"),
        ("3xv100", "pipefb", "fills the devices"),
        ("4xv100", "pipedream-2bw{replicas=2}", r"microbatches: .* cannot be copied\n"),
        ("4xv100", "interleaved{chunks=2", "brace is not closed"),
        ("4xv100", "pipedream{3,1}", "an option has no value"),
    ],
)
def test_what_does_not_fit_is_one_error(
    graph: Graph, devices: str, schedule: str, message: str
) -> None:
    with pytest.raises(PipecError, match=message):
        compiled(graph, devices, schedule)


def test_a_schedule_on_other_devices_than_the_cut_is_refused(graph: Graph) -> None:
    plan = make_plan(graph, parse_cluster("4xv100"), passes=default_passes()[:-2])
    last = default_passes(schedule="zbv")[-2]
    with pytest.raises(ScheduleError, match="other devices than the plan was cut for"):
        last.run(plan)
    with pytest.raises(ClusterError, match="no such device"):
        plan.cluster.link(3, 4)
    with pytest.raises(PartitionError, match="does not fit the cluster"):
        make_plan(graph, parse_cluster("2xv100"), passes=default_passes(stages=4))


@pytest.mark.parametrize("schedule", ["gpipe", "pipefb", "dualpipev"])
def test_a_missing_loss_is_named(schedule: str) -> None:
    with pytest.raises(ScheduleError, match="this model has no loss"):
        compiled(mlp(), "4xv100", schedule)


def test_inference_models_have_no_backward_place() -> None:
    passes = default_passes(schedule="inference")
    plan = make_plan(mlp(), parse_cluster("2xh100"), passes=passes)
    assert plan.placement
    assert plan.placement.backward == ()


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_stages_fill_the_devices(chunks: int, devices: int, groups: int) -> None:
    name, count = f"interleaved{{chunks={chunks}}}", devices * groups
    stages = stages_on(name, devices, count)
    assert stages == chunks * devices
    assert generate(name, stages, count).devices == devices
