"""The two simulators are one: equal traces, equal deadlocks; and what a steady state promises."""

import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rtl.style import Style
from pipec.backends.fpga.cycles import network_of, steady_state
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator import native
from pipec.backends.fpga.simulator.native import Process, Trace
from pipec.errors import BackendError
from tests.fpga.design import plain, rigid
from tests.fpga.design.models import graph_of, made
from tests.fpga.design.plain import digest
from tests.fpga.design.staged import simulate_stage


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Process], dict[str, int]]:
    """A source, random processes each reading one or two earlier streams, and sinks for the rest.

    A process reads and writes the same number of tokens per frame on every port, in an order of
    its own; its runs are grouped into loops at random.
    """
    tokens = draw(st.integers(1, 12)) * 2
    processes, open_streams = list[Process](), ["s0"]
    processes.append(Process("p0", (Run(tokens, draw(st.integers(1, 3)), 0, 1),), (), ("s0",)))
    for k in range(1, draw(st.integers(2, 6))):
        ins = draw(st.permutations(open_streams))[: draw(st.integers(1, 2))]
        outs = [f"s{k}_{j}" for j in range(draw(st.integers(1, 2)))]
        open_streams = [s for s in open_streams if s not in ins] + outs
        table = draw(tables(tokens, len(ins), len(outs)))
        processes.append(Process(f"p{k}", table, tuple(ins), tuple(outs), draw(st.integers(1, 5))))
    for k, name in enumerate(open_streams):
        slow = draw(st.integers(1, 4))
        processes.append(Process(f"sink{k}", (Run(tokens, slow, 1, 0),), (name,), ()))
    names = sorted({s for p in processes for s in p.outputs})
    return processes, {s: draw(st.integers(1, 40)) for s in names}


@st.composite
def tables(draw: st.DrawFn, tokens: int, ins: int, outs: int) -> Runs:
    half = tokens // 2
    reads, writes = (1 << ins) - 1, (1 << outs) - 1
    delta = st.integers(1, 4)
    return draw(
        st.sampled_from(
            [
                (Run(tokens, draw(delta), reads, writes),),
                (Loop(2, (Run(half, draw(delta), reads), Run(half, draw(delta), 0, writes))),),
                (Loop(half, (Run(2, 2, reads), Run(2, draw(delta), 0, writes))),),
                (Run(tokens, draw(delta), 1), Run(tokens, 1, reads & ~1, writes)),
                (Run(tokens, 1, reads, 1), Run(tokens, draw(delta), 0, writes & ~1)),
            ]
        )
    )  # fmt: skip


def ran(run: object, processes: list[Process], depths: dict[str, int], frames: int) -> Trace | str:
    assert callable(run)
    try:
        found = run(processes, depths, frames, record=True)
    except BackendError as error:
        return str(error)
    assert isinstance(found, Trace)
    return found


@settings(max_examples=60, deadline=None)
@given(networks())
def test_both_simulators_give_the_same_trace(
    network: tuple[list[Process], dict[str, int]],
) -> None:
    assert ran(native.simulate, *network, 3) == ran(plain.simulate, *network, 3)


@settings(max_examples=60, deadline=None)
@given(networks())
def test_a_steady_state_lasts(network: tuple[list[Process], dict[str, int]]) -> None:
    processes, depths = network
    try:
        trace = steady_state(processes, depths, rigid=False)
    except BackendError as error:
        with pytest.raises(BackendError, match=re.escape(str(error).splitlines()[0])):
            plain.simulate(processes, depths, 8)
        return
    longer = plain.simulate(processes, depths, len(trace.ends) + 6)
    assert longer.ends[: len(trace.ends)] == trace.ends
    if trace.steady:
        last = len(trace.ends) - 1
        assert longer.ends[last:] == tuple(trace.ends[-1] + k * trace.interval for k in range(7))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6))
def test_feedback_takes_its_latency_per_round(held: int, work: int, d: int, n: int) -> None:
    """A loop with so many tokens at reset: D + 1 cycles of latency for as many firings."""
    step = Process("step", (Run(12, work, 0b11, 0b11),), ("x", "back"), ("back", "y"), d)
    source = Process("source", (Run(12, 1, 0, 1),), (), ("x",))
    depths, initial = {"x": 4, "back": max(n, held)}, {"back": held}
    runs = [
        r([source, step], depths, 9, initial=initial) for r in (plain.simulate, native.simulate)
    ]
    assert runs[0] == runs[1]
    assert runs[0].interval == pytest.approx(12 * max(work, d / held), abs=d)
    steady = steady_state([source, step], depths, initial, rigid=False)
    longer = plain.simulate([source, step], depths, len(steady.ends) + 4, initial=initial)
    assert steady.steady
    assert longer.interval == steady.interval


@pytest.mark.parametrize("style", [Style.FREE, Style.STALL])
def test_ports_that_are_not_connected_are_always_ready(style: Style) -> None:
    """A table may read and write ports that its process has no streams for."""
    first = Process("first", (Run(6, 2, 0b101, 0b11),), ("x",), ("s",), 3)
    last = Process("last", (Run(6, 5, 0b11, 0b1),), ("s",))
    closed = [
        Process("first", (Run(6, 2, 0, 0b1),), (), ("s",), 3),
        Process("last", (Run(6, 5, 0b1),), ("s",)),
    ]
    slow = plain.simulate if style is Style.FREE else partial(rigid.simulate, style=style)
    fast = partial(native.simulate, rigid=style is Style.STALL, record=True)
    want = slow(closed, {"s": 2}, 3)
    assert slow([first, last], {"s": 2}, 3) == want
    assert fast([first, last], {"s": 2}, 3) == fast(closed, {"s": 2}, 3)
    assert fast([first, last], {"s": 2}, 3).ends == want.ends


def test_digests_are_those_of_the_handshakes() -> None:
    writer = Process("a", (Run(9, 2, 0, 1),), (), ("s",), 3)
    reader = Process("b", (Run(9, 3, 1),), ("s",))
    trace = native.simulate([writer, reader], {"s": 2}, 2, record=True)
    assert {s: digest(t) for s, t in trace.handshakes.items()} == {
        s: f.digest for s, f in trace.flows.items()
    }
    assert trace.flows["s"].tokens == 18


def test_the_fast_simulator_equals_the_plain_one_on_a_real_stage() -> None:
    model, x = made("resnet")
    design = size_fifos(design_at(lower(graph_of(model, x)), 1_500))
    processes, depths = network_of(design)[0], network_of(design)[1]
    assert native.simulate(processes, depths, 3) == plain.simulate(processes, depths, 3)
    trace = steady_state(processes, depths, rigid=False)
    assert trace.steady
    assert simulate_stage(design, len(trace.ends) + 2).interval == trace.interval
