"""Host programs on boards in software: compiled against XRT's names, run against golden data."""

import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipec.backends.fpga.banks import banks_of, ddr_ports, with_banks
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.toolchain import compile_cached
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.presets import preset
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.sizes import run_graph
from tests.fpga.design.models import graph_of, made
from tests.fpga.emit.joined import of_cfg, ports_of
from tests.fpga.lint.stage import lint

FLAGS = "-std=c++17 -O0 -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off"
FRAMES, LIMIT = 5, 120.0


LIBRARY = ("algorithm", "chrono", "condition_variable", "deque", "fstream", "functional", "map",
           "memory", "set", "stdexcept", "string", "thread", "vector")  # fmt: skip


def build(stage: Path, **words: str) -> Path:
    given = {"CXXFLAGS": FLAGS} | words
    command = ["make", "-s", "build/host-sim", *(f"{k}={v}" for k, v in given.items())]
    done = subprocess.run(command, cwd=stage, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return stage / "build/host-sim"


def start(
    stage: Path, *words: str | Path, sockets: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["build/host-sim", *words],
        cwd=stage,
        env={**os.environ, **(sockets or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = running.communicate(timeout=LIMIT)
    return running.returncode, out, err


def hosted(name: str, board: str, folder: Path) -> Path:
    """A stage on a board with HBM, its matrices streamed from there."""
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph)
    streamed = {layer.name: 1 for layer in network.layers if isinstance(layer.nest, Mvu)}
    found = size_fifos(design_at(network, 4_000, streamed=streamed))
    device = preset(board)
    design = with_banks(replace(found, ddr=ddr_ports(found), device=board), device)
    assert isinstance(design, StageDesign)
    assert device.fpga is not None
    inputs = {graph.inputs[-1].name: x}
    write_stage(
        design, folder, Golden(inputs, run_graph(graph, inputs)),
        site=Site(platform=True, banks=banks_of(device.fpga), hosted=True),
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def vgg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stage = hosted("vgg", "u55c", tmp_path_factory.mktemp("host") / "vgg")
    build(stage, CXX="g++")
    return stage


def banks(stage: Path) -> dict[str, str]:
    found = (stage / "link.cfg").read_text()
    return dict(re.findall(r"^sp=(\S+):(HBM\[\d+\])$", found, re.MULTILINE))


def test_link_cfg_joins_every_port_of_the_kernel_once(vgg: Path) -> None:
    found = of_cfg(vgg / "link.cfg")
    top, streams, memories = ports_of(vgg)
    assert found.instances[f"{top}_1"] == top
    assert set(found.instances.values()) - {top} == {f"stage0_move_{name}" for name in streams}
    mine = [p for p in found.streams if p.startswith(f"{top}_1.")]
    assert sorted(mine) == sorted(f"{top}_1.{name}" for name in streams)
    own = {p for p in found.banks if p.startswith(f"{top}_1.")}
    assert own == {f"{top}_1.m_axi_{name}" for name in memories}


def test_a_call_is_for_no_more_frames_than_32_bits_count(vgg: Path) -> None:
    """Loops run to ``frames * G::N`` and the like, whose constants are in ``types.h``."""
    readme, host = ((vgg / name).read_text() for name in ("README.md", "host/host.cpp"))
    (most,) = map(int, re.findall(r"^A call is for up to (\d+) frames", readme, re.MULTILINE))
    assert f"host::main_of(argc, argv, run, {most})" in host
    loops = "\n".join(path.read_text() for path in (vgg / "src/engines").glob("*.h"))
    names = "|".join(set(re.findall(r"frames \* \(?G::(\w+)", loops)))
    types = (vgg / "src/types.h").read_text()
    turns = max(int(n) for n in re.findall(rf" (?:{names}) = (\d+);", types))
    assert 0 < turns * most < 2**31


def test_a_host_plays_golden_frames_from_hbm(vgg: Path) -> None:
    assert len(set(banks(vgg).values())) >= 6  # four matrices, an input, an output
    words = ("--frames", str(FRAMES), "--batch", "2")
    code, out, err = ended(start(vgg, "link.cfg", *words))
    assert (code, err) == (0, "")
    assert out.count("tolerance 0.0001: ok") == 3
    assert re.search(r"stage0: 5 frames in 3 calls, .* frames per second, .* ms per frame", out)


def test_a_host_plays_data_as_the_test_bench_does(vgg: Path, tmp_path: Path) -> None:
    (stage,) = load_stages([vgg])
    wires = {wire.is_input: wire for wire in stage.wires}
    shape, name = wires[True].port.shape, wires[True].port.value
    frames = [stage.tokens({name: torch.randn(shape)}, wires[True]) for _ in range(FRAMES)]
    for folder in (tmp_path / "bench", tmp_path / "host"):
        folder.mkdir()
        np.concatenate(frames).tofile(folder / wires[True].file)
    stage.play(tmp_path / "bench", FRAMES)
    words = ("--data", tmp_path / "host", "--frames", str(FRAMES), "--batch", "3")
    assert ended(start(vgg, "link.cfg", *words))[::2] == (0, "")
    want, got = ((tmp_path / k / wires[False].file).read_bytes() for k in ("bench", "host"))
    assert got == want
    assert len(got) > 0


def test_wrong_outputs_and_wrong_boards_are_told(vgg: Path, tmp_path: Path) -> None:
    golden = next((vgg / "tb/golden").glob("out_*.bin"))
    whole = golden.read_bytes()
    golden.write_bytes(b"\x00\x00\x80\x7f" + whole[4:])
    code, out, _ = ended(start(vgg, "link.cfg"))
    golden.write_bytes(whole)
    assert (code, "FAILED" in out) == (1, True)
    lines = (vgg / "link.cfg").read_text().splitlines()
    for key, want in (("sp=stage0_top", "has no bank"), ("stream_connect", "is not connected"),
                      ("nk=stage0_move_in", "no kernel has the pin")):  # fmt: skip
        kept = [line for line in lines if not line.startswith(key)]
        assert len(kept) < len(lines)
        (tmp_path / "less.cfg").write_text("\n".join([*kept, ""]))
        code, _, err = ended(start(vgg, tmp_path / "less.cfg"))
        assert code == 3, err
        assert want in err
    code, _, err = ended(start(vgg, tmp_path / "nothing.xclbin"))
    assert (code, "cannot be read" in err) == (3, True)
    code, _, err = ended(start(vgg, "--frames"))
    assert (code, "usage" in err) == (2, True)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three boards; two values cross the first link, one the second."""
    model, x = made("encoder")
    folder = tmp_path_factory.mktemp("hosts") / "out"
    plan = make_plan(graph_of(model, x), parse_cluster("1xu280,1xu55c,1xu280"), "fpga")
    emit(plan, folder)
    stages = sorted(folder.glob("stage*"))
    assert len(stages) == 3
    words = [word for name in LIBRARY for word in ("-include", name)]
    command = [*FLAGS.split(), "-pthread", "-x", "c++-header", *words, "/dev/null"]
    known = compile_cached("host.h.gch", command, "the standard library").with_suffix("")
    for stage in stages:
        build(stage, CXXFLAGS=f"{FLAGS} -include {known}")
    return stages


def play(stages: Sequence[Path], root: Path, *words: str) -> list[tuple[int, str, str]]:
    running = []
    for k, stage in enumerate(stages):
        links = {f"SIM_QSFP{end}": str(root / f"link{k - 1 + end}") for end in (0, 1)}
        running.append(start(stage, *words, sockets=links))
    return [ended(one) for one in running]


@pytest.mark.parametrize("words", [("link.cfg",), ("link_udp.cfg", "--udp")])
def test_boards_stream_to_one_another(
    chain: list[Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert any((stage / "link").is_dir() for stage in chain)
    assert [finding for stage in chain for finding in lint(stage)] == []
    found = play(chain, tmp_path, *words, "--frames", str(FRAMES), "--batch", "2")
    assert [(code, err) for code, _, err in found] == [(0, "")] * 3
    assert found[2][1].count("tolerance 0.0001: ok") == 3
    assert all(f"stage{k}: 5 frames" in out for k, (_, out, _) in enumerate(found))


def test_a_kernel_that_waits_too_long_is_named(chain: list[Path], tmp_path: Path) -> None:
    """The last board asks for a frame, and the one before never sends it."""
    path = str(tmp_path / "link")
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(path)
        before.listen()
        last = start(chain[2], "link.cfg", "--timeout", "200", sockets={"SIM_QSFP0": path})
        code, _, err = ended(last)
    assert (code, err) == (3, "stage2_top is not done after 200 ms\n")


def test_boards_without_a_platform_have_no_host(tmp_path: Path) -> None:
    model, x = made("sdpa")
    emit(make_plan(graph_of(model, x), parse_cluster("1xvcu118"), "fpga"), tmp_path / "out")
    (stage,) = (tmp_path / "out").glob("stage*")
    assert not {"host", "sim", "mover", "link.cfg"} & {path.name for path in stage.iterdir()}
    assert "there is no host program" in (stage / "README.md").read_text()
