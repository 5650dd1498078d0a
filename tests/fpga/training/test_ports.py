"""What kernels of a training stage have besides engines is counted as it is emitted."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga import memory
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.training import kernels
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.phases import phases_of
from pipec.backends.fpga.training.stage import TrainedStage, make_stage, make_stages
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.device import Device
from pipec.cluster.presets import preset
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.graph.ir import Graph
from tests.fpga.design.staged import within
from tests.fpga.training.models import cnn, dropout, encoder, mlp


def ports_in(source: Path) -> tuple[int, int, int]:
    """Of an emitted kernel the ways of its bundles, a read and a write one, its AXI streams, and
    the words of 32 bits that a host writes."""
    text = source.read_text(encoding="utf-8")
    ways = set[tuple[str, str]]()
    bundles = re.findall(r"INTERFACE m_axi port = (\w+) .*bundle = (\w+)", text)
    for name, bundle in bundles:
        (const,) = re.findall(
            rf"(const )?[\w<>, ]+ \*{name}[,)].*\n", text.partition('extern "C"')[2]
        )
        added = re.search(rf"engine::accumulate<.*\b{name}\b", text)
        ways |= {(bundle, "read")} if const or added else set()
        ways |= set() if const else {(bundle, "write")}
    scalars = re.findall(r"INTERFACE s_axilite port = (\w+)", text)
    words = len(scalars) - 1 + len(bundles)  # not the return value; a pointer has two
    return len(ways), len(re.findall("INTERFACE axis port", text)), words


@pytest.mark.parametrize(
    ("make", "on_chip"), [(mlp, True), (cnn, False), (encoder, True), (dropout, False)]
)
def test_every_port_of_every_kernel_is_counted(
    make: Callable[[], Graph], on_chip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways to memory, ends of streams, and arguments, saved values on the chip or in memory."""
    if not on_chip:
        place = kernels.place_features
        monkeypatch.setattr(kernels, "place_features", lambda s, n, _: place(s, n, Resources()))
    monkeypatch.setattr(memory, "interconnect", lambda _: Resources(ddr=1.0))
    monkeypatch.setattr(memory, "port", lambda _: Resources(ddr=1e3))
    monkeypatch.setattr(memory, "registers", lambda words: Resources(ddr=words * 1e6))
    monkeypatch.setattr(memory, "ARGUMENT", Resources(ddr=1e6))
    plan = make_plan(
        make(), parse_cluster("1xvcu118"), "fpga", passes=default_passes(schedule="fbp-as")
    )
    emit(plan, tmp_path / "out")
    (folder,) = (tmp_path / "out").glob("stage0_*")
    (stage,) = make_stages(plan)
    counted, emitted = {}, {}
    for name, design in stage.designs.items():
        found = round(design.resources.ddr)
        counted[name] = found % 1_000, found // 1_000 % 1_000, found // 1_000_000
        emitted[name] = ports_in(folder / name / "src/stage_top.cpp")
    assert counted == emitted
    assert set(emitted) == {"forward", "backward", "update", *(["saved"] if on_chip else [])}
    assert min(ways for ways, _, _ in (emitted["backward"], emitted["update"])) > 1


def test_controllers_that_only_the_update_uses_take_room() -> None:
    """F and B of a small stage use one of a board's two memories, the update both."""
    graph = mlp()
    (phases,) = [phases_of(differentiate(graph, [graph])[0])]
    (networks,) = networks_of([phases])

    def made(device: Device) -> TrainedStage:
        return make_stage(phases, networks, Board(device), "stage0", 2)

    def used(stage: TrainedStage) -> Resources:
        banks = {p.bank for design in stage.designs.values() for p in design.ddr}
        assert banks == {"DDR[0]", "DDR[1]"}
        assert {p.bank for p in stage.kernels.B.ddr} == {"DDR[0]"}
        controller = Board(preset("vcu118")).controller
        return sum((d.resources for d in stage.designs.values()), controller)

    device = preset("vcu118")
    assert device.fpga is not None
    most = used(made(device)).lut - 20_000 - Board(device).limits.lut
    small = dataclasses.replace(device.fpga, lut=device.fpga.lut + int(most / 0.7))
    tight = dataclasses.replace(device, fpga=small)
    assert within(used(made(tight)), Board(tight).limits)
