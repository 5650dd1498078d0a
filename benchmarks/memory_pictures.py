"""What each device holds over time, predicted and measured, with and without offload, as a picture.

``python -m benchmarks.memory_pictures [FILE]``: a transformer on two ranks of this machine under
``1f1b{parts=2}``, from the command line: compiled, profiled, compiled again with what was measured,
plain and with ``insert-offload`` to 70 % of the plain peak, and run with ``--trace``. Prints how
far measured and predicted are apart, and draws per device the lanes and the bytes of saved values.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pipec
from pipec.schedule.action import Action, ActionKind
from pipec.simulate.draw_svg import COLORS, OTHER
from pipec.simulate.memory import CATEGORIES
from pipec.simulate.timeline import Timeline

MODEL = """
import torch
from torch import nn

def training():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 2, 256, 0.0, "gelu", batch_first=True)
              for _ in range(4)]
    model = nn.Sequential(*layers)
    return Loss(model), (torch.randn(32, 64, 64),)

class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()
"""
SCHEDULE, COUNT, SHARE = "1f1b{parts=2}", 6, 0.7
FIRST = (
    f"simplify,annotate-cost,partition{{stages=4 schedule={SCHEDULE} microbatches={COUNT}}},"
    "insert-comm,differentiate,time-stages"
)
LAST = f"schedule{{generator={SCHEDULE} microbatches={COUNT}}},simulate"
WIDE, LANE, TALL, LEFT, GAP = 860, 14, 90, 110, 14
"""Pixels: time axis, a lane, a curve, names at its left, and between panels."""
LANES = {"compute": tuple(range(4)), "d2h": (12,), "h2d": (13,)}
"""Lanes that are drawn, by the kinds of action on them."""
Actions = list[tuple[int, int, float, float]]
"""(device, kind, begin, end), in seconds."""
Curve = tuple[np.ndarray, np.ndarray]


def command(*words: object, cwd: Path) -> None:
    """Run pipec, and stop where it does."""
    called = [sys.executable, "-m", "pipec", *map(str, words)]
    subprocess.run(called, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def run_ways(folder: Path) -> dict[str, tuple[Timeline, dict[str, Any]]]:
    """Way to the predicted timeline and the measured trace."""
    (folder / "model.py").write_text(MODEL)
    model = ("model.py:training", "--training", "--devices", "2xcpu")
    command("compile", *model, "--passes", f"{FIRST},{LAST}", "-o", "first", cwd=folder)
    command("profile", "first", "-o", "costs.json", cwd=folder)
    found: dict[str, tuple[Timeline, dict[str, Any]]] = {}
    for way in ("plain", "offload"):
        passes = f"{FIRST},{LAST}"
        if way == "offload":
            limit = SHARE * max(found["plain"][0].peak_bytes)
            options = f"memory-limit={limit} generator={SCHEDULE} microbatches={COUNT}"
            passes = f"{FIRST},insert-offload{{{options}}},{LAST}"
        command(
            "compile", *model, "--costs", "costs.json", "--passes", passes, "-o", way, cwd=folder
        )
        command("run", way, "--rounds", 4, "--trace", f"{way}.json", cwd=folder)
        plan = pipec.load(folder / way)
        assert plan.timeline is not None
        found[way] = plan.timeline, json.loads((folder / f"{way}.json").read_text())
    return found


def predict_curves(timeline: Timeline) -> tuple[Actions, list[Curve]]:
    """Actions, and bytes of saved values of every device over time."""
    s, column = timeline.schedule, CATEGORIES.index("activations")
    rows = zip(s.device.tolist(), s.kind.tolist(), timeline.begin, timeline.end, strict=True)
    curves = []
    for c in timeline.memory_curves:
        settled = np.append(np.diff(c.time) > 0, True)  # behind all that happens at one moment
        curves.append((c.time[settled], c.held[settled, column]))
    return list(rows), curves


def measure_curves(trace: dict[str, Any]) -> tuple[Actions, list[Curve]]:
    """The same of a run: bytes are read behind every F and B."""
    events = trace["traceEvents"]
    actions: Actions = []
    for e in (e for e in events if e["ph"] == "X"):
        kind = Action.parse(e["name"]).kind
        actions.append((e["pid"], int(kind), e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
    curves = []
    for device in sorted({a[0] for a in actions}):
        points = [(e["ts"] / 1e6, e["args"]["saved"]) for e in events
                  if e["ph"] == "C" and e["pid"] == device]  # fmt: skip
        time, held = np.array([(0.0, 0.0), *points]).T
        curves.append((time, held))
    return actions, curves


def panel(actions: Actions, device: int, scale: float, top: float) -> list[str]:
    """The lanes of a device."""
    drawn = []
    for row, (name, kinds) in enumerate(LANES.items()):
        y = top + row * LANE
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 11}" text-anchor="end">{name}</text>')
        for where, kind, begin, end in actions:
            if where == device and kind in kinds and end > begin:
                color, x = COLORS.get(ActionKind(kind), OTHER), LEFT + begin * scale
                width = max((end - begin) * scale, 0.5)
                drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 2}" '
                             f'fill="{color}"/>')  # fmt: skip
    return drawn


def line(curve: Curve, scale: float, most: float, top: float, style: str) -> str:
    """Bytes over time, in steps."""
    time, held = curve
    x = np.repeat(LEFT + time * scale, 2)[1:]
    y = np.repeat(top + TALL * (1 - held / most), 2)[:-1]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline points="{points}" fill="none" {style}/>'


STYLES = {
    ("plain", "predicted"): 'stroke="#bbb" stroke-width="1.5"',
    ("plain", "measured"): 'stroke="#bbb" stroke-width="1.5" stroke-dasharray="3 2"',
    ("offload", "predicted"): 'stroke="#3b5fc0" stroke-width="1.5"',
    ("offload", "measured"): 'stroke="#d1495b" stroke-width="1.5" stroke-dasharray="3 2"',
}


def picture(found: dict[str, tuple[Timeline, dict[str, Any]]]) -> str:
    """The SVG; every step is drawn to the same length."""
    ways = {way: {"predicted": predict_curves(t), "measured": measure_curves(trace)}
            for way, (t, trace) in found.items()}  # fmt: skip
    devices = range(len(ways["plain"]["predicted"][1]))
    most = max(c[1].max() for w in ways.values() for _, cs in w.values() for c in cs)
    drawn, top = list[str](), 24.0
    keys = [f"{way}, {how}" for way, how in STYLES]
    for k, (label, style) in enumerate(zip(keys, STYLES.values(), strict=True)):
        x = LEFT + 200 * k
        drawn += [f'<line x1="{x}" x2="{x + 24}" y1="10" y2="10" {style}/>',
                  f'<text x="{x + 30}" y="14">{label}</text>']  # fmt: skip
    for d in devices:
        for how in ("predicted", "measured"):
            actions = ways["offload"][how][0]
            scale = WIDE / max(a[3] for a in actions)
            drawn.append(f'<text x="{LEFT}" y="{top + 10}">device {d}, offload, {how}</text>')
            drawn += panel(actions, d, scale, top + 14)
            top += 14 + LANE * len(LANES) + 6
        for (way, how), style in STYLES.items():
            actions, curves = ways[way][how]
            drawn.append(line(curves[d], WIDE / max(a[3] for a in actions), most, top, style))
        drawn.append(f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">'
                     f"{most / 1e6:.1f} MB</text>")  # fmt: skip
        drawn.append(f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="{top + TALL}" y2="{top + TALL}" '
                     'stroke="#ccc"/>')  # fmt: skip
        top += TALL + GAP
    size = f'width="{LEFT + WIDE + 10}" height="{top:.0f}"'
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def main(file: Path) -> None:
    """Draw, and print the most bytes of saved values of both devices and the seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_ways(Path(folder))
    print(f"{'':10} {'saved MB, predicted':>20} {'measured':>14} {'step ms, predicted':>20} "
          f"{'measured':>9}")  # fmt: skip
    for way, (timeline, trace) in found.items():
        (ran, real), (_, curves) = measure_curves(trace), predict_curves(timeline)
        held = ["  ".join(f"{c[1].max() / 1e6:5.2f}" for c in cs) for cs in (curves, real)]
        took = 1e3 * timeline.seconds, 1e3 * max(a[3] for a in ran)
        print(f"{way:10} {held[0]:>20} {held[1]:>14} {took[0]:20.1f} {took[1]:9.1f}")
    file.write_text(picture(found))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/memory.svg"))
