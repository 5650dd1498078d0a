"""Whole small networks: emitted, compiled and run, they agree with torch, and fire as planned."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipec.backends.fpga.csim.build import command, compiler
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.golden import Golden, run_graph
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.lowering.layers import Dense
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.runs import busy_cycles
from pipec.backends.fpga.search import design_at
from pipec.backends.fpga.streaming import ddr_ports
from tests.fpga.design.models import MODELS, graph_of, made

HOOKS = Path(__file__).with_name("firings.h")
TARGETS = {"resnet": 3000, "vgg": 400, "encoder": 150, "attention": 700, "dense": 1}
"""Interval that a model is folded for; low ones unroll much."""


@dataclass(frozen=True)
class Played:
    """One emitted network, and what its test bench said."""

    design: StageDesign
    status: int
    output: str
    cycles: dict[str, int]


def emitted(name: str, directory: Path) -> StageDesign:
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph)
    streamed = {
        layer.name: 2 if layer.name.startswith("conv") else 1
        for layer in network.layers
        if isinstance(layer, Dense) and name == "vgg"
    }
    design = design_at(network, TARGETS.get(name, 1000), name=name, streamed=streamed)
    design = replace(design, ddr=ddr_ports(design))
    inputs = {design.inputs[0].value: x}
    write_stage(design, directory, Golden(inputs, run_graph(graph, inputs)))
    return design


def played(design: StageDesign, directory: Path) -> Played:
    binary = str(directory / "tb.bin")
    flags = ["-include", str(HOOKS), "-Werror"]
    subprocess.run([*command(compiler(), binary), *flags], cwd=directory, check=True)
    done = subprocess.run([binary, directory], capture_output=True, text=True, check=False)
    cycles = re.findall(r"^(\d+) .*<cfg::(\w+)>", done.stderr, re.MULTILINE)
    counted = {engine: int(n) for n, engine in cycles}
    return Played(design, done.returncode, done.stdout + done.stderr, counted)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    folder = tmp_path_factory.mktemp("networks")
    designs = {name: emitted(name, folder / name) for name in MODELS}
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda name: played(designs[name], folder / name), designs)
        return dict(zip(designs, found, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_torch(networks: dict[str, Played], name: str) -> None:
    assert networks[name].status == 0, networks[name].output


@pytest.mark.parametrize("name", MODELS)
def test_fires_as_its_run_tables_say(networks: dict[str, Played], name: str) -> None:
    found = networks[name]
    planned = {engine.name: busy_cycles(engine) for engine in found.design.engines}
    assert {k: v for k, v in found.cycles.items() if k in planned} == planned
