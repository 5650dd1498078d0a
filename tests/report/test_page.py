"""The report page in a real browser: what it shows equals the plan, and names stay text."""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import pipec
from pipec.compiler.comparison import Comparison
from pipec.compiler.verify import VerifyReport
from pipec.errors import PipecError
from pipec.report.extras import read_metrics, read_trace, read_verification
from pipec.report.found import print_report
from pipec.report.page import page, write_report
from pipec.report.page_data import nodes_data, timeline_data
from pipec.report.plan import print_plan
from pipec.report.plan_data import list_heaviest, plan_data
from pipec.runtime.metrics import Step
from pipec.simulate.draw_trace import trace
from tests.cli.running import Pipec
from tests.report.browser import browser, needs_browser

if TYPE_CHECKING or find_spec("selenium"):
    from selenium.webdriver import ActionChains, Chrome
    from selenium.webdriver.common.by import By

EVIL = "</script><img src=x onerror=document·title=666><script>alert(1)</script>"


class Net(nn.Module):
    """Eight layers, one under a name that would be code if it were not text."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {EVIL if k == 3 else f"l{k}": nn.Linear(16, 16) for k in range(8)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x).relu()
        return x


def make(schedule: str, devices: str = "4xv100") -> pipec.Plan:
    torch.manual_seed(0)
    x, loss = torch.zeros(4, 16), lambda y: y.square().mean()
    return pipec.compile(Net(), x, devices, loss=loss, schedule=schedule)


@pytest.fixture(scope="module")
def plan() -> pipec.Plan:
    return make("1f1b")


@pytest.fixture(scope="module")
def chrome() -> "Iterator[Chrome]":
    with browser() as driver:
        yield driver


def opened(chrome: "Chrome", path: Path) -> Any:
    chrome.get(path.as_uri())
    assert chrome.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert not [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"]
    return chrome.execute_script


@needs_browser
def test_what_is_shown_is_the_plan(chrome: "Chrome", plan: pipec.Plan, tmp_path: Path) -> None:
    js = opened(chrome, plan.report(tmp_path / "plan.html"))
    assert js("return PAGE.trees[0].root.count") == len(plan.graph.calls)
    timeline = plan.timeline
    assert timeline is not None
    taking = timeline.end > timeline.begin
    gantt = "PAGE.gantts[0]"
    assert js(f"return {gantt}.c.begin.length") == taking.sum()
    assert js(f"return Math.max(...{gantt}.c.end)") == pytest.approx(timeline.seconds, rel=1e-6)
    compute = sum(lane.name == "compute" for lane in timeline.lanes.names)
    assert js(f"return {gantt}.rows.length") == compute == 4
    rows = chrome.find_elements(By.CSS_SELECTOR, "#stages > div.stages tbody tr")
    assert len(rows) == len(plan.stages)
    total = js("let s = 0; PAGE.trees[0].c.seconds.forEach((v) => { s += v; }); return s")
    assert total == pytest.approx(sum(plan.costs.of("v100").values()), rel=1e-5)  # type: ignore[union-attr]
    shown = {s.get_attribute("id") for s in chrome.find_elements(By.TAG_NAME, "section")}
    assert shown == {"stages", "schedule", "model"}


@needs_browser
def test_search_zoom_hover_and_buttons(chrome: "Chrome", plan: pipec.Plan, tmp_path: Path) -> None:
    js = opened(chrome, plan.report(tmp_path / "plan.html"))
    chrome.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("relu_5")
    assert chrome.find_element(By.CSS_SELECTOR, "#model [role=status]").text.startswith("1 of ")
    js("arguments[0].click()", chrome.find_element(By.CSS_SELECTOR, "#model [role=treeitem]"))
    assert "linear_5" in chrome.find_element(By.CSS_SELECTOR, ".detail").text
    canvas = chrome.find_element(By.CSS_SELECTOR, "#schedule canvas")
    whole = js("return PAGE.gantts[0].to")
    js("arguments[0].focus()", canvas)
    ActionChains(chrome).send_keys("+").send_keys("+").perform()
    assert js("return PAGE.gantts[0].to - PAGE.gantts[0].from") == pytest.approx(0.49 * whole)
    ActionChains(chrome).send_keys("0").perform()
    assert js("return [PAGE.gantts[0].from, PAGE.gantts[0].to]") == [0, whole]
    js("arguments[0].scrollIntoView()", canvas)
    x = js("const g = PAGE.gantts[0]; return g.x((g.c.begin[0] + g.c.end[0]) / 2)")
    where = "{clientX: r.x + arguments[1], clientY: r.y + 32}"  # in one call: the page may scroll
    event = f"arguments[0].dispatchEvent(new MouseEvent('mousemove', {where}))"
    js(f"const r = arguments[0].getBoundingClientRect(); {event}", canvas, x)
    assert "F of microbatch 0 on stage 0" in js("return document.getElementById('tip').textContent")
    before = js("return PAGE.gantts[0].rows.length")
    js("arguments[0].click()", chrome.find_element(By.XPATH, "//button[text()='links']"))
    assert js("return PAGE.gantts[0].rows.length") > before
    js("arguments[0].click()", chrome.find_element(By.CSS_SELECTOR, "button.cut"))
    assert "values between stage 0" in chrome.find_element(By.ID, "stages").text


@needs_browser
def test_names_cannot_become_code(chrome: "Chrome", plan: pipec.Plan, tmp_path: Path) -> None:
    path = plan.report(tmp_path / "plan.html")
    assert "<img" not in path.read_text()
    js = opened(chrome, path)
    assert js("return document.images.length") == 0
    assert js("return document.scripts.length") == 2
    assert js("return document.body.textContent.includes('onerror=document')")
    assert js("return document.querySelectorAll('link, iframe, [src]').length") == 0


@needs_browser
def test_the_difference_of_two_plans(chrome: "Chrome", plan: pipec.Plan, tmp_path: Path) -> None:
    other = make("gpipe", "2xv100")
    js = opened(chrome, plan.report(tmp_path / "difference.html", other))
    assert plan.partition is not None
    assert other.partition is not None
    a, b = plan.partition.stage_of, other.partition.stage_of
    moved = sum(a[name] != b[name] for name in a)
    assert js("return document.querySelectorAll('#moved tbody tr').length") == moved > 0
    assert js("return PAGE.gantts.length") == 2
    ids = js("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


@needs_browser
def test_measured_errors_and_curves(chrome: "Chrome", plan: pipec.Plan, tmp_path: Path) -> None:
    assert plan.timeline is not None
    assert plan.schedule is not None
    ran = tmp_path / "trace.json"
    predicted = trace(plan.timeline, microseconds=2e6)
    ran.write_text(json.dumps(predicted))
    with pytest.raises(PipecError, match="not a trace of a run"):
        read_trace(ran, plan.schedule)
    ran.write_text(json.dumps(predicted | {"otherData": {"recorded": True}}))
    metrics = tmp_path / "metrics.jsonl"
    steps = [
        Step(step=k, loss=1.0 / (k + 1), samples_per_second=9.0, bubble=0.2, seconds=0.1)
        for k in range(9)
    ]
    metrics.write_text("".join(s.to_json() + "\n" for s in steps))
    verified = tmp_path / "verify.json"
    name = f"layers.{EVIL}.weight"
    stage = next(s.index for s in plan.stages if name in {i.name for i in s.graph.inputs})
    row = verification(name, stage, "gradient", relative_error=1e-3, tolerance=1e-4, ok=False)
    verified.write_text(json.dumps({"boundaries": [row]}))
    extras = {
        "measured": read_trace(ran, plan.schedule),
        "metrics": read_metrics(metrics),
        "verify": read_verification(verified, plan),
    }
    path = write_report(plan, tmp_path / "all.html", extras=extras)
    opened(chrome, path)
    text = chrome.find_element(By.ID, "measured").text
    taking = int((plan.timeline.end > plan.timeline.begin).sum())
    assert "2.00 times the prediction" in text
    assert f"{taking} actions are in both" in text
    assert "1 of 1 values are off" in chrome.find_element(By.ID, "verify").text
    assert "9 steps" in chrome.find_element(By.ID, "run").text


def test_the_same_plan_gives_the_same_page(plan: pipec.Plan) -> None:
    assert page([plan], {}) == page([plan], {})
    assert "http" not in page([plan], {}).replace("http-equiv", "")


@pytest.mark.parametrize("placed", [True, False])
def test_page_and_table_time_a_node_on_the_device_of_its_stage(placed: bool) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    passes = "simplify,annotate-cost,partition"
    plan = pipec.compile(model, torch.zeros(4, 64), "1xv100,1xa100", passes=passes)
    plan = plan if placed else plan.replace(placement=None)
    assert plan.costs is not None
    assert plan.partition is not None
    stage_of = plan.partition.stage_of
    assert set(stage_of.values()) == {0, 1}
    costs = {0: plan.costs.of("v100"), 1: plan.costs.of("a100")}
    want = {name: costs[stage][name] for name, stage in stage_of.items()}
    assert len({*costs[0].values(), *costs[1].values()}) > 1  # the devices are told apart
    drawn, table = nodes_data(plan), list_heaviest(plan, len(want))
    seconds = np.frombuffer(base64.b64decode(drawn["seconds"]["f32"]), "<f4").tolist()
    assert dict(zip(drawn["names"], seconds, strict=True)) == pytest.approx(want, rel=1e-6)
    assert {row["node"]: row["seconds"] for row in table} == want


@pytest.mark.parametrize(
    ("schedule", "idle"), [("1f1b", [2, 3]), ("pipefb", []), ("1f1b{replicas=2}", [])]
)
def test_devices_without_a_stage_are_named(schedule: str, idle: list[int]) -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    plan = pipec.compile(
        model, torch.zeros(4, 8), "4xv100", loss=lambda y: y.mean(), schedule=schedule, stages=2
    )
    assert plan_data(plan)["idle_devices"] == idle
    told = StringIO()
    print_plan(plan, Console(file=told, width=200))
    assert ("no stage is placed on device 2, 3" in told.getvalue()) == bool(idle)


@pytest.mark.parametrize(
    "change",
    [
        {"cat": "Q"}, {"pid": "0"}, {"pid": [0]}, {"cat": 3},
        {"ts": 10**400}, {"ts": math.inf}, {"dur": math.nan},
    ],
)  # fmt: skip
def test_a_trace_that_is_odd_is_refused(
    change: dict[str, object], plan: pipec.Plan, tmp_path: Path
) -> None:
    assert plan.timeline is not None
    assert plan.schedule is not None
    found = trace(plan.timeline) | {"otherData": {"recorded": True}}
    first = next(e for e in found["traceEvents"] if e["ph"] == "X" and e["cat"] == "F")
    first.update(change)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(found))
    with pytest.raises(PipecError, match=r"of another plan|not a trace"):
        read_trace(file, plan.schedule)


def test_files_of_another_kind_are_refused(
    plan: pipec.Plan, pipec_command: Pipec, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.json"
    assert plan.schedule is not None
    verification = partial(read_verification, plan=plan)
    for read in (read_metrics, partial(read_trace, schedule=plan.schedule), verification):
        for text in ("[1, 2]", '{"boundaries": []}', "", 5000 * "[", 5000 * "9"):
            wrong.write_text(text)
            with pytest.raises(PipecError, match=r"write it with: pipec|a file is no JSON"):
                read(wrong)
    assert pipec_command("report", tmp_path / "nothere").code == 1


def verification(name: str, stage: int, kind: str, **other: object) -> dict[str, object]:
    row = Comparison(name, kind, stage, "float32", 0.0, 1.0, 0.0, ok=True, tolerance=1e-6)
    return {**asdict(row), **other}


def test_a_verification_is_of_the_plan_that_is_shown(plan: pipec.Plan, tmp_path: Path) -> None:
    file, sent = tmp_path / "verify.json", plan.channels[0]
    own = [verification(sent.value, sent.src, "value"), verification("any", 0, "node")]
    own += [verification(f"{plan.graph.outputs[0].name} at batch=3", 3, "output")]
    file.write_text(json.dumps({"ok": True, "boundaries": own}))
    assert next(b["name"] for b in read_verification(file, plan)["boundaries"]) == sent.value
    for row, told in (
        (verification(sent.value, sent.src + 1, "value"), "of another plan"),
        (verification("layers.l9.weight", 0, "gradient"), "of another plan"),
        (verification(f"{sent.value}_2", sent.src, "value"), "of another plan"),
        (verification(sent.value, 9, "value"), "of another plan"),
        (verification(sent.value, sent.src, "value", ok="false"), "not a verification"),
        (verification(sent.value, sent.src, "value", relative_error=None), "not a verification"),
    ):
        file.write_text(json.dumps({"ok": True, "boundaries": [*own, row]}))
        with pytest.raises(PipecError, match=told):
            read_verification(file, plan)


def test_a_value_that_may_be_anything_is_not_called_verified() -> None:
    """Numbers that are too coarse explain any result: an error of 1 is that of zeros."""
    for relative, tolerance, said in (
        (1.0, 1.0, "nothing is known of 1 value(s)"),
        (0.5, 0.9, "verified"),
        (2.0, 1.0, "1 value(s) are off"),
    ):
        ok = relative <= tolerance
        one = Comparison("y", "output", 0, "float32", 1.0, 1.0, relative, ok, tolerance, "worst")
        told, report = StringIO(), VerifyReport(tolerance, 0, (one,))
        print_report(report, Console(file=told, width=200))
        assert told.getvalue().splitlines()[-1].startswith(said)
        assert report.ok == (said == "verified")
        assert report.to_json()["unknown"] == (["y"] if "nothing" in said else [])


def test_what_a_short_action_of_a_long_schedule_takes_is_exact() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(2, 4)
    plan = pipec.compile(
        model, x, "2xv100", loss=lambda y: y.mean(), schedule="1f1b", microbatches=500
    )
    assert plan.timeline is not None
    drawn = timeline_data(plan.timeline)
    begin, end = (np.frombuffer(base64.b64decode(drawn[k]["f64"]), "<f8") for k in ("begin", "end"))
    taken = plan.timeline.end - plan.timeline.begin
    assert np.array_equal(end - begin, taken[taken > 0])


@pytest.fixture
def pipec_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipec:
    return Pipec(monkeypatch, capsys)


def test_command_writes_a_page(pipec_command: Pipec, plan: pipec.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "out")
    done = pipec_command("report", tmp_path / "out", "-o", tmp_path / "r.html")
    assert done.code == 0
    assert "wrote" in done.out
    both = pipec_command("report", tmp_path / "out", tmp_path / "out", "--cycles")
    assert both.code == 2
    assert "only for one plan" in both.err


@pytest.mark.parametrize(("target", "devices"), [("torch", "2xcpu"), ("fpga", "2xvcu118")])
def test_memory_in_the_table_is_that_of_the_timeline(target: str, devices: str) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    plan = pipec.compile(model, torch.zeros(4, 64), devices, target=target)
    assert plan.timeline is not None
    table = [row["needed_bytes"] for row in plan_data(plan)["memory"]]
    assert table == [int(curve.peak) for curve in plan.timeline.memory_curves]
    weights = 2 * 4 * (64 * 64 + 64)
    assert (table[0] < weights) == (target == "fpga")  # on a board these weights are on the chip


def test_boards_are_as_balanced_as_their_stages_and_nodes_have_shares_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plan = pipec.compile(
        nn.Sequential(*model, nn.Linear(8, 5)).eval(), torch.zeros(1, 3, 8, 8), "2xvcu118",
        target="fpga",
    )  # fmt: skip
    one, other = (stage.interval_seconds for stage in plan.timing)
    data = plan_data(plan)
    assert data["balance"]["mean_over_slowest"] == (one + other) / 2 / max(one, other) < 0.9
    assert all(row["seconds"] is None for row in data["heaviest"])
    assert sum(row["share"] for row in data["heaviest"]) == pytest.approx(1)
    assert nodes_data(plan)["streams"]
