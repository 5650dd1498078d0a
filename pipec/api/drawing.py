"""`draw`: a plan, a stage or a schedule as a picture."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import Draws
from pipec.errors import PipecError, PlanError
from pipec.graph.ir import Graph, op_name, origin
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage
from pipec.registry import entries
from pipec.simulate.draw_svg import svg
from pipec.simulate.draw_text import grid
from pipec.simulate.draw_trace import trace
from pipec.simulate.timeline import Timeline


def draw(thing: Plan | Timeline | Stage, path: str | os.PathLike[str]) -> Path:
    """Write a picture of a plan's or schedule's timeline, or of a stage's graph.

    Args:
        thing: A plan or timeline (``.svg``, ``.txt``, ``.json``: a trace for Perfetto), or a
            stage (``.dot`` and ``.svg`` by Graphviz, ``.onnx`` for Netron, ``.py``)
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
    if isinstance(thing, Plan) and thing.timeline is None:
        raise PlanError("the plan has no timeline", hint="run the passes schedule, simulate")
    known = _STAGE | _of_targets() if isinstance(thing, Stage) else _TIMELINE
    if path.suffix not in known:
        raise PipecError("no such kind of picture", got=path.name, want=" ".join(known))
    try:
        known[path.suffix](thing, path)
    except OSError as error:
        raise PipecError("cannot write", where=path, got=error.strerror or error) from error
    return path


def _timed(write: Callable[[Timeline, float], str]) -> Callable[[object, Path], None]:
    """A writer of plans, whose times are seconds, and of timelines of one's own unit."""

    def writer(thing: object, path: Path) -> None:
        """Write the picture."""
        timeline = thing.timeline if isinstance(thing, Plan) else thing
        assert isinstance(timeline, Timeline)
        path.write_text(write(timeline, 1e6 if isinstance(thing, Plan) else 1.0), encoding="utf-8")

    return writer


def _of_targets() -> dict[str, Callable[[object, Path], None]]:
    """Endings of the kinds of file that a target writes of a stage, with their writers."""
    found = map(load_backend, entries("pipec.backends"))
    return {b.draws: _stage_writer(b) for b in found if isinstance(b, Draws)}


def _stage_writer(target: Draws) -> Callable[[object, Path], None]:
    def writer(thing: object, path: Path) -> None:
        """Write the stage."""
        assert isinstance(thing, Stage)
        target.draw(thing, path)

    return writer


def _write_dot(thing: object, path: Path) -> None:
    assert isinstance(thing, Stage)
    path.write_text(dot(lower(thing.graph).graph), encoding="utf-8")


def _write_svg(thing: object, path: Path) -> None:
    assert isinstance(thing, Stage)
    if shutil.which("dot") is None:
        raise PipecError(
            "Graphviz is not installed", got="no command dot", hint=f"{path.with_suffix('.dot')}"
        )
    text = dot(lower(thing.graph).graph)
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipecError("Graphviz failed", where="dot -Tsvg", got=done.stderr.strip()[:200])
    path.write_text(done.stdout, encoding="utf-8")


def _write_python(thing: object, path: Path) -> None:
    assert isinstance(thing, Stage)
    path.write_text(lower(thing.graph).graph.module.code, encoding="utf-8")


def dot(graph: Graph) -> str:
    """A graph in the language of Graphviz: calls as boxes, what comes in as ellipses."""
    ends = {i.node: i.name for i in graph.inputs if not i.kind.is_weight}
    lines = [f"{json.dumps(n)} [shape=ellipse, label={json.dumps(k)}];" for n, k in ends.items()]
    shown = set(ends)
    for n in graph.calls:
        shown.add(n.name)
        label = json.dumps(f"{op_name(n)}\n{origin(n).name}")
        lines.append(f"{json.dumps(n.name)} [label={label}];")
        read = [v.name for v in n.all_input_nodes if v.name in shown]
        lines += [f"{json.dumps(v)} -> {json.dumps(n.name)};" for v in read]
    style = 'node [shape=box, fontname="sans-serif", fontsize=10];'
    return "\n".join(["digraph stage {", *[f"  {line}" for line in (style, *lines)], "}", ""])


_TIMELINE: dict[str, Callable[[object, Path], None]] = {
    ".svg": _timed(lambda timeline, _: svg(timeline)),
    ".txt": _timed(lambda timeline, _: grid(timeline) + "\n"),
    ".json": _timed(lambda timeline, unit: json.dumps(trace(timeline, microseconds=unit))),
}
_STAGE: dict[str, Callable[[object, Path], None]] = {
    ".dot": _write_dot,
    ".svg": _write_svg,
    ".py": _write_python,
}
