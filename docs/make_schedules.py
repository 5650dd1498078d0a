"""Write ``schedules.md`` and its pictures from the code: ``python docs/make_schedules.py``."""

import inspect
import re
from pathlib import Path

from pipec.schedule.lower import lower
from pipec.schedule.registry import find_generator, generate, names
from pipec.simulate.draw_svg import svg
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

HERE = Path(__file__).parent
DEVICES, MICROBATCHES = 4, 8
CHUNKED = ("interleaved", "zbv", "dualpipev")
"""Two stages per device; a stage of these takes half as long, so that devices are alike."""

BEGIN, END = "<!-- generated -->", "<!-- end of what is generated -->"


def timeline(name: str) -> Timeline:
    """The schedule at this page's size."""
    stages = 2 * DEVICES if name in CHUNKED else DEVICES
    stages = DEVICES // 2 if name == "pipefb" else stages
    share = DEVICES / stages
    schedule = lower(generate(name, stages, MICROBATCHES))
    return simulate(schedule, Times.uniform(stages, share, 2 * share))


def picture(name: str) -> str:
    """The compute lanes as SVG."""
    return svg(timeline(name), compute_only=True)


def page() -> str:
    """The text of ``schedules.md``, with what stands between the two marks made anew."""
    rows = ["| schedule | makespan | bubble | in flight | versions |", "|---|---|---|---|---|"]
    parts = []
    for name in names():
        made = timeline(name)
        held = " ".join(f"{p:g}" for p in made.peak_in_flight)
        versions = " ".join(map(str, made.weight_versions))
        rows.append(f"| {name} | {made.seconds:g} | {made.bubble:.1%} | {held} | {versions} |")
        parts.append(_part(name))
    before, _, rest = (HERE / "schedules.md").read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    drawn = "\n".join([*rows, "", *parts])
    return f"{before}{BEGIN}\n\n{drawn}\n{END}{after}"


def _part(name: str) -> str:
    function = find_generator(name)
    text = inspect.cleandoc(function.__doc__ or "")
    summary = re.split(r"\n\n(?:Args|Raises|Example):", text)[0]
    options = list(inspect.signature(function).parameters.values())[2:]
    listed = ", ".join(f"`{p.name}={p.default}`" for p in options)
    lines = [f"## {name}", "", summary.replace("``", "`"), ""]
    if listed:
        lines += [f"[Options](api.md#{function.__module__}.{function.__name__}): {listed}.", ""]
    return "\n".join([*lines, f"![{name}](schedules/{name}.svg)", ""])


def main() -> None:
    """Write the page and every picture."""
    (HERE / "schedules.md").write_text(page())
    for name in names():
        (HERE / "schedules" / f"{name}.svg").write_text(picture(name))


if __name__ == "__main__":
    main()
