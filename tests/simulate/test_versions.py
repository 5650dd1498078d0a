"""Weight versions: what each rule says in closed form, and how many are alive.

PipeDream: Narayanan et al., SOSP'19. 2BW: ICML'21. PipeMare: Yang et al., MLSys'21.
"""

import pytest

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.schedule.versions import VersionRule
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

K = ActionKind


def versions(schedule: Schedule, kind: ActionKind) -> dict[tuple[int, int], int]:
    """(stage, microbatch), both 1-based, to the version used."""
    found = {}
    for action in schedule:
        if action.kind is kind and action.microbatch is not None:
            found[action.stage + 1, action.microbatch + 1] = action.version
    return found


def run(schedule: Schedule) -> Timeline:
    return simulate(lower(schedule), Times.uniform(schedule.stages, comm=0.25))


@pytest.mark.parametrize("n", range(1, 9))
def test_weight_stashing(n: int) -> None:
    """Minibatch k on stage i runs both ways with version max(0, k - (n-i+1))."""
    schedule = generate("pipedream", n, 3 * n)
    want = {(i, k): max(0, k - (n - i + 1)) for i in range(1, n + 1) for k in range(1, 3 * n + 1)}
    assert versions(schedule, K.F) == versions(schedule, K.B) == want
    assert run(schedule).weight_versions == tuple(n - i + 1 for i in range(1, n + 1))


def test_the_papers_example() -> None:
    """Four stages, minibatch 5: versions 1, 2, 3, 4."""
    used = versions(generate("pipedream", 4, 8), K.F)
    assert [used[i, 5] for i in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("n", range(1, 9))
def test_vertical_sync_uses_the_first_stages_version_everywhere(n: int) -> None:
    schedule = generate("pipedream", n, 3 * n, sync="vertical")
    for kind in (K.F, K.B):
        for (_, k), version in versions(schedule, kind).items():
            assert version == max(0, k - n)


def test_vertical_sync_counts_minibatches_where_replicas_differ() -> None:
    """Two updates of one minibatch on a stage alone are one of two on a stage of two replicas."""
    used = versions(generate("pipedream", 2, 12, replicas=[2, 1], sync="vertical"), K.F)
    assert all(used[2, k] == 2 * used[1, k] for k in range(1, 13))


@pytest.mark.parametrize(("n", "m"), [(n, m) for n in range(1, 9) for m in (n, n + 1, 3 * n)])
def test_double_buffering(n: int, m: int) -> None:
    """Microbatch k uses max(floor((k-1)/m) - 1, 0), and two versions are alive on each stage."""
    schedule = generate("pipedream-2bw", n, 4 * m, update_every=m)
    for kind in (K.F, K.B):
        for (_, k), version in versions(schedule, kind).items():
            assert version == max((k - 1) // m - 1, 0)
    timeline = run(schedule)
    assert timeline.weight_versions == (2,) * n
    assert max(timeline.peak_in_flight) <= n


def test_double_buffering_example() -> None:
    """m = 4: k = 1..8 use version 0, 9..12 use 1."""
    used = versions(generate("pipedream-2bw", 4, 12), K.F)
    assert [used[1, k] for k in range(1, 13)] == [0] * 8 + [1] * 4


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("slots", ["alternating", "concurrent"])
def test_pipemare_delay(n: int, slots: str) -> None:
    """The forward is n - i updates old (1F1B), 2(n-i)+1 in concurrent slots; backward is fresh."""
    schedule = generate("pipemare", n, 8 * n, slots=slots)
    ahead, back = versions(schedule, K.F), versions(schedule, K.B)
    for i in range(1, n + 1):
        delay = 2 * (n - i) + 1 if slots == "concurrent" else n - i
        for k in range(4 * n, 8 * n):
            assert back[i, k] == k - 1
            assert back[i, k] - ahead[i, k] == delay
    aligned = simulate(lower(schedule), Times.uniform(n))
    assert aligned.weight_versions == (1,) * n


@pytest.mark.parametrize(("P", "N"), [(1, 1), (3, 2), (4, 4), (5, 8), (8, 4)])
def test_pipemare_delay_in_minibatches(P: int, N: int) -> None:
    """N microbatches per update: a mean delay of (2(P-i)+1) / N updates, of P / N over stages."""
    schedule = generate("pipemare", P, 20 * N + 4 * P * N, slots="concurrent", update_every=N)
    ahead, back = versions(schedule, K.F), versions(schedule, K.B)
    total = 0.0
    for i in range(1, P + 1):
        delays = [back[i, k] - ahead[i, k] for k in range(2 * P * N + 1, 2 * P * N + 16 * N + 1)]
        assert sum(delays) / len(delays) == (2 * (P - i) + 1) / N
        total += sum(delays) / len(delays)
    assert total / P == P / N


@pytest.mark.parametrize("P", [1, 2, 4, 6])
@pytest.mark.parametrize("publish", [0, 1])
def test_pipefb(P: int, publish: int) -> None:
    """A forward sees weights 2(P-i)+1 updates old, plus publishing; B stashes that many + 1."""
    schedule = generate("pipefb", P, 6 * P, publish=publish)
    used = versions(schedule, K.F)
    assert used == versions(schedule, K.B)
    for i in range(1, P + 1):
        for k in range(1, 6 * P + 1):
            assert used[i, k] == max(0, (k - 1) - (2 * (P - i) + 1 + publish))
    timeline = simulate(lower(schedule), Times.uniform(P, 1, 1))
    stash = timeline.weight_versions[P:]
    assert stash == tuple(2 * (P - i) + 2 + publish for i in range(P, 0, -1))


def test_flush_uses_one_version() -> None:
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", "fbp-as", "1f1b-so"):
        schedule = generate(name, 4, 8)
        assert not schedule.version.any()
        assert set(run(schedule).weight_versions) == {1}


def test_replicas_take_turns() -> None:
    """1F1B-RR: replica = minibatch mod replicas, both ways; 15-1 warms up with 1 and 0."""
    schedule = generate("pipedream", 2, 30, replicas=[15, 1])
    for action in schedule:
        assert action.replica == (action.microbatch or 0) % (15 if action.stage == 0 else 1)
    assert [str(a) for a in schedule.row(0)] == ["0F0", "0F15", "0B0", "0B15"]
    assert [a.kind.name for a in schedule.row(15)][:4] == ["F", "B", "F", "B"]


def test_rules_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ScheduleError, match="unknown version rule"):
        VersionRule("latest")
    with pytest.raises(ScheduleError, match="as many microbatches per update"):
        generate("pipedream-2bw", 4, 8, update_every=2)
    with pytest.raises(ScheduleError, match="dealt out evenly"):
        generate("pipedream", 2, 8, replicas=[3, 1])
