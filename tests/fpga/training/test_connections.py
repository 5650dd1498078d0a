"""Files that join the kernels of a training stage: names are ports of the emitted kernels, each
joined once."""

import re
from pathlib import Path

import pytest

from pipec.backends.fpga.training.stage import make_stages
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, emit, make_plan
from tests.fpga.emit.joined import Joined, of_cfg, of_tcl, ports_of
from tests.trained import trained_mlp


@pytest.fixture(scope="module", params=["2xu280", "2xvcu118"])
def emitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of an MLP, three microbatches in flight; a board with a platform, one without."""
    passes = default_passes(schedule="fbp-as", microbatches=3)
    model = trained_mlp(4, width=8, batch=2)
    plan = make_plan(model, parse_cluster(request.param), "fpga", passes=passes)
    folder = tmp_path_factory.mktemp("joined") / "out"
    emit(plan, folder)
    for stage in make_stages(plan):
        groups: dict[str, set[str]] = {}
        for design in (stage.kernels.F, stage.kernels.B, stage.update):
            assert design is not None
            for port in design.ddr:
                groups.setdefault(port.group, set()).add(port.bank)
        # the update reads the sums where B leaves them
        assert len(groups["sums"]) == 1
        assert all(len(banks) == 1 for banks in groups.values())
    return folder


def read(folder: Path) -> Joined:
    cfg = folder / "connections.cfg"
    return of_cfg(cfg) if cfg.exists() else of_tcl(folder / "connections.tcl")


def test_every_port_of_every_kernel_is_joined_or_named_once(emitted: Path) -> None:
    for folder in sorted(emitted.glob("stage*")):
        found, tops = read(folder), {}
        for kernel in ("forward", "backward", "update", "saved"):
            top, streams, memories = ports_of(folder / kernel)
            tops[top] = f"{top}_1"
            mine = [p for p in found.streams if p.startswith(f"{top}_1.")]
            assert sorted(mine) == sorted(f"{top}_1.{name}" for name in streams)
            memory = {f"{top}_1.m_axi_{name}" for name in memories}
            assert {p for p in found.banks if p.startswith(f"{top}_1.")} == memory
        assert found.instances == {one: top for top, one in tops.items()}
        assert not list(folder.glob("*/link*.cfg")) + list(folder.glob("*/block_design.tcl"))


def test_saved_values_go_from_forward_by_way_of_saved_to_backward(emitted: Path) -> None:
    for folder in sorted(emitted.glob("stage*")):
        found = read(folder)
        assert found.pairs
        ways = [tuple(re.sub(r"_top_1\..*", "", end) for end in pair) for pair in found.pairs]
        stage = folder.name.split("_")[0]
        forward, saved, backward = (f"{stage}_{k}" for k in ("forward", "saved", "backward"))
        assert set(ways) == {(forward, saved), (saved, backward)}
        for source, sink in found.pairs:
            value = source.split(".out_")[1]
            assert sink.split(".in_")[1] == value
        assert ways.count((forward, saved)) == ways.count((saved, backward))


def test_what_crosses_to_other_boards_is_named(emitted: Path) -> None:
    """The value goes down, its gradient comes up; block designs leave the host's pins open too."""

    def values(found: Joined, way: str) -> set[str]:
        named = {p.split(way)[1] for p in found.crossing if way in p}
        return named - {"input", "target", "loss"}

    first, second = (read(folder) for folder in sorted(emitted.glob("stage*")))
    down = values(first, "_1.out_")
    assert down
    assert values(second, "_1.in_") == down
    assert values(second, "_1.out_") == values(first, "_1.in_") == {f"grad_{v}" for v in down}
