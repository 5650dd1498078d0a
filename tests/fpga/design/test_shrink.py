"""FIFO depths by simulation: they keep the interval, and none of them can be less."""

import dataclasses

import pytest

from pipec.backends.fpga.cycles import FREE_DEPTH, network_of, shrink_fifos, steady_state
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of, made


def design_of(name: str, interval: int) -> StageDesign:
    model, x = made(name)
    return size_fifos(design_at(lower(graph_of(model, x)), interval))


def bits(design: StageDesign) -> int:
    return sum(s.depth * s.token_bits for s in design.streams.values())


def interval_of(design: StageDesign, depths: dict[str, int]) -> float:
    try:
        return steady_state(network_of(design)[0], depths).interval
    except BackendError:  # it deadlocks
        return float("inf")


@pytest.mark.parametrize("name", ["excite", "inception"])
def test_no_depth_can_be_less(name: str) -> None:
    design = design_of(name, 1_500)
    found = shrink_fifos(design)
    assert (found.interval, found.simulated) == (design.interval, True)
    assert bits(found) < bits(design)
    depths = network_of(found)[1]
    deep = [n for n, depth in depths.items() if depth > FREE_DEPTH]
    assert deep
    for stream in deep:
        less = {**depths, stream: depths[stream] - 1}
        assert interval_of(found, less) > found.interval


def test_streams_that_are_too_shallow_grow() -> None:
    design = design_of("attention", 1_500)
    shallow = dataclasses.replace(design.streams["add_1_in0"], depth=24)
    tight = {**design.streams, "add_1_in0": shallow}
    slow = dataclasses.replace(design, streams=tight)
    assert steady_state(network_of(slow)[0], network_of(slow)[1]).interval > design.interval
    assert shrink_fifos(slow).interval == design.interval


def test_a_deadlock_is_named() -> None:
    design = design_of("excite", 1_500)
    streams = {n: dataclasses.replace(s, depth=2) for n, s in design.streams.items()}
    with pytest.raises(BackendError, match="deadlocks"):
        shrink_fifos(dataclasses.replace(design, streams=streams))
