"""A plan, or a graph, as one text that is read back exactly: what ``pipec opt`` reads and writes.

```text
// passes: simplify,annotate-cost           for its reader: see `header_of`
//--- plan.json                             the files of `pipec.plan.store`, one behind the other
...                                         (LLVM's split-file), without hashes of files, without
//--- model.json                            data of weights, and without what is for people: Python,
...                                         and the graphs that stages are cut from the model as
//--- graphs/1f0c.../B.json
```

A text without separators is one graph, as `pipec.graph.serialize.dumps` writes it.
"""

import base64
import json
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from pipec.cluster.cluster import Cluster
from pipec.errors import PlanError
from pipec.files import read_data
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.graph.printer import graph_to_python
from pipec.graph.serialize import dumps, graph_from_json, graph_to_json
from pipec.plan.manifest import PLAN, read_manifest, write_manifest
from pipec.plan.model import Plan
from pipec.plan.store import GRAPHS, load_plan, write_plan

_SEPARATOR = re.compile(r"^//--- (.*)\n", re.MULTILINE)
_HEADER = re.compile(r"// ?([\w-]+): (.*)")


def header_of(text: str) -> list[tuple[str, str]]:
    """The comments ``// name: words`` in front of a text, in order."""
    lines = text.splitlines()
    found = (_HEADER.fullmatch(line) for line in lines if not line.startswith("//---"))
    return [(m.group(1), m.group(2)) for m in found if m]


def graph_to_text(graph: Graph) -> str:
    """A graph as text: one line per input, node and output."""
    return dumps(graph_to_json(graph))


def plan_to_python(plan: Plan) -> str:
    """The graph of a plan as Python, or those of its stages, for people."""
    if not plan.stages:
        return graph_to_python(plan.graph)
    return "\n".join(f"stage {s.index}:\n{graph_to_python(s.graph)}" for s in plan.stages)


def plan_to_text(plan: Plan) -> str:
    """A plan as text; the same plan gives the same text.

    Raises:
        PlanError: A part of the plan cannot be saved.
    """
    with TemporaryDirectory(prefix="pipec-") as folder:
        write_plan(plan, Path(folder))
        record = read_manifest(Path(folder))
        files = [Path(folder) / name for name in record.pop("files")]
        record["weights"]["stored"] = False
        parts = {PLAN: dumps(record)}
        shown = {Path(folder) / GRAPHS / row["key"] / "F.json" for row in record["stages"]}
        for file in files:
            if file.suffix != ".py" and file not in shown:
                raw = file.read_bytes()
                text = raw if file.suffix == ".json" else base64.b64encode(raw) + b"\n"
                parts[file.relative_to(folder).as_posix()] = text.decode()
    return "".join(f"//--- {name}\n{text}" for name, text in parts.items())


def plan_from_text(text: str, cluster: Cluster, *, allowed: Collection[str] = ()) -> Plan:
    """The plan of a text; of a graph alone, a plan that is not cut.

    Args:
        text: As `plan_to_text` or `graph_to_text` wrote it, perhaps changed by hand. A stage's
            graph stands for a model whose inputs and outputs are what the stage receives and sends.
        cluster: The devices for a graph alone.
        allowed: Op namespaces all of whose ops its graphs may use.

    Raises:
        PlanError: The text is damaged, or the plan breaks a rule.
        GraphError: A graph is damaged, or names an op that is not admitted.
    """
    head, *parts = _SEPARATOR.split(text)
    try:
        if not parts:
            lines = (line for line in head.splitlines() if not line.startswith("//"))
            graph = graph_from_json(json.loads("\n".join(lines)), allowed=allowed)
            return Plan(_as_model(graph), cluster)
        with TemporaryDirectory(prefix="pipec-") as folder:
            for name, part in zip(parts[::2], parts[1::2], strict=True):
                _split(Path(folder), name, part)
            record = json.loads(read_data(Path(folder) / PLAN))
            (Path(folder) / PLAN).unlink()
            write_manifest(record, Path(folder))
            return load_plan(Path(folder), allowed=allowed)
    except (ValueError, OSError, TypeError, AttributeError, RecursionError) as error:
        hint = "pipec opt DIRECTORY -o FILE.txt writes the text of a plan"
        raise PlanError("no text of a plan or graph", got=error, hint=hint) from error


def _split(folder: Path, name: str, text: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise PlanError("the text names a file outside of the plan", got=name)
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        file.write_text(text, encoding="utf-8")
    else:
        file.write_bytes(base64.b64decode(text, validate=False))


def _as_model(graph: Graph) -> Graph:
    """A stage's graph as that of a model; a model's own."""
    graph = lower(graph).graph
    inputs = [
        GraphInput(i.node, InputKind.INPUT, i.name) if i.kind is InputKind.VALUE else i
        for i in graph.inputs
    ]
    outputs = [
        GraphOutput(o.node, OutputKind.OUTPUT, o.name) if o.kind is OutputKind.VALUE else o
        for o in graph.outputs
    ]
    return graph.replace(inputs=tuple(inputs), outputs=tuple(outputs))
