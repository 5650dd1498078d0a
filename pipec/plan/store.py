"""A plan on disk: ``plan.json``, the whole model's graph, and one folder per distinct stage graph.

```text
out/plan.json            everything but graphs and weights, and the SHA-256 of every other file
    model.json           the whole traced graph
    graphs/<key>/F.json  a distinct stage graph; F.py is the same for people
    graphs/<key>/B.json  its backward, in training, with I.json and W.json: of the first stage of
                         these graphs, whose names `share_training` turns into those of the others
    payloads/<key>.onnx  what an opaque node of the graphs runs
    stage0/ ...          what the backend wrote
```

Loading checks every hash before it believes a byte, and runs no code: see `pipec.graph.whitelist`.
Stages are cut from the model again, as the partition and the channels say: the files of their
graphs are to be looked at.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta, convert

from pipec.autodiff.model import KINDS, Training, share_training
from pipec.errors import PlanError
from pipec.files import read_data
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.graph.printer import json_to_python
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.serialize import Json, dumps, graph_from_json, graph_to_json
from pipec.graph.torch_private import FakeTensorMode
from pipec.plan.manifest import PLAN, check_files, read_manifest, write_manifest
from pipec.plan.model import Plan, Stage, cut_stages
from pipec.plan.record import plan_from_record, plan_record
from pipec.plan.rules.verify import verify
from pipec.plan.trust import is_own
from pipec.plan.weights import WEIGHTS, StoredWeights, stage_folder


class TrainingWriter:
    """Writes training graphs; stages whose graphs differ in the names of their ends share files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[object, str] = {}

    def write(self, training: Training) -> str:
        """Write the graphs of one stage unless they are there; the key of their folder."""
        graphs = training.graphs
        same = tuple((id(g.module), _kinds(g)) for g in graphs.values())
        if same not in self._written:
            data = {kind: graph_to_json(graph) for kind, graph in graphs.items()}
            text = "".join(dumps(_nameless(graph)) for graph in data.values())
            key = self._written[same] = hashlib.sha256(text.encode()).hexdigest()[:12]
            place = self._folder / key
            if not place.exists():
                place.mkdir(parents=True)
                for kind, graph in data.items():
                    (place / f"{kind}.json").write_text(dumps(graph), encoding="utf-8")
                    (place / f"{kind}.py").write_text(json_to_python(graph), encoding="utf-8")
        return self._written[same]


def read_training(folder: Path, allowed: Collection[str], mode: FakeTensorMode) -> Training:
    """What `TrainingWriter` wrote into one folder, without weights."""
    files = {kind: json.loads(read_data(folder / f"{kind}.json")) for kind in KINDS}
    return Training(**{k: graph_from_json(d, allowed=allowed, mode=mode) for k, d in files.items()})


def _kinds(graph: Graph) -> tuple[object, ...]:
    return tuple((i.node, i.kind) for i in graph.inputs), tuple(
        (o.node, o.kind) for o in graph.outputs
    )


def _nameless(data: Json) -> Json:
    """A graph without what each stage says for itself."""
    ends = {
        key: [{k: v for k, v in row.items() if k != "name"} for row in data[key]]
        for key in ("inputs", "outputs")
    }
    return {**data, **ends, "tied": {}}


MODEL, GRAPHS, PAYLOADS = "model.json", "graphs", "payloads"
_OPAQUE = "pipec.onnx.default"


def check_emitted(directory: Path) -> None:
    """See that a backend has written files of its own, before the plan is written beside them.

    Raises:
        PlanError: A name is the plan's, or something is no file that can be hashed and moved.
    """
    own = [name for name in (PLAN, MODEL, GRAPHS, PAYLOADS) if (directory / name).exists()]
    odd = [p for p in directory.rglob("*") if p.is_symlink() or not (p.is_dir() or p.is_file())]
    if wrong := [*own, *(str(p.relative_to(directory)) for p in odd)]:
        raise PlanError(
            "the backend emits what it may not",
            got=", ".join(wrong[:5]),
            want=f"plain files and folders, and none of {PLAN}, {MODEL}, {GRAPHS}, {PAYLOADS}",
        )


def write_plan(plan: Plan, directory: Path) -> None:
    """Write the plan beside what a backend has emitted into ``directory``.

    Every file there is hashed; the same plan gives the same bytes.

    Raises:
        PlanError: A part of the plan cannot be saved.
        GraphError: A graph cannot be saved.
        OSError: A file cannot be written.
    """
    model, training = graph_to_json(plan.graph), TrainingWriter(directory / GRAPHS)
    _write(directory / MODEL, dumps(model))
    rows: list[Json] = []
    for stage in plan.stages:
        rows.append({"key": stage.key})
        folder = directory / GRAPHS / stage.key
        if not folder.exists():
            folder.mkdir(parents=True)
            shown = graph_to_json(stage.graph)
            _write(folder / "F.json", dumps(shown))
            _write(folder / "F.py", json_to_python(shown))
        if stage.training is not None:
            rows[-1]["training"] = training.write(stage.training)
    _write_payloads(model, directory / PAYLOADS)
    write_manifest({**plan_record(plan), "stages": rows}, directory)


def load_plan(
    directory: Path, *, allowed: Collection[str] = (), check_weights: bool = True
) -> Plan:
    """Read what `write_plan` wrote; weights are mapped, not read.

    Args:
        directory: The output of a compilation.
        allowed: Op namespaces all of whose ops its graphs may use; those of torch in a plan that
            this user compiled.
        check_weights: Whether to compare the files of weights with their hashes too; large ones
            take a while.

    Raises:
        PlanError: A file is missing, changed, or from another plan.
        GraphError: A graph names an op that is not admitted.
    """
    record = read_manifest(directory)
    if is_own(directory):
        allowed = {*allowed, *OWN_NAMESPACES}
    check_files(directory, record["files"], skip=() if check_weights else (WEIGHTS,))
    mode = FakeTensorMode()
    try:
        model = json.loads(read_data(directory / MODEL))
        _register_payloads(directory / PAYLOADS, record["files"])
        plan = plan_from_record(record, graph_from_json(model, allowed=allowed, mode=mode))
        plan = plan.replace(graph=_with_weights(plan.graph, record, directory))
        plan = plan.replace(stages=_stages(plan, record, directory, allowed, mode))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        got = error if isinstance(error, OSError) else repr(error)
        raise PlanError("the plan is damaged", where=directory, got=got) from error
    verify(plan)
    return plan


def check_shown(plan: Plan, directory: Path) -> None:
    """See that the files of graphs which are there to be looked at show those that run.

    Raises:
        PlanError: A file shows another graph.
    """
    first = {stage.key: stage.graph for stage in reversed(plan.stages)}
    stages = {key: dumps(graph_to_json(graph)) for key, graph in first.items()}
    for path in sorted((directory / GRAPHS).glob("*/*.json")):
        shown = path.with_suffix(".py")
        try:
            text, python = read_data(path), read_data(shown)
            same = python == json_to_python(json.loads(text))
        except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as e:
            got = e if isinstance(e, OSError) else repr(e)
            raise PlanError("the file is damaged", where=path.parent, got=got) from e
        if text != stages.get(path.parent.name, text):
            what = "the file shows another graph than the stage that is cut from the model"
            raise PlanError(what, where=path, hint="compile the model again")
        if not same:
            what = "the file is not its neighbour, which runs, as Python"
            hint = "if another version of pipec has written it, compile the model again"
            raise PlanError(what, where=shown, want=path.name, hint=hint)


Key = Annotated[str, Meta(pattern="^[0-9a-z]+$")]
"""Name of a folder of graphs."""


class StageRow(TypedDict):
    """A stage: the key of its graph, which its cut and its channels make of the model."""

    key: str
    training: NotRequired[Key]


def _stages(
    plan: Plan, record: Json, directory: Path, allowed: Collection[str], mode: FakeTensorMode
) -> tuple[Stage, ...]:
    rows = convert(record["stages"], list[StageRow])
    cut = cut_stages(plan.graph, plan.home, len(rows), plan.channels)
    first, found = dict[str, tuple[Graph, Training]](), list[Stage]()
    for row, stage in zip(rows, cut, strict=True):
        if row["key"] != stage.key:
            what = f"stage {stage.index} is not what its cut makes of the model"
            raise PlanError(what, got=row["key"], want=stage.key)
        if (key := row.get("training")) is not None:
            own = lower(stage.graph).graph
            if key not in first:
                first[key] = own, read_training(directory / GRAPHS / key, allowed, mode)
            original, training = first[key]
            stage = replace(stage, training=share_training(training, original, own))  # noqa: PLW2901
        found.append(stage)
    return tuple(found)


def _with_weights(graph: Graph, record: Json, directory: Path) -> Graph:
    """The graph with stored weights, where the backend has written files of them."""
    owner = convert(record["weights"]["owners"], dict[str, int])
    paths = {name: f"{stage_folder(stage)}/{WEIGHTS}" for name, stage in owner.items()}
    files = {name: directory / path for name, path in paths.items() if path in record["files"]}
    if files.keys() != graph.weights.keys():
        return graph
    return graph.replace(weights=StoredWeights(files, graph))


def _write_payloads(model: Json, folder: Path) -> None:
    keys = sorted({row["args"][1]["str"] for row in model["nodes"] if row["target"] == _OPAQUE})
    if keys:
        from pipec.graph.opaque import opaque_payload

        folder.mkdir()
        for key in keys:
            (folder / f"{key}.onnx").write_bytes(opaque_payload(key))


def _register_payloads(folder: Path, files: Mapping[str, str]) -> None:
    if any(name.startswith(f"{PAYLOADS}/") for name in files):
        from pipec.graph.opaque import register_payload

        for path in sorted(folder.glob("*.onnx")):
            if register_payload(path.read_bytes()) != path.stem:
                raise PlanError("a payload is not what its name says", where=path)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
