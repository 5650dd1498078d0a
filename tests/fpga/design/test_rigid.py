"""Rigid pipelines: the simulator against shift registers clocked one by one; what a style costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rtl.style import Style
from pipec.backends.fpga.cycles import latency_of, network_of, steady_state
from pipec.backends.fpga.fifo import busiest, size_fifos
from pipec.backends.fpga.flow import schedule
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.runs import Run
from pipec.backends.fpga.simulator import native
from pipec.backends.fpga.simulator.native import Process
from pipec.errors import BackendError
from tests.fpga.design import plain, rigid
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.naive import naive_rigid
from tests.fpga.design.test_simulators import networks
from tests.sampling import each, examples

RIGID = st.sampled_from([Style.FLUSH, Style.STALL])
Network = tuple[list[Process], dict[str, int]]


def visible(
    network: Network, frames: int, style: Style, initial: dict[str, int] | None = None
) -> dict[str, list[int]] | None:
    try:
        found = rigid.simulate(*network, frames, style, initial=initial)
    except BackendError as error:
        if "deadlocks" not in str(error):
            raise
        return None
    return {s: list(cycles) for s, cycles in found.handshakes.items()}


@examples(200, 80)
@given(networks(), RIGID, st.integers(1, 3))
def test_every_handshake_is_that_of_clocked_registers(
    network: Network, style: Style, frames: int
) -> None:
    found, want = visible(network, frames, style), naive_rigid(*network, frames, style, {})
    assert (found is None) == (want is None)
    if found is not None and want is not None:
        assert found == {s: cycles[: len(found[s])] for s, cycles in want.items()}
        assert all(found.values())


@examples(200, 80)
@given(networks(), st.integers(1, 3))
def test_the_fast_simulator_stalls_like_the_slow_one(network: Network, frames: int) -> None:
    want = visible(network, frames, Style.STALL)
    try:
        found = native.simulate(*network, frames, record=True, rigid=True)
    except BackendError:
        assert want is None
        return
    assert want is not None
    assert found.ends == rigid.simulate(*network, frames, Style.STALL).ends
    assert {s: list(t[: len(want[s])]) for s, t in found.handshakes.items()} == want


@examples(200, 80)
@given(networks(), st.integers(1, 3))
def test_what_is_in_a_pipeline_leaves_behind_the_last_frame_of_a_call(
    network: Network, frames: int
) -> None:
    want = naive_rigid(*network, frames, Style.STALL, {}, call=True)
    try:
        found = native.simulate(*network, frames, record=True, rigid=True, call=True)
    except BackendError:
        assert want is None
        return
    assert {s: list(t) for s, t in found.handshakes.items()} == want


@examples(120, 50)
@given(networks())
def test_a_steady_state_of_rigid_pipelines_lasts(network: Network) -> None:
    try:
        trace = steady_state(*network, rigid=True)
    except BackendError:
        return
    longer = rigid.simulate(*network, len(trace.ends) + 6, Style.STALL)
    assert longer.ends[: len(trace.ends)] == trace.ends
    if trace.steady:
        last = len(trace.ends) - 1
        assert longer.ends[last:] == tuple(trace.ends[-1] + k * trace.interval for k in range(7))


@examples(100, 40)
@given(RIGID, st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_feedback(style: Style, held: int, work: int, depth: int, more: int) -> None:
    """A loop with tokens at reset. Iteration i + held needs the result of iteration i, which moves
    on with the pipeline alone: with `stall` it must have left before that iteration is due. And in
    a pipeline of one register a loop that is full at reset never finds a slot."""
    step = Process("step", (Run(12, work, 0b11, 0b11),), ("x", "back"), ("back", "y"), depth)
    source = Process("source", (Run(12, 1, 0, 1),), (), ("x",))
    network = [source, step], {"x": 2, "back": held + more}
    found = visible(network, 3, style, {"back": held})
    want = naive_rigid(*network, 3, style, {"back": held})
    full = depth == 1 and not more
    dead = full or (style is Style.STALL and held * work < depth)
    assert (found is None, want is None) == (dead, dead)
    if found is not None and want is not None:
        assert found["x"] == want["x"][:36]
        seen = want["back"]  # the last ones are still in flight when all have started
        assert len(seen) > 36 - depth
        assert found["back"][: len(seen)] == seen[:36]


@examples(100, 50)
@given(networks())
def test_pipelines_of_one_register_are_free_running_with_one_slot_less(network: Network) -> None:
    """With D = 1 nothing is in flight: there is nothing to freeze, and no token owns a slot."""
    processes, depths = network
    processes = [Process(p.name, p.table, p.inputs, p.outputs) for p in processes]
    less = {s: n - 1 for s, n in depths.items()}
    for style in (Style.FLUSH, Style.STALL):
        try:
            want = plain.simulate(processes, less, 2, record=True)
        except BackendError:
            assert visible((processes, depths), 2, style) is None
            continue
        found = rigid.simulate(processes, depths, 2, style)
        assert (found.ends, found.handshakes) == (want.ends, want.handshakes)


@pytest.mark.parametrize(("slots", "interval"), [(1, 20), (2, 10), (8, 10)])
def test_a_fifo_of_one_halves_the_rate(slots: int, interval: int) -> None:
    """Its registered `full` says no in the cycle in which the reader pops."""
    chain = [
        Process("a", (Run(10, 1, 0, 1),), (), ("s",), 4),
        Process("b", (Run(10, 1, 1),), ("s",)),
    ]
    assert rigid.simulate(chain, {"s": slots}, 3, Style.FLUSH).interval == interval
    assert plain.simulate(chain, {"s": slots}, 3).interval == 10


def test_stall_holds_the_end_of_a_frame_back() -> None:
    """Results in the last D - 1 registers leave when the next frame's tokens come; `flush` lets
    bubbles push them out."""
    slow = Process("slow", (Run(1, 90, 0, 1), Run(9, 1, 0, 1)), (), ("x",))
    deep = Process("deep", (Run(10, 1, 1, 1),), ("x",), ("y",), 5)
    last = Process("last", (Run(10, 1, 1),), ("y",))
    ends = {
        style: rigid.simulate([slow, deep, last], {"x": 4, "y": 4}, 2, style).latency
        for style in (Style.FLUSH, Style.STALL)
    }
    free = plain.simulate([slow, deep, last], {"x": 4, "y": 4}, 2).latency
    assert ends[Style.FLUSH] == free
    assert ends[Style.STALL] > free + 80


@pytest.mark.parametrize(("name", "target"), each(list(MODELS), [200, 1_000, 5_000]))
def test_rigid_stages_keep_the_interval_of_their_busiest_engine(name: str, target: int) -> None:
    """At the FIFO depths that were chosen; for free-running pipelines half of them would not."""
    model, x = made(name)
    design = size_fifos(design_at(lower(graph_of(model, x)), target))
    assert steady_state(*network_of(design)).interval == design.interval == busiest(design)[0]
    alone = latency_of(*network_of(design))
    assert alone == pytest.approx(design.latency, rel=0.1)


@pytest.mark.parametrize(("name", "target"), each(list(MODELS), [200, 1_000, 5_000]))
def test_no_token_is_read_in_a_schedule_before_it_has_left_its_pipeline(
    name: str, target: int
) -> None:
    """Those that leave with a later frame, too: of engines that are made late, most of all."""
    model, x = made(name)
    design = design_at(lower(graph_of(model, x)), target)
    found = schedule(design, float(busiest(design)[0]))
    for stream in found.written.keys() & found.read.keys():
        written, read = found.written[stream], found.read[stream]
        reads = np.diff(read.counts, prepend=0.0) > 0
        which = np.searchsorted(written.counts, read.counts[reads], side="left")
        visible = written.ends[which.clip(max=len(written.ends) - 1)] + 1
        assert (visible <= read.starts[reads] + 1e-6).all(), stream


def test_a_part_that_deadlocks_is_named_though_another_could_run_for_ever() -> None:
    """All of one stream is written before the other, and read behind it; it does not fit."""
    halves = (Run(4, 1, 1, 1), Run(4, 1, 2, 2))
    stuck = [
        Process("writer", tuple(Run(r.count, 1, 0, r.writes) for r in halves), (), ("a", "b"), 1),
        Process(
            "reader", tuple(Run(r.count, 1, 3 - r.reads, 0) for r in halves), ("a", "b"), (), 1
        ),
    ]
    apart = [Process("source", (Run(4, 1, 0, 1),), (), ("c",), 1),
             Process("sink", (Run(4, 1, 1, 0),), ("c",), (), 1)]  # fmt: skip
    for network in (stuck + apart, apart + stuck):
        with pytest.raises(BackendError, match="the dataflow deadlocks"):
            steady_state(network, dict.fromkeys("abc", 1))
    assert steady_state([*stuck, *apart], {"a": 8, "b": 8, "c": 1}).interval == 8
