"""Drawings: the grid and the table as people read them, SVG and trace as tools read them."""

import json
from xml.etree import ElementTree as ET

from pipec.schedule.action import ActionKind
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.simulate.draw_svg import CHARACTER, svg
from pipec.simulate.draw_text import grid, table
from pipec.simulate.draw_trace import trace
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times


def timeline(name: str = "1f1b", stages: int = 3, microbatches: int = 4) -> Timeline:
    schedule = lower(generate(name, stages, microbatches))
    return simulate(schedule, Times.uniform(stages, comm=0.25), Memory([1] * stages))


def test_every_action_is_in_the_grid_in_order() -> None:
    made = timeline()
    for device, line in enumerate(grid(made).splitlines()[:-1]):
        name, _, cells = line.partition("│")
        assert name.split() == ["device", str(device)]
        labels = [c.rstrip("=") for c in cells.split()]
        compute = [a for a in made.schedule.row(device) if a.kind.is_compute]
        assert labels == [f"{a.kind.name}{a.microbatch}" for a in compute]


def test_grid_to_scale() -> None:
    """A cell begins where its action does: three characters per unit of time here."""
    made = simulate(generate("1f1b", 3, 4), Times.uniform(3))
    line = grid(made).splitlines()[0].partition("│")[2]
    assert line.index("B0") == 3 * 7
    assert line.index("B3") == 3 * 16
    axis = grid(made).splitlines()[-1].partition("│")[2]
    assert axis.split() == ["0", "5", "10", "15"]
    assert [axis.index(time) for time in axis.split()] == [0, 15, 30, 45]


def test_a_grid_that_would_be_too_wide_is_cut() -> None:
    made = simulate(generate("1f1b", 2, 200), Times.uniform(2))
    assert max(map(len, grid(made, columns=120).splitlines())) <= 120 + len("device 0 │")


def test_stages_of_a_device_are_told_apart() -> None:
    made = simulate(generate("zbv", 4, 3), Times.uniform(4))
    assert "0F0" in grid(made)
    assert "3I2" in grid(made)
    assert "0,3" in table(made)


def test_svg_is_xml_with_a_box_per_action() -> None:
    made = timeline()
    root = ET.fromstring(svg(made))
    space = "{http://www.w3.org/2000/svg}"
    titles = [t.text or "" for t in root.iter(f"{space}title")]
    took = [i for i in range(len(made.schedule)) if made.end[i] > made.begin[i]]
    assert sorted(t.split(":")[0] for t in titles) == sorted(str(made.schedule[i]) for i in took)
    assert len(list(ET.fromstring(svg(made, compute_only=True)).iter(f"{space}title"))) == 24
    assert svg(made) == svg(timeline())


def test_labels_of_an_svg_fit_their_boxes_and_times_stand_on_the_axis() -> None:
    """However short the actions are: the picture grows until the labels fit."""
    for name, stages, microbatches in (("1f1b", 3, 4), ("zbv", 8, 12), ("interleaved", 8, 8)):
        made = simulate(lower(generate(name, stages, microbatches)), Times.uniform(stages, comm=1))
        root = ET.fromstring(svg(made))
        boxes, words = (root.findall(f".//{{*}}{tag}") for tag in ("rect", "text"))
        compute = [b for b in boxes if b.find("{*}title") is not None]
        left = {float(b.attrib["x"]): float(b.attrib["width"]) for b in compute}
        labels = [t for t in words if t.get("text-anchor") and not t.get("fill")]
        assert len(labels) >= (made.schedule.kind <= ActionKind.W).sum()
        assert min(left.values()) >= max(len(t.text or "") for t in labels) * CHARACTER
        per_unit = (max(x + w for x, w in left.items()) - min(left)) / made.seconds
        for tick in (t for t in words if t.get("fill")):
            at = min(left) + float(tick.text or "") * per_unit
            assert abs(float(tick.attrib["x"]) - at) < 0.1
        assert {"forward", "message"} <= {t.text for t in words}


def test_trace_holds_actions_flows_and_memory() -> None:
    made = timeline()
    data = json.loads(json.dumps(trace(made)))
    events = data["traceEvents"]
    actions = [e for e in events if e["ph"] == "X"]
    assert len(actions) == len(made.schedule)
    assert max(e["ts"] + e["dur"] for e in actions) == made.seconds * 1e6
    starts = {e["id"] for e in events if e["ph"] == "s"}
    assert starts == {e["id"] for e in events if e["ph"] == "f"}
    assert len(starts) == 2 * 2 * 4
    assert {e["pid"] for e in events if e["ph"] == "C"} == {0, 1, 2}
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"compute", "out:1"}


def test_a_narrow_grid_continues_below() -> None:
    """Bands of a narrow screen, laid side by side, are the wide grid."""
    made = timeline()
    bands = [band.splitlines() for band in grid(made, width=30).split("\n\n")]
    assert len(bands) > 1
    assert max(len(line) for band in bands for line in band) <= 30
    room = 30 - len("device 0 │")
    joined = [
        "".join(line.partition("│")[2].ljust(room) for line in lines).rstrip()
        for lines in zip(*bands, strict=True)
    ]
    assert joined == [line.partition("│")[2] for line in grid(made).splitlines()]
