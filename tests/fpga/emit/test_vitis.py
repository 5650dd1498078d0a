"""What Vitis HLS reports, beside the estimate: files of the form that its 2023.2 writes."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import pipec
from pipec.backends.fpga.vitis import read_cosimulation, read_module
from pipec.errors import BackendError
from tests.cli.running import Pipec

AREA = {"DSP": 7, "FF": 900, "LUT": 1361, "BRAM_18K": 5, "URAM": 1}


def module(name: str, *loops: tuple[int, int], latency: str = "undef") -> str:
    """``NAME_csynth.xml`` with a loop per (initiation interval, stages), one of them in another."""
    told = ""
    for k, (ii, depth) in enumerate(loops):
        told = f"<L{k}><TripCount>9</TripCount><Latency>99</Latency><PipelineII>{ii}</PipelineII>\
<PipelineDepth>{depth}</PipelineDepth><InstanceList></InstanceList>{told}</L{k}>"
    area = "".join(f"<{key}>{value}</{key}>" for key, value in AREA.items())
    return f"""<profile>
<UserAssignments><TopModelName>{name}</TopModelName></UserAssignments>
<PerformanceEstimates><PipelineType>no</PipelineType>
<SummaryOfTimingAnalysis><EstimatedClockPeriod>2.697</EstimatedClockPeriod></SummaryOfTimingAnalysis>
<SummaryOfOverallLatency><Worst-caseLatency>{latency}</Worst-caseLatency></SummaryOfOverallLatency>
<SummaryOfLoopLatency>{told}</SummaryOfLoopLatency></PerformanceEstimates>
<AreaEstimates><Resources>{area}</Resources></AreaEstimates></profile>"""


RAN = """
|   RTL    |  Status  |      min      |      avg      |      max      |
|      VHDL|        NA|             NA|             NA|             NA|             NA|
|   Verilog|      Pass|           6620|           6625|        6626899|             NA|
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipec:
    return Pipec(monkeypatch, capsys)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    plan = pipec.compile(model, torch.randn(1, 2, 4, 4), "1xvcu118", target="fpga")
    plan.save(tmp_path / "out")
    return tmp_path / "out"


def reports(folder: Path) -> Path:
    """A solution: the matrix-vector unit of the convolution has II 3, half of it in a module."""
    made = folder / "build_hls/solution/syn/report"
    made.mkdir(parents=True)
    for name, text in {
        "stage0_top": module("stage0_top", latency="777"),
        "mvu_a_conv2d_mvu_float_s": module("mvu_a_conv2d_mvu_float_s", (1, 20)),
        "mvu_a_conv2d_mvu_float_s_Pipeline_1": module(
            "mvu_a_conv2d_mvu_float_s_Pipeline_1", (3, 30), (2, 7)
        ),
        "map1_relu_map_s": module("map1_relu_map_s", (1, 4)),
    }.items():
        (made / f"{name}_csynth.xml").write_text(text)
    ran = folder / "build_hls/solution/sim/report/stage0_top_cosim.rpt"
    ran.parent.mkdir(parents=True)
    ran.write_text(RAN)
    return folder


def test_a_module_is_read(tmp_path: Path) -> None:
    file = tmp_path / "f_csynth.xml"
    file.write_text(module("f", (3, 30), (2, 7), latency="1,0"))
    assert read_module(file).latency is None
    file.write_text(module("f", (3, 30), (2, 7), latency="10"))
    found = read_module(file)
    assert (found.name, found.latency, found.clock_ns) == ("f", 10, 2.697)
    assert sorted(found.loops) == [("L0", 3, 30), ("L1", 2, 7)]
    assert found.resources == {"dsp": 7, "lut": 1361, "ff": 900, "uram": 1, "bram36": 2.5}
    (tmp_path / "ran.rpt").write_text(RAN)
    assert read_cosimulation(tmp_path / "ran.rpt") == 6626899
    (tmp_path / "ran.rpt").write_text(RAN.replace("Pass", "Fail"))
    assert read_cosimulation(tmp_path / "ran.rpt") is None
    (tmp_path / "ran.rpt").write_bytes(b"\xff\xfe")
    assert read_cosimulation(tmp_path / "ran.rpt") is None
    for text in ("<profile>", "<profile/>", "<html><p>report</p></html>"):
        file.write_text(text)
        with pytest.raises(BackendError, match=r"not a report of Vitis HLS"):
            read_module(file)


def test_reports_stand_beside_the_estimate(out: Path, tmp_path: Path, command: Pipec) -> None:
    before = command("inspect", out)
    assert "stage0: Vitis HLS has reported none of" in before.out
    elsewhere = reports(tmp_path / "elsewhere")
    (top,) = elsewhere.rglob("stage0_top_csynth.xml")
    top.write_text(top.read_text().replace("stage0_top", "renamed"))  # the file's name counts
    page = pipec.report(out, tmp_path / "page.html", vitis=elsewhere)
    text = page.read_text().split('id="data">')[1].split("</script>")[0]
    (stage,) = json.loads(text)["engines"]
    assert stage["vitis"]["cosimulated"] == 6626899
    found = {e["name"]: e["vitis"] for e in stage["engines"] if "vitis" in e}
    assert found.keys() == {"conv2d_mvu", "relu_map"}
    assert (found["conv2d_mvu"]["ii"], found["conv2d_mvu"]["depth"]) == (3, 30)
    assert found["relu_map"]["ii"] == 1
    (stage_folder,) = out.glob("stage0_*")
    reports(stage_folder)
    after = command("inspect", out)
    assert "slower than declared: conv2d_mvu" in " ".join(after.out.split())


def test_reports_that_are_missing_or_mean_nothing_are_refused(
    out: Path, tmp_path: Path, command: Pipec
) -> None:
    (tmp_path / "empty").mkdir()
    done = command("report", out, "--vitis", tmp_path / "empty", "-o", tmp_path / "p.html")
    assert done.code == 1
    assert "stage0_top_csynth.xml" in done.err
    assert not (tmp_path / "p.html").exists()
    plan = pipec.compile(nn.Linear(4, 4), torch.zeros(1, 4), "1xcpu")
    with pytest.raises(pipec.PipecError, match="has no engines"):
        pipec.report(plan, tmp_path / "p.html", vitis=tmp_path)
