"""Generated orders: pictures of small ones, torch's own orders beside ours, bad options."""

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _Action, _validate_schedule

from pipec.errors import PipecError, ScheduleError
from pipec.schedule.csv_form import to_csv
from pipec.schedule.registry import generate, names
from pipec.simulate.verify import verify

PICTURES = {
    "gpipe": "0F0 0F1 0F2 0B0 0B1 0B2 | 1F0 1F1 1F2 1B0 1B1 1B2",
    "1f1b": "0F0 0F1 0B0 0F2 0B1 0B2 | 1F0 1B0 1F1 1B1 1F2 1B2",
    "1f1b-so": "0F0 0F1 0F2 0B0 0B1 0B2 | 1F0 1B0 1F1 1B1 1F2 1B2",
    "zb-h1": "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 | 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    "pipedream": "0F0 0F1 0B0 0F2@1 0B1 0B2@1 | 1F0 1B0 1F1@1 1B1@1 1F2@2 1B2@2",
    "pipemare": "0F0 0F1 0B0 0F2@1 0B1@1 0B2@2 | 1F0 1B0 1F1@1 1B1@1 1F2@2 1B2@2",
    "pipedream-2bw": "0F0 0F1 0B0 0F2 0B1 0B2 | 1F0 1B0 1F1 1B1 1F2 1B2",
    "pipefb": "0F0 0F1 0F2 | 1F0 1F1 1F2 | 1B0 1B1 1B2 | 0B0 0B1 0B2",
    "fbp-as": "0F0 0F1 0F2 0B0 0B1 0B2 | 1F0 1F1 1B0 1F2 1B1 1B2",
    "interleaved": "0F0 1F0 1B0 0F1 0B0 1F1 1B1 0F2 0B1 1F2 1B2 0B2",
    "zbv": "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0F2 0I1 0W1 1F2 1I2 1W2 0I2 0W2",
    "inference": "0F0 0F1 0F2 | 1F0 1F1 1F2",
}


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_two_stages_three_microbatches(name: str) -> None:
    rows = [" ".join(map(str, row)) for row in generate(name, 2, 3).rows()]
    assert " | ".join(rows) == PICTURES[name]


PEERS = [
    ("Interleaved1F1B", "interleaved", {}, 2),
    ("Interleaved1F1B", "interleaved", {"chunks": 3}, 3),
    ("InterleavedZeroBubble", "interleaved", {"split": True}, 2),
    ("ZBVZeroBubble", "zbv", {}, 2),
    ("DualPipeV", "dualpipev", {}, 2),
]


@pytest.mark.parametrize(("peer", "name", "options", "chunks"), PEERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_torch_has_the_same_order(
    peer: str, name: str, options: dict[str, object], chunks: int, ranks: int
) -> None:
    for microbatches in (2 * ranks, 3 * ranks, 12):
        if peer.startswith("Inter") and microbatches % max(1, microbatches // ranks):
            continue
        theirs = get_schedule_ops(peer, ranks, microbatches, num_stages_per_rank=chunks)
        flat = [[p for a in row if a for p in (a.sub_actions or (a,))] for row in theirs]
        ours = generate(name, chunks * ranks, microbatches, **options)
        assert [[str(a) for a in row] for row in flat] == [
            [a.plain for a in row] for row in ours.rows()
        ]


@pytest.mark.parametrize("name", [n for n in names() if n not in ("inference", "pipefb")])
def test_torch_accepts_our_csv(name: str) -> None:
    """PipeFB and inference are beyond torch: a stage on two ranks, and no backward."""
    for stages, microbatches in ((4, 8), (6, 12), (2, 5)):
        schedule = generate(name, stages, microbatches)
        lines = to_csv(schedule).splitlines()
        rows = {r: [_Action.from_str(c) for c in line.split(",")] for r, line in enumerate(lines)}
        place = _validate_schedule(rows, schedule.devices, stages, microbatches)
        assert place == {s: d[0] for s, d in enumerate(schedule.placement.forward)}


@pytest.mark.parametrize("name", names())
def test_every_size_is_right(name: str) -> None:
    """Few microbatches, many, and numbers that divide nothing."""
    for stages in (2, 4, 6):
        for microbatches in (1, 2, 3, 7, 12, 25):
            if name == "dualpipev" and microbatches < stages:
                continue
            verify(generate(name, stages, microbatches))


def test_admitted_minibatches() -> None:
    """Stage s warms up with (R - 1 - replicas before it) div replicas forwards, R workers in all.

    One more is NOAM on the input stage: ceil(R / its replicas). 15-1 and 3-1 warm up with 1 and 0.
    """
    for replicas in ([15, 1], [7, 1], [3, 1], [2, 1, 1], [1, 1, 1, 1], [8, 4, 4]):
        schedule = generate("pipedream", len(replicas), 840, replicas=replicas)
        workers, warm_up = sum(replicas), []
        for stage, devices in enumerate(schedule.placement.forward):
            row = schedule.row(devices[0])
            warm_up.append(next(i for i, a in enumerate(row) if a.kind.name == "B") - 1)
            later = workers - 1 - sum(replicas[:stage])
            assert warm_up[-1] == later // replicas[stage], (replicas, stage)
        assert warm_up[0] + 1 == -(-workers // replicas[0])


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "options", "message"),
    [
        ("1f1b", 4, 0, {}, "needs microbatches"),
        ("1f1b", 0, 4, {}, "needs stages"),
        ("1f1b", 4, 8, {"chunks": 2}, "no option 'chunks'"),
        ("interleaved", 5, 8, {}, "multiple of chunks"),
        ("interleaved", 4, 8, {"chunks": 0}, "multiple of chunks"),
        ("interleaved", 4, 8, {"order": "wide"}, "no such interleaved"),
        ("zbv", 3, 8, {}, "even number of stages"),
        ("dualpipev", 4, 3, {}, "as many microbatches as stages"),
        ("zb-h1", 4, 8, {"memory": 3}, "no such memory"),
        ("pipedream", 2, 8, {"replicas": [1]}, "do not fit the stages"),
        ("pipedream", 2, 8, {"sync": "none"}, "no such pipedream schedule"),
        ("pipedream", 2, 8, {"update_every": 0}, "update_every of 1 or more"),
        ("pipemare", 2, 8, {"slots": "some"}, "no such pipemare"),
        ("pipefb", 2, 8, {"saved": "disk"}, "no such pipefb"),
        ("1f1", 2, 8, {}, "did you mean '1f1b'"),
    ],
)
def test_bad_options_are_one_clear_error(
    name: str, stages: int, microbatches: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PipecError, match=message):
        generate(name, stages, microbatches, **options)


def test_a_stage_without_actions() -> None:
    from pipec.schedule.build import build

    with pytest.raises(ScheduleError, match="stage 0 has no F action"):
        build("mine", [[(1, 0, 0)]], 1)
