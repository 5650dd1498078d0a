"""SystemVerilog of a few stages under Icarus: every handshake, stall and value as predicted.

All configurations run by ``make rtl`` under Verilator.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.rtl.__main__ import wrong_values
from benchmarks.rtl.case import Case
from benchmarks.rtl.cases import cases
from benchmarks.rtl.compare import Comparison, compare
from benchmarks.rtl.finn import MEASURED
from benchmarks.rtl.generate import quiet_limit, stage_verilog, write_reference
from benchmarks.rtl.simulate import Bench, Observed, Simulator, run_benches
from benchmarks.rtl.stage import main
from benchmarks.rtl.stages import sample_cases
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import Tile
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.stagejson import stage_record
from pipec.errors import BackendError
from tests.fpga.design.models import graph_of, made

CASES = {case.name: case for case in cases()}
EXACT = [
    "mac01", "mac07", "mac12", "mac17", "window09", "window11", "window14", "window16", "fifo04",
    "fifo08", "fifo19", "fifo20", "tile02", "tile10", "norm04", "cell03", "cell06", "stage04",
]  # fmt: skip
SAMPLES = [c.name for c in sample_cases()]
"""Kinds of engines that say how they are to be tested."""
RIGID = ["rigid04", "rigid18", "rigid22", "rigid36", "rigid38", "rigid40", "rigid46", "rigid64"]

needs_icarus = pytest.mark.skipif(
    not Simulator.ICARUS.installed, reason="iverilog is not installed (apt-get install iverilog)"
)


def bench_of(case: Case) -> Bench:
    return Bench(case.name, case.make(), 2, case.style)


class Runs(dict[str, Observed]):
    """What benches saw; each runs when a test of this worker asks for it first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> Observed:
        folder = self.folder / name
        folder.mkdir()
        self |= run_benches([bench_of(CASES[name])], folder, Simulator.ICARUS, values=True)
        return self[name]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("benches"))


def test_the_list_has_enough_configurations_with_unique_names() -> None:
    assert len(CASES) == len(cases()) >= 60
    groups = {case.group for case in CASES.values()}
    wanted = {"mac", "window", "fifo", "tile", "norm", "cell", "ports", "rigid", "stage"}
    assert groups == wanted | {name.rstrip("0123456789") for name in SAMPLES}


@needs_icarus
@pytest.mark.parametrize("name", EXACT)
def test_free_running_pipelines_are_exact(name: str, seen: Mapping[str, Observed]) -> None:
    bench = bench_of(CASES[name])
    found = compare(bench, seen[name])
    assert found.exact
    assert found.misses == ()
    tokens, wrong = wrong_values(bench, seen[name])
    assert wrong == 0
    if name[:4] not in ("tile", "cell", "mac0") and name != "fifo08":
        assert found.handshakes > 200
        assert tokens


@needs_icarus
def test_shared_ports_are_within_one_per_cent(seen: Mapping[str, Observed]) -> None:
    found = compare(bench_of(CASES["ports02"]), seen["ports02"])
    assert found.misses == ()
    assert found.different  # the answer is for a port of its own


@needs_icarus
@pytest.mark.parametrize("name", RIGID)
def test_rigid_pipelines_are_exact(name: str, seen: Mapping[str, Observed]) -> None:
    bench = bench_of(CASES[name])
    found = compare(bench, seen[name])
    assert found.exact
    if found.measured is None:  # a loop whose result waits in the pipeline for its own input
        assert name == "rigid46"
        return
    assert found.handshakes > 100
    other = Style.STALL if bench.style is Style.FLUSH else Style.FLUSH
    free, swapped = (
        compare(dataclasses.replace(bench, style=style), seen[name])
        for style in (Style.FREE, other)
    )
    assert free.different  # the styles differ, so being exact says something
    assert swapped.different or not swapped.same_verdict


@needs_icarus
@pytest.mark.parametrize("name", SAMPLES)
def test_what_kinds_say_of_themselves_is_exact(name: str, seen: Mapping[str, Observed]) -> None:
    bench = bench_of(CASES[name])
    assert not isinstance(bench.subject, Tile)
    found = compare(bench, seen[name])
    assert found.exact
    inner = [f for f in bench.subject["fifos"] if f["from"] and f["to"]]
    assert (found.handshakes > 100) == bool(inner)
    tokens, wrong = wrong_values(bench, seen[name])
    assert tokens
    assert wrong == 0


def deepened(record: Mapping[str, Any], by: int) -> dict[str, Any]:
    fifos = [{**f, "depth": f["depth"] + by} for f in record["fifos"]]
    return {**record, "fifos": fifos}


@needs_icarus
def test_another_depth_is_noticed(seen: Mapping[str, Observed]) -> None:
    """FIFOs one deeper in the prediction than in the RTL: neither verdict nor handshakes agree."""
    for name, same_verdict in (("fifo20", True), ("fifo08", False)):
        bench = bench_of(CASES[name])
        assert not isinstance(bench.subject, Tile)
        other = dataclasses.replace(
            bench, subject=deepened(bench.subject, 1 if same_verdict else 9)
        )
        found = compare(other, seen[name])
        assert found.same_verdict == same_verdict
        assert not found.exact


def test_finns_own_rtl_is_predicted_from_its_registers() -> None:
    """First frames to the cycle; a window's frame but for the turn-round cycle of FINN's."""
    for row in MEASURED:
        assert row.cycles - row.simulated == isinstance(row.nest, Swg), row.what


def test_misses_are_named() -> None:
    bench = Bench("b", Tile(8, 8, 8, 4), 2)
    assert Comparison(bench, (2000, 100), (2019, 116)).misses == ()
    assert Comparison(bench, (2000, 100), (2021, 117)).misses == ("interval", "latency")
    assert Comparison(bench, (100, 100), (100, 100), stall_difference=1).misses == ("stalls",)
    assert Comparison(bench, None, (100, 100)).misses == ("deadlock verdict",)
    assert Comparison(bench, None, None).exact


def test_tile_interval_is_the_largest_cycle_ratio() -> None:
    for case in CASES.values():
        tile = case.make() if case.group == "tile" else None
        if isinstance(tile, Tile):
            measured = tile.simulate(4).interval / tile.tiles
            assert tile.bound <= measured <= tile.bound + 1


def test_an_unknown_engine_is_named() -> None:
    engine = {"name": "odd_0", "kind": "odd", "inputs": [], "outputs": [], "nest": {}}
    record = {"stage": "s", "engines": [engine], "fifos": []}
    with pytest.raises(BackendError, match="odd_0"):
        stage_verilog(record, "s")


def test_waiting_is_longer_than_any_silence() -> None:
    record = CASES["norm02"].make()
    assert not isinstance(record, Tile)
    assert quiet_limit(record) > 2 * 23
    assert [style.number for style in Style] == [0, 1, 2]


def test_a_stage_directory_is_written_and_checked(tmp_path: Path) -> None:
    """A folded model with its AXI ports, as a user runs it: ``stage.json`` in, equal cycles out."""
    network, x = made("attention")
    design = size_fifos(design_at(lower(graph_of(network, x)), 3_000))
    record = json.loads(json.dumps(stage_record(design)))
    assert record["ports"]
    (tmp_path / "stage.json").write_text(json.dumps(record))
    write_reference(record, tmp_path / "rtl")
    written = {path.name for path in (tmp_path / "rtl").iterdir()}
    assert {"stage.sv", "bench_stage.sv", "top.sv", "main.cpp", "swg.sv", "mvu.sv"} <= written
    if Simulator.ICARUS.installed:
        options = ["--simulator", "iverilog", "--frames", "2", "--write", str(tmp_path / "kept")]
        done = CliRunner().invoke(main, [str(tmp_path), *options])
        assert done.exit_code == 0, done.output
        assert {path.name for path in (tmp_path / "kept").iterdir()} == written
        assert "\n0 of " in done.output
    damaged = CliRunner().invoke(main, [str(tmp_path / "rtl")])
    assert damaged.exit_code == 1
    assert "stage.json cannot be read" in damaged.output
