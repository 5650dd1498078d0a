"""The simulator against every closed form of the schedules, over whole ranges.

N stages, M microbatches, F and B seconds of a balanced stage, S of a transfer. All numbers are
dyadic, so that the comparison is exact. Makespans: Huang et al. (GPipe), Narayanan et al.
(1F1B), Zhao et al. (BaPipe), Qi et al. (ZB-H1).
"""

from math import ceil

import pytest

from pipec.schedule.comm import insert_comm
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

SETS = [(1.0, 2.0, 0.25), (1.0, 2.0, 1.5), (1.0, 1.0, 0.5), (2.0, 3.0, 1.0), (1.0, 2.0, 0.0)]


def run(name: str, N: int, M: int, F: float, B: float, S: float, **options: object) -> Timeline:
    schedule = lower(generate(name, N, M, **options))
    return simulate(schedule, Times.uniform(N, F, B, comm=S))


def exposed(N: int, M: int, S: float) -> float:
    """Latency that 1F1B without overlap shows: 2S(M+N-2-ceil((M-1)/N))."""
    return 2 * S * (M + N - 2 - ceil((M - 1) / N))


def prepared(name: str, N: int, M: int) -> Prepared:
    return Prepared.of(insert_comm(generate(name, N, M)))


def at(schedule: Prepared, N: int, F: float, B: float, S: float) -> float:
    return simulate(schedule, Times.uniform(N, F, B, comm=S)).seconds


@pytest.mark.parametrize("N", range(2, 9))
def test_no_overlap(N: int) -> None:
    for M in range(1, 41):
        schedule = prepared("1f1b-sno", N, M)
        for F, B, S in SETS:
            want = (M + N - 1) * (F + B) + exposed(N, M, S)
            assert at(schedule, N, F, B, S) == want, (M, F, B, S)


@pytest.mark.parametrize("N", range(2, 9))
def test_overlap(N: int) -> None:
    for M in range(1, 41):
        schedule = prepared("1f1b-so", N, M)
        for F, B, S in SETS:
            want = (M + N - 1) * (F + B) + 2 * S * (N - 1)
            assert at(schedule, N, F, B, S) == want, (M, F, B, S)


def test_gpipe_takes_as_long_as_overlap_while_links_keep_up() -> None:
    for N in (2, 3, 5, 8):
        for M in (1, 2, 7, 40):
            schedule = prepared("gpipe", N, M)
            for F, B, S in SETS:
                want = (M + N - 1) * (F + B) + 2 * S * (N - 1)
                assert (at(schedule, N, F, B, S) == want) == (min(F, B) >= S or M == 1)


def test_overlap_form_ends_where_transfers_outgrow_compute() -> None:
    """2S <= F + B is the form's condition; at S = 2, F + B = 3 it fails."""
    assert run("1f1b-so", 4, 20, 1, 2, 2.0).seconds > (20 + 3) * 3 + 4 * 3


@pytest.mark.parametrize(("F", "B"), [(1.0, 2.0), (1.0, 1.0), (2.0, 3.0)])
def test_streaming(F: float, B: float) -> None:
    """1F1B-AS: (M+N-1)(F+B). FBP with a static split: (M+2N-1)(F+B)."""
    for N in range(1, 9):
        for M in range(1, 30):
            times = Times.uniform(N, F, B)
            one = simulate(generate("1f1b-as", N, M), times)
            assert one.seconds == (M + N - 1) * (F + B)
            both = simulate(generate("fbp-as", N, M), times)
            assert both.seconds == (M + 2 * N - 1) * (F + B)


def test_published_points() -> None:
    """N = 4, M = 8, F = 1, B = 2."""
    times = {n: run(n, 4, 8, 1, 2, 0.0).seconds for n in ("1f1b", "gpipe", "1f1b-so", "fbp-as")}
    assert times == {"1f1b": 33, "gpipe": 33, "1f1b-so": 33, "fbp-as": 45}
    assert run("1f1b", 4, 8, 1, 2, 0.0).bubble == run("gpipe", 4, 8, 1, 2, 0.0).bubble == 36 / 132
    late = {n: run(n, 4, 8, 1, 2, 0.25).seconds for n in ("1f1b-sno", "1f1b-so", "fbp-as")}
    assert late == {"1f1b-sno": 37.0, "1f1b-so": 34.5, "fbp-as": 46.5}


def bubble(N: int, M: int) -> float:
    return (N - 1) / (M + N - 1)


@pytest.mark.parametrize("N", range(1, 9))
def test_in_flight_and_bubble(N: int) -> None:
    """Microbatches whose features stage i (1-based) holds, at most M; without transfers."""
    times, stages = Times.uniform(N), range(1, N + 1)
    for M in range(1, 41):
        few = tuple(min(N - i + 1, M) for i in stages)
        more = tuple(min(2 * (N - i) + 1, M) for i in stages)
        most = tuple(min(2 * (N - i + 1), M) for i in stages)
        held = {
            **dict.fromkeys(("1f1b", "1f1b-as", "1f1b-sno", "pipedream"), few),
            "1f1b-so": more,
            "fbp-as": most,
            "gpipe": (M,) * N,
        }
        for name, want in held.items():
            timeline = simulate(generate(name, N, M), times)
            assert timeline.peak_in_flight == want, (name, M)
            split = (2 * N - 1) / (M + 2 * N - 1)  # both directions share each device
            empty = split if name == "fbp-as" else bubble(N, M)
            assert timeline.bubble == pytest.approx(empty, abs=1e-12), (name, M)
        zero = simulate(generate("zb-h1", N, M), times).peak_in_flight
        assert all(h <= min(N, M) for h in zero)


@pytest.mark.parametrize("F", [[0, 0, 0], [1, 1, 0], [0, 1, 1]])
def test_stages_of_no_time_hold_what_they_need(F: list[float]) -> None:
    held = {"pipedream": (3.0, 2.0, 1.0), "gpipe": (9.0, 9.0, 9.0)}
    for name, want in held.items():
        timeline = simulate(lower(generate(name, 3, 9)), Times.of_stages(F))
        assert timeline.peak_in_flight == want
        assert timeline.weight_versions == ((3, 2, 1) if name == "pipedream" else (1, 1, 1))
    split = simulate(lower(generate("fbp-as", 3, 9)), Times.uniform(3, 0, 0))
    assert split.peak_in_flight == (6.0, 4.0, 2.0)


@pytest.mark.parametrize("name", ["1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "gpipe"])
def test_a_flush_takes_one_version_and_its_gradients(name: str) -> None:
    """Weights of a stage and as much to add gradients up, whatever is in flight."""
    memory = Memory(weights=[3] * 4, gradients=[3] * 4)
    schedule = lower(generate(name, 4, 8))
    assert simulate(schedule, Times.uniform(4), memory).peak_bytes == (6,) * 4


def test_host_memory_bounds_what_is_in_flight_on_the_device() -> None:
    """PipeFB holds two sets of saved values per device, whatever its depth."""
    for N in (2, 4, 8):
        assert max(run("pipefb", N, 40, 1, 2, 0.0).peak_in_flight) <= 2


def test_zero_bubble() -> None:
    """F = I = W: ZB-H1 takes 3M + (N-1), ZB-V 3M + (p-1)/2 once the pipe is full."""
    for N in range(2, 7):
        for M in range(2 * N, 4 * N):
            schedule = lower(generate("zb-h1", N, M))
            assert simulate(schedule, Times.uniform(N, 1, 2)).seconds == 3 * M + N - 1
            folded = lower(generate("zbv", 2 * N, M))
            assert simulate(folded, Times.uniform(2 * N, 0.5, 1.0)).seconds == 3 * M + (N - 1) / 2


def test_interleaving_divides_the_bubble() -> None:
    """v chunks: the fill of p - 1 slots shrinks v-fold, for M a multiple of p."""
    for p in (2, 3, 4):
        for v in (1, 2, 3):
            for rounds in (1, 2, 4):
                M, N = rounds * p, v * p
                schedule = lower(generate("interleaved", N, M, chunks=v))
                timeline = simulate(schedule, Times.uniform(N, 1 / v, 2 / v))
                assert timeline.seconds == pytest.approx(3 * M + 3 * (p - 1) / v)
