"""``pipec schedule``: what it prints and writes, and one clear error for bad input."""

import json
from pathlib import Path

import pytest

from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from tests.cli.running import Pipec

SHOWN = """\
1f1b: 2 stages, 2 microbatches, 2 devices

device 0 │F0 F1       B0===    B1===
device 1 │   F0 B0=== F1 B1===
    time │0              5

device  stages  busy  peak in flight  weight versions
     0       0   67%               2                1
     1       1   67%               1                1

makespan 9   bubble 33.33%
"""


def test_shown(pipec: Pipec) -> None:
    assert pipec("schedule", "1f1b", "--stages", 2, "--microbatches", 2).out == SHOWN


@pytest.mark.parametrize(
    ("name", "stages", "times", "comm", "makespan", "peak"),
    [
        ("gpipe", 4, "F=1,B=2", 0.1, 33.6, [8, 8, 8, 8]),
        ("1f1b", 4, "F=1,I=1,W=1", 0.1, 34.6, [4, 3, 2, 1]),
        ("zb-h1", 4, "F=1,B=2,I=1,W=1", 0.1, 28.2, [4, 4, 4, 4]),
        ("zbv", 8, "F=0.5,B=1", 0, 25.5, [4, 4, 4, 4]),
        ("interleaved", 8, "F=0.5,B=1", 0.1, 29.9, [5.5, 4.5, 3.5, 2.5]),
        ("fbp-as", 4, "F=1,B=2", 0.25, 46.5, [8, 7, 5, 2]),
    ],
)
def test_json(
    pipec: Pipec,
    name: str,
    stages: int,
    times: str,
    comm: float,
    makespan: float,
    peak: list[float],
) -> None:
    size = ("--stages", stages, "--microbatches", 8)
    done = pipec("schedule", name, *size, "--times", times, "--comm", comm, "--json")
    data = json.loads(done.out)
    assert (data["makespan"], data["peak_in_flight"]) == (makespan, peak)
    assert data["weight_versions"] == [1] * 4
    assert 0 < data["bubble"] < 1
    compute = [a for a in data["actions"] if a["kind"] in "FBIW"]
    assert {a["rank"] for a in compute} == {0, 1, 2, 3}
    assert max(a["end"] for a in data["actions"]) == makespan


def test_unlike_stages_and_options(pipec: Pipec) -> None:
    size = ("--stages", 3, "--microbatches", 20)
    data = json.loads(pipec("schedule", "1f1b", *size, "--times", "F=1:3:1,B=2:6:2", "--json").out)
    assert data["makespan"] == 183
    size = ("--stages", 2, "--microbatches", 4)
    data = json.loads(pipec("schedule", "pipedream{replicas=2,1}", *size, "--json").out)
    assert data["ranks"] == 3


def test_files(pipec: Pipec, tmp_path: Path) -> None:
    csv, svg, trace = (tmp_path / f"s.{ext}" for ext in ("csv", "svg", "json"))
    size = ("--stages", 4, "--microbatches", 4)
    done = pipec("schedule", "zbv", *size, "--csv", csv, "--svg", svg, "--trace", trace)
    assert done.code == 0
    assert csv.read_text().startswith("0F0,0F1,0F2,3F0,3I0,3W0,")
    assert svg.read_text().startswith("<svg")
    assert json.loads(trace.read_text())["traceEvents"]
    again = json.loads(pipec("schedule", "--from-csv", csv, "--json").out)
    made = json.loads(pipec("schedule", "zbv", *size, "--json").out)
    assert again["makespan"] == made["makespan"]
    printed = pipec("schedule", "zbv", *size, "--csv").out
    assert printed == csv.read_text()
    assert "SEND_F" in pipec("schedule", "1f1b", *size, "--sends", "--csv").out


def test_listing(pipec: Pipec) -> None:
    out = pipec("schedule").out
    for name in ("1f1b", "pipefb", "zbv", "interleaved"):
        assert f"\n{name}" in "\n" + out
    assert "chunks=2" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["1f1b", "--stages", "4", "--microbatches", "0"], "microbatches=0"),
        (["1f1b", "--stages", "-1", "--microbatches", "4"], "stages=-1"),
        (["1f1c", "--stages", "4", "--microbatches", "4"], "did you mean '1f1b'"),
        (["1f1b", "--stages", "4", "--microbatches", "4", "--times", "X=1"], "X=1"),
        (["1f1b", "--stages", "4", "--microbatches", "4", "--times", "F=a"], "F=a"),
        (["1f1b", "--stages", "4", "--microbatches", "4", "--times", "F=-1"], "F of stage 0"),
        (["zb-h1", "--stages", "4", "--microbatches", "4", "--times", "B=2,I=3"], "W of stage 0"),
        (["1f1b", "--stages", "4", "--microbatches", "99999999999"], "at most 300,000,000"),
        (["1f1b", "--stages", "40000", "--microbatches", "4"], "at most 32,767"),
        (["1f1b", "--stages", "4", "--microbatches", "4", "--comm", "-1"], "negative"),
        (["1f1b", "--stages", "4", "--microbatches", "4", "--depth", "-1"], "depth"),
        (["pipefb", "--stages", "2", "--microbatches", "4", "--host", "-1"], "--host is negative"),
        (["interleaved{chunks=3}", "--stages", "8", "--microbatches", "4"], "9 stages would do"),
        (["interleaved{chunks=x}", "--stages", "8", "--microbatches", "4"], "not a number"),
        (["pipedream{replicas=3,1}", "--stages", "2", "--microbatches", "4"], "a multiple of 3"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--depth", "0"], "meets 2RECV_B0"),
        (["1f1b{x=1}", "--stages", "4", "--microbatches", "8"], "no option 'x'"),
        (
            ["1f1b", "--stages", "4", "--microbatches", "8", "--times", "F=1,B=1e308"],
            "beyond floating point",
        ),
        (["1f1b", "--stages", "2", "--microbatches", "2", "--host", "1"], "copies nothing to host"),
        (["--from-csv", "missing.csv"], "no such file or directory"),
        (["1f1b", "--stages", "2", "--microbatches", "2", "--svg", "no/such/dir.svg"], "mkdir -p"),
    ],
)
def test_bad_input_is_one_error(pipec: Pipec, args: list[str], message: str) -> None:
    done = pipec("schedule", *args)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.out == ""


def test_a_csv_with_unknown_doubled_or_missing_actions(pipec: Pipec, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("0F0,0Q0\n")
    done = pipec("schedule", "--from-csv", path)
    assert done.code == 1
    assert "unknown action kind 'Q'" in done.err
    assert "line 1, cell 2" in done.err
    path.write_text("0F99999999999\n")
    assert "microbatch is too large" in pipec("schedule", "--from-csv", path).err
    path.write_text("0F2000000000,0B2000000000\n")
    assert "2 actions, the highest microbatch is 2000000000" in (
        pipec("schedule", "--from-csv", path).err
    )
    path.write_text("0F0,0B0\n1F0,1B0,1B0\n")
    assert "2 times, not once" in pipec("schedule", "--from-csv", path).err
    path.write_text("0F0,0F1,0F2\n1F0,1F1\n1B0,1B1,1B2\n0B0,0B1,0B2\n")
    lacks = "stage 1 does F of microbatch 2 0 times, not once"  # before messages are put in
    assert lacks in pipec("schedule", "--from-csv", path).err


def test_weights_that_a_generator_takes_wrongly_are_named(
    pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order may run to the end all the same."""

    def make(name: str, stages: int, microbatches: int) -> Schedule:
        made = generate(name, stages, microbatches)
        return made.replace(version=made.version + (made.microbatch == 1))

    monkeypatch.setattr("pipec.cli.schedule.generate", make)
    done = pipec("schedule", "1f1b", "--stages", 2, "--microbatches", 2)
    assert done.code == 1
    assert "0F1@1 stands before 0STEP@1, which it needs" in done.err
