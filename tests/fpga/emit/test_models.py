"""Whole small networks, emitted, compiled and run: they agree with torch and the simulator."""

import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipec.backends.fpga.banks import ddr_ports
from pipec.backends.fpga.csim.build import BOUNDED, build
from pipec.backends.fpga.csim.run import compare_timing, run_timed
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.compiler.cycles import TimedCheck
from pipec.compiler.sizes import run_graph
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.staged import simulate_stage
from tests.sampling import without

FRAMES = 3
TARGETS = {"resnet": 3000, "vgg": 400, "encoder": 150, "attention": 700, "dense": 1}
"""Interval that a model is folded for; low ones unroll much."""


Change = Callable[[StageDesign], StageDesign]


def unchanged(design: StageDesign) -> StageDesign:
    return design


def emitted(name: str, directory: Path, change: Change = unchanged) -> StageDesign:
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph)
    streamed = {
        layer.name: 2 if layer.name.startswith("conv") else 1
        for layer in network.layers
        if isinstance(layer.nest, Mvu) and name == "vgg"
    }
    design = design_at(network, TARGETS.get(name, 1000), name=name, streamed=streamed)
    design = change(size_fifos(replace(design, ddr=ddr_ports(design))))
    inputs = {design.inputs[0].value: x}
    write_stage(design, directory, Golden(inputs, run_graph(graph, inputs)))
    return design


def timed(design: StageDesign, directory: Path) -> TimedCheck | str:
    """The timed build beside the simulator; the error where its outputs are wrong."""
    try:
        found = run_timed(directory, FRAMES)
    except BackendError as error:
        return str(error)
    return compare_timing(design.name, simulate_stage(design, FRAMES, call=True), found, FRAMES)


OTHERS = ("resnet", "dense", "attention")
"""What these have of engines others have too; of resnet all handshakes are compared below."""


@pytest.mark.parametrize("name", without(MODELS, OTHERS))
@pytest.mark.usefixtures("compiled_for_users")
def test_agrees_with_torch_and_with_the_simulator_on_every_handshake(
    tmp_path: Path, name: str
) -> None:
    found = timed(emitted(name, tmp_path), tmp_path)
    assert isinstance(found, TimedCheck), found
    assert found.differing == ()
    assert found.handshakes > 1_000


def with_depths(depths: Callable[[Stream], int]) -> Change:
    def change(design: StageDesign) -> StageDesign:
        streams = {n: replace(s, depth=depths(s)) for n, s in design.streams.items()}
        return replace(design, streams=streams)

    return change


@pytest.mark.parametrize(("name", "seed"), [("resnet", 1), ("vgg", 2)])
def test_any_depths_give_the_same_cycles(tmp_path: Path, name: str, seed: int) -> None:
    draw = random.Random(seed)
    change = with_depths(lambda s: draw.choice([1, 2, 3, 8]) if s.depth < 64 else s.depth)
    design = emitted(name, tmp_path, change)
    want = simulate_stage(design, FRAMES, record=True, call=True)
    assert sum(flow.full for flow in want.flows.values()) > 1_000
    found = run_timed(tmp_path, FRAMES, keep=True)
    assert {n: tuple(map(int, found[n][2:])) for n in want.handshakes} == want.handshakes


def test_a_skip_path_too_shallow_deadlocks_in_both(tmp_path: Path) -> None:
    skip = "add_in1"
    change = with_depths(lambda s: 2 if s.name == skip else 64)
    design = emitted("resnet", tmp_path, change)
    with pytest.raises(BackendError) as simulated:
        simulate_stage(design, FRAMES, call=True)
    with pytest.raises(BackendError) as timed:
        run_timed(tmp_path, FRAMES)
    bounded = subprocess.run(
        [build(tmp_path, BOUNDED), tmp_path, str(FRAMES)],
        capture_output=True,
        text=True,
        check=False,
    )
    want, *found = (
        {line.strip() for line in text.splitlines() if " waits: " in line}
        for text in (str(simulated.value), str(timed.value), bounded.stderr)
    )
    assert found == [want, want]
    assert any(f"{skip} is full" in line for line in want)
