"""`draw`: a plan, a stage or a schedule as a picture."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from pipec.arguments import check_arguments
from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import Draws
from pipec.errors import PipecError, PlanError
from pipec.files import check_output, replacing
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage
from pipec.registry import entries
from pipec.simulate.draw_svg import svg
from pipec.simulate.draw_text import grid
from pipec.simulate.draw_trace import trace
from pipec.simulate.timeline import Timeline


@check_arguments
def draw(thing: Plan | Timeline | Stage, path: str | os.PathLike[str]) -> Path:
    """Write a picture of a plan's or schedule's timeline, or of a stage's graph.

    Args:
        thing: A plan or timeline (``.svg``, ``.txt``, ``.json``: a trace for Perfetto), or a
            stage (``.dot`` and ``.svg`` by Graphviz, ``.onnx`` for Netron,
            ``.graphml`` for yEd and Gephi, ``.py``)
        path: What to write; its ending says how.

    Returns:
        The path.

    Raises:
        PipecError: The ending is not known, the file cannot be written, or the plan has no
            timeline.

    Example:
        >>> import pipec, tempfile
        >>> path = pipec.draw(pipec.schedule("zb-h1", 4, 8), tempfile.mkdtemp() + "/zb-h1.svg")
        >>> path.read_text()[:4]
        '<svg'
    """
    path = Path(path)
    # a plan's times are seconds, a timeline's of a unit of its own
    shown, unit = (thing.timeline, 1e6) if isinstance(thing, Plan) else (thing, 1.0)
    if shown is None:
        raise PlanError("the plan has no timeline", hint="run the passes schedule, simulate")
    found = map(load_backend, entries("pipec.backends")) if isinstance(shown, Stage) else ()
    targets = {b.draws: b for b in found if isinstance(b, Draws)}
    known = [*(_STAGE if isinstance(shown, Stage) else _TIMELINE), *targets]
    if path.suffix not in known:
        raise PipecError("no such kind of picture", got=path.name, want=" ".join(known))
    check_output(path)
    with replacing(path) as place:
        if not isinstance(shown, Stage):
            place.write_text(_TIMELINE[path.suffix](shown, unit), encoding="utf-8")
        elif path.suffix in targets:
            targets[path.suffix].draw(shown, place)
        else:
            place.write_text(_STAGE[path.suffix](lower(shown.graph).graph), encoding="utf-8")
    return path


def _render_svg(graph: Graph) -> str:
    if shutil.which("dot") is None:
        raise PipecError("Graphviz is not installed", got="no command dot", hint="write .dot")
    done = subprocess.run(
        ["dot", "-Tsvg"], input=dot(graph), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PipecError("Graphviz failed", where="dot -Tsvg", got=done.stderr.strip()[:200])
    return done.stdout


def dot(graph: Graph) -> str:
    """A graph in the language of Graphviz: calls as boxes, what comes in as ellipses."""
    view, ends = graph.networkx(), {i.node: i.name for i in graph.inputs}
    lines = ['node [shape=box, fontname="sans-serif", fontsize=10];']
    for name, node in view.nodes.items():
        label = ends.get(name, f"{node['op']}\n{node['origin']}")
        shape = ", shape=ellipse" if name in ends else ""
        lines.append(f"{json.dumps(name)} [label={json.dumps(label)}{shape}];")
    lines += [f"{json.dumps(v)} -> {json.dumps(n)};" for v, n in view.edges]
    return "\n".join(["digraph stage {", *[f"  {line}" for line in lines], "}", ""])


def _graphml(graph: Graph) -> str:
    import networkx as nx

    return "\n".join(nx.generate_graphml(graph.networkx())) + "\n"


_TIMELINE: dict[str, Callable[[Timeline, float], str]] = {
    ".svg": lambda timeline, _: svg(timeline),
    ".txt": lambda timeline, _: grid(timeline) + "\n",
    ".json": lambda timeline, unit: json.dumps(trace(timeline, microseconds=unit)),
}
_STAGE: dict[str, Callable[[Graph], str]] = {
    ".dot": dot,
    ".svg": _render_svg,
    ".graphml": _graphml,
    ".py": lambda graph: graph.module.code,
}
