"""The FPGA backend from plan to running stages: chains, bytes, errors."""

import dataclasses
import filecmp
import io
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
from rich.console import Console

from pipec.backends.fpga.backend import FpgaBackend
from pipec.backends.fpga.csim import build as csim_build
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.emit.stage import TOLERANCE
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.cycles import TimedCheck
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts, verify_stages
from pipec.errors import BackendError, PlanError
from pipec.frontends.load import load
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.report.found import print_checks
from tests.cli.running import Pipec

FACTORY = """
from tests.fpga.design.models import made

def factory():
    model, x = made({name!r})
    return model, (x,)
"""


HLS = Path(__file__).parents[3] / "backends/fpga/hls"


def told(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def checks_text(checks: Sequence[TimedCheck]) -> str:
    console = Console(record=True, file=io.StringIO())
    print_checks(checks, console)
    return console.export_text()


def spec(name: str, folder: Path) -> str:
    path = folder / f"{name}.py"
    path.write_text(FACTORY.format(name=name))
    return f"{path}:factory"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backend")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> tuple[Plan, Path, str]:
    """A transformer encoder block behind an embedding, in four stages."""
    model = spec("encoder", folder)
    plan = make_plan(load(model).graph, parse_cluster("4xvcu118"), "fpga")
    emit(plan, folder / "encoder")
    return plan, folder / "encoder", model


def test_a_chain_of_stages_computes_what_the_model_computes(
    encoder: tuple[Plan, Path, str],
) -> None:
    plan, directory, model = encoder
    assert len(plan.stages) == 4
    loaded, backend = load_plan(directory), load_backend("fpga")
    runners = backend.load(loaded, directory)
    report = verify_stages(loaded, runners, load(model), tolerance=TOLERANCE)
    assert report.ok, report
    assert max(b.relative_error for b in report.boundaries) < 1e-5


def test_stages_stream_to_one_another_on_the_command_line(
    encoder: tuple[Plan, Path, str], pipec: Pipec
) -> None:
    _, directory, _ = encoder
    done = pipec("verify", directory, "--chain", "3", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["ok"]
    frames = [b["name"].split(" of ")[1] for b in found["boundaries"]]
    assert frames == ["frame 1", "frame 2", "frame 3"]
    assert {b["stage"] for b in found["boundaries"]} == {3}


def test_a_report_shows_the_engines_that_were_emitted(
    encoder: tuple[Plan, Path, str], tmp_path: Path, pipec: Pipec
) -> None:
    plan, directory, _ = encoder
    designs = designs_of(plan)
    found = FpgaBackend().engines(plan, directory, ())
    assert found is not None
    assert [s["stage"] for s in found] == [0, 1, 2, 3]
    shown = [[e["name"] for e in s["engines"]] for s in found]
    assert shown == [[e.name for e in design.engines] for design in designs]
    done = pipec("report", directory, "-o", tmp_path / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert all(f'"{name}"' in page for stage in shown for name in stage)


def test_unlike_boards_relay_what_skips_a_stage(folder: Path) -> None:
    model = spec("resnet", folder)
    plan = make_plan(load(model).graph, parse_cluster("1xvcu118,1xu280,1xvcu118"), "fpga")
    emit(plan, folder / "resnet")
    names = sorted(p.name for p in (folder / "resnet").glob("stage*"))
    assert [n.split("_")[0] for n in names] == ["stage0", "stage1", "stage2"]
    assert names[1] != names[0].replace("0", "1")
    backend = load_backend("fpga")
    report = verify_stages(plan, backend.load(plan, folder / "resnet"), load(model), tolerance=1e-4)
    assert report.ok, report
    streamed = FpgaBackend().verify_chain(plan, folder / "resnet", load(model), 2)
    assert streamed.ok, streamed
    assert [b.stage for b in streamed.boundaries] == [2, 2]


def test_an_input_that_is_an_output_too_is_no_stages(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Both(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x, torch.tanh(x)\n"
        "def net():\n"
        "    return Both(), (torch.randn(2, 5),)\n"
    )
    loaded = load(f"{tmp_path / 'net.py'}:net")
    plan = make_plan(loaded.graph, parse_cluster("1xvcu118"), "fpga")
    emit(plan, tmp_path / "out")
    report = FpgaBackend().verify_chain(plan, tmp_path / "out", loaded, 2)
    assert report.ok
    assert len(report.boundaries) == 4  # both outputs, that which is passed on too, of two frames


def test_inputs_and_outputs_with_names_too_long_for_files(tmp_path: Path) -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    path = tmp_path / "model.onnx"
    a, b, y, z = ("a" * 299 + c for c in "abyz")
    nodes = [node("Sub", [a, b], ["h"]), node("Exp", ["h"], [y]), node("Tanh", ["h"], [z])]
    inputs, outputs = ([info(n, 1, [2, 3]) for n in pair] for pair in ((a, b), (y, z)))
    opset = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph(nodes, "long", inputs, outputs)
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    loaded = load(str(path))
    emit(make_plan(loaded.graph, parse_cluster("1xvcu118"), "fpga"), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok


def test_the_same_plan_gives_the_same_bytes(encoder: tuple[Plan, Path, str], folder: Path) -> None:
    _, directory, model = encoder
    again = folder / "again"
    emit(make_plan(load(model).graph, parse_cluster("4xvcu118"), "fpga"), again)
    names = [str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()]
    same, different, missing = filecmp.cmpfiles(directory, again, names, shallow=False)
    assert (different, missing) == ([], [])
    assert len(same) > 100


def test_emitted_text_names_no_machine_and_no_date(encoder: tuple[Plan, Path, str]) -> None:
    _, directory, _ = encoder
    for path in directory.glob("stage*/**/*"):
        if path.is_file() and path.suffix != ".bin":
            text = path.read_text()
            assert str(Path.home()) not in text
            assert str(directory) not in text
            assert not re.search(r"20\d\d-\d\d-\d\d", text), path


def test_make_plays_the_golden_frame(encoder: tuple[Plan, Path, str], tmp_path: Path) -> None:
    _, directory, _ = encoder
    stage = shutil.copytree(next(directory.glob("stage1_*")), tmp_path / "stage1")
    done = told(["make", "-s", "csim"], stage)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "tolerance 0.0001: ok" in done.stdout
    golden = next((stage / "tb/golden").glob("out_*.bin"))
    broken = bytearray(golden.read_bytes())
    broken[:4] = b"\x00\x00\x80\x7f"  # infinity
    golden.write_bytes(bytes(broken))
    done = told(["make", "-s", "csim"], stage)
    assert done.returncode != 0
    assert "FAILED" in done.stdout


@pytest.mark.usefixtures("compiled_for_users")
def test_sanitizers_find_nothing_and_older_standards_compile(
    encoder: tuple[Plan, Path, str], tmp_path: Path
) -> None:
    _, directory, _ = encoder
    stage = shutil.copytree(next(directory.glob("stage2_*")), tmp_path / "stage2")
    flags = " ".join(("-std=c++17", "-O0", *csim_build.FLAGS))
    done = told(["make", "-s", "asan", f"CXXFLAGS={flags}"], stage)
    assert (done.returncode, done.stderr) == (0, "")
    older = ["g++", "-std=c++14", "-fsyntax-only", *csim_build.FLAGS, *csim_build.INCLUDES]
    done = told([*older, *csim_build.SOURCES], stage)
    assert (done.returncode, done.stderr) == (0, "")


def test_headers_of_engines_include_what_they_use() -> None:
    """A stage is compiled with headers of the standard library that are there already."""
    alone = ["g++", "-std=c++14", "-fsyntax-only", "-w", "-Icsim", "-x", "c++"]
    headers = [*(HLS / "engines").glob("*.h"), *(HLS / "csim").glob("*.h")]
    assert len(headers) > 20
    done = told([*alone, *map(str, headers)], HLS)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_stream_has_one_writer_and_one_reader_in_the_text(
    encoder: tuple[Plan, Path, str],
) -> None:
    _, directory, _ = encoder
    for stage in directory.glob("stage*"):
        text = (stage / "src/stage_top.cpp").read_text()
        region = text[text.index("static void dataflow") : text.index('extern "C"')]
        streams = re.findall(r"hls::stream<.*> (\w+)\(", region)
        record = json.loads((stage / "stage.json").read_text())
        assert sorted(streams) == sorted(s["name"] for s in record["fifos"])
        for name in streams:
            depth = next(s["depth"] for s in record["fifos"] if s["name"] == name)
            assert f"STREAM variable = {name} depth = {depth}\n" in region
            assert len(re.findall(rf"TASK\(.*\b{name}\b", region)) == 2, name


def test_errors_name_what_is_wrong(
    encoder: tuple[Plan, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, directory, _ = encoder
    backend = load_backend("fpga")
    with monkeypatch.context() as lacking:
        lacking.setenv("CXX", "no-such-compiler")
        with pytest.raises(BackendError, match="needs a C\\+\\+ compiler"):
            backend.load(plan, directory)
    with pytest.raises(BackendError, match=r"stage\.json cannot be read"):
        backend.load(plan, tmp_path)
    copy = shutil.copytree(next(directory.glob("stage0_*")), tmp_path / "stage0")
    (stage,) = load_stages([copy])
    wanted = next(w.port for w in stage.wires if w.is_input)
    with pytest.raises(BackendError, match="has no value"):
        stage({})
    with pytest.raises(BackendError, match="another shape"):
        stage({wanted.value: torch.zeros(1)})
    (weights,) = copy.glob("src/weights/*table.bin")
    weights.write_bytes(weights.read_bytes()[:-400])
    with pytest.raises(BackendError, match="C simulation of a stage failed"):
        stage({wanted.value: torch.zeros(wanted.shape, dtype=torch.int64)})


def test_cycles_on_the_command_line(folder: Path, pipec: Pipec) -> None:
    out = folder / "timed"
    compiled = pipec(
        "compile", spec("sdpa", folder), "--target", "fpga", "--devices", "1xvcu118",
        "--simulate", "-o", out, "--json",
    )  # fmt: skip
    assert compiled.code == 0, compiled.err
    (found,) = json.loads(pipec("inspect", out, "--cycles", "--json").out)
    record = json.loads(next(out.glob("stage0_*/stage.json")).read_text())
    assert record["cycles"]["simulated"]
    assert (record["cycles"]["interval"], record["cycles"]["latency"]) == (
        found["interval"],
        found["latency"],
    )
    busy = {e["name"]: e["busy"] + e["empty"] + e["full"] for e in found["engines"]}
    assert set(busy.values()) == {found["interval"]}
    assert found["steady"]
    assert found["bottleneck"] in pipec("inspect", out, "--cycles").out
    (timed,) = json.loads(pipec("verify", out, "--timed", "--json").out)
    assert timed["ok"]
    first, second = timed["ends"]  # the first frame's last results leave with the second one
    assert found["latency"] <= first <= found["latency"] + found["interval"]
    assert second <= first + found["interval"]
    plan = load_plan(out)
    slower = next(out.glob("stage0_*/src/types.h"))
    slower.write_text(slower.read_text().replace("DEPTH = 2;", "DEPTH = 3;"))
    (check,) = FpgaBackend().check_cycles(plan, out)
    assert not check.ok
    assert "other cycles on" in checks_text([check])


def test_other_targets_have_no_cycles_and_do_not_stream(folder: Path, pipec: Pipec) -> None:
    out = folder / "plain"
    assert pipec("compile", spec("sdpa", folder), "--devices", "1xh100", "-o", out).code == 0
    done = pipec("inspect", out, "--cycles")
    assert done.code == 1
    assert "the target torch has no --cycles" in done.err
    done = pipec("verify", out, "--chain", "1")
    assert done.code == 1
    assert "the target torch has no --chain" in done.err


def test_what_no_engine_computes_is_named(folder: Path) -> None:
    path = folder / "odd.py"
    path.write_text(
        "import torch\n"
        "class Odd(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.inv(x) + torch.cumsum(x, 1)\n"
        "def factory():\n"
        "    return Odd(), (torch.eye(4),)\n"
    )
    graph = load(f"{path}:factory").graph
    with pytest.raises((BackendError, PlanError), match="no FPGA engine") as caught:
        make_plan(graph, parse_cluster("1xvcu118"), "fpga")
    assert "cumsum" in str(caught.value)


def test_boards_only(folder: Path) -> None:
    graph = load(spec("sdpa", folder)).graph
    with pytest.raises(BackendError, match="no FPGA"):
        make_plan(graph, parse_cluster("1xv100"), "fpga")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_of_16_bit_floats_is_right_to_its_own_roundings(dtype: str, folder: Path) -> None:
    path = folder / f"in_{dtype}.py"
    path.write_text(
        "import torch\n"
        "def factory():\n"
        "    torch.manual_seed(0)\n"
        "    layers = [torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4)]\n"
        f"    model = torch.nn.Sequential(*layers).to(torch.{dtype})\n"
        f"    return model, (torch.randn(3, 8).to(torch.{dtype}),)\n"
    )
    loaded = load(f"{path}:factory")
    plan = make_plan(loaded.graph, parse_cluster("2xvcu118"), "fpga")
    out = folder / dtype
    emit(plan, out)
    report = verify_artifacts(out, loaded)
    assert report.ok
    assert 1e-4 < report.tolerance < 0.04
    emitted = FpgaBackend().load(plan, out)
    first, last = emitted.stages
    wrong = [first, lambda values: {name: y * 1.05 for name, y in last(values).items()}]
    assert not verify_stages(plan, dataclasses.replace(emitted, stages=wrong), loaded).ok
