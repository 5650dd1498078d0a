"""A plan on disk: ``plan.json``, the whole model's graph, and one folder per distinct stage graph.

```text
out/plan.json            everything but graphs and weights, and the SHA-256 of every other file
    model.json           the whole traced graph
    graphs/<key>/F.json  a distinct stage graph (`pipec.plan.slots`); F.py is the same for people
    graphs/<key>/B.json  its backward, in training (`pipec.plan.training`)
    payloads/<key>.onnx  what an opaque node of the graphs runs
    stage0/ ...          what the backend wrote
```

Loading checks every hash before it believes a byte, and runs no code: see `pipec.graph.whitelist`.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from msgspec import convert

from pipec.errors import PlanError
from pipec.files import read_data
from pipec.graph.ir import Graph
from pipec.graph.printer import json_to_python
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.serialize import Json, dumps, graph_from_json, graph_to_json
from pipec.graph.torch_private import FakeTensorMode
from pipec.plan.manifest import check_files, read_manifest, write_manifest
from pipec.plan.model import Plan, Stage
from pipec.plan.record import plan_from_record, plan_record
from pipec.plan.rules.verify import verify
from pipec.plan.slots import Binding, join, split
from pipec.plan.training import Key, TrainingReader, TrainingRow, TrainingWriter
from pipec.plan.trust import is_own
from pipec.plan.weights import WEIGHTS, StoredWeights, stage_folder

MODEL, GRAPHS, PAYLOADS = "model.json", "graphs", "payloads"
_OPAQUE = "pipec.onnx.default"


def write_plan(plan: Plan, directory: Path) -> None:
    """Write the plan beside what a backend has emitted into ``directory``.

    Args:
        plan: The plan; the same plan gives the same bytes.
        directory: Where the artifacts already are; every file in it is hashed.

    Raises:
        PlanError: A part of the plan cannot be saved.
        GraphError: A graph cannot be saved.
        OSError: A file cannot be written.
    """
    model = graph_to_json(plan.graph)
    _write(directory / MODEL, dumps(model))
    origins, first = _origins(model), dict[str, Binding]()
    stages = [_write_stage(stage, directory, origins, first) for stage in plan.stages]
    training = TrainingWriter(directory / GRAPHS)
    for stage, row in zip(plan.stages, stages, strict=True):
        if stage.training is not None:
            row["training"] = training.write(stage.training)
    _write_payloads(model, directory / PAYLOADS)
    write_manifest({**plan_record(plan), "stages": stages}, directory)


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
        read = _Reader(directory, plan.graph, _origins(model), allowed, mode)
        rows = convert(record["stages"], list[StageRow], str_keys=True)
        plan = plan.replace(stages=tuple(map(read.stage, rows)))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise PlanError("the plan is damaged", where=directory, got=repr(error)) from error
    verify(plan)
    return plan


def _write_stage(
    stage: Stage, directory: Path, origins: Mapping[str, Json], first: dict[str, Binding]
) -> Json:
    """Write the graph of a stage if no earlier stage has the same; its record for ``plan.json``."""
    key = stage.key
    shared, own = split(graph_to_json(stage.graph), key)
    if key not in first:
        first[key] = own
        folder = directory / GRAPHS / key
        folder.mkdir(parents=True)
        _write(folder / "F.json", dumps(shared))
        _write(folder / "F.py", json_to_python(shared))
    known = {**origins, **_origins_of_sends(shared, own)}
    calls = own.nodes[len(own.inputs) :]
    return {
        "index": stage.index,
        "key": key,
        "title": own.title,
        "inputs": [[row["kind"], row["name"]] for row in _rows(shared["inputs"], own.inputs)],
        "outputs": [[row["kind"], row["name"]] for row in _rows(shared["outputs"], own.outputs)],
        "channels": dict(own.channels),
        "nodes": None if own.nodes == first[key].nodes else list(own.nodes),
        "origins": {
            str(k): origin
            for k, (name, origin) in enumerate(zip(calls, own.origins, strict=True))
            if origin != known.get(name)
        },
    }


def _rows(rows: list[Json], names: Collection[str]) -> list[Json]:
    return [{**row, "name": name} for row, name in zip(rows, names, strict=True)]


def _origins(model: Json) -> dict[str, Json]:
    return {row["name"]: row["origin"] for row in model["nodes"] if "origin" in row}


def _origins_of_sends(shared: Json, own: Binding) -> dict[str, Json]:
    """What `with_transfers` gives send nodes: the channel's name."""
    calls = own.nodes[len(own.inputs) :]
    return {
        name: {"name": own.channels[row["kwargs"]["channel"]["str"]], "op": "send"}
        for name, row in zip(calls, shared["nodes"], strict=True)
        if row["target"] == "pipec.send.default"
    }


class StageRow(TypedDict):
    """A stage: the key of its graph, and what is its own where stages share a graph."""

    index: int
    key: Key
    title: str
    inputs: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    channels: dict[str, str]
    nodes: tuple[str, ...] | None
    origins: dict[int, Json]
    training: NotRequired[TrainingRow]


class _Reader:
    """Reads stages; a graph file is parsed once for all stages that share it."""

    def __init__(
        self,
        directory: Path,
        model: Graph,
        origins: Mapping[str, Json],
        allowed: Collection[str],
        mode: FakeTensorMode,
    ) -> None:
        self._folder, self._model, self._origins = directory / GRAPHS, model, origins
        self._allowed, self._mode = allowed, mode
        self._shared: dict[str, Json] = {}
        self._training = TrainingReader(self._folder, model, allowed, mode)

    def stage(self, row: StageRow) -> Stage:
        """The stage of one record."""
        key = row["key"]
        if key not in self._shared:
            self._shared[key] = json.loads(read_data(self._folder / key / "F.json"))
        stage = join(self._shared[key], self._binding(row, self._shared[key]))
        read = [name for kind, name in row["inputs"] if name in self._model.weights]
        graph = graph_from_json(
            stage,
            {name: self._model.weights[name] for name in read},
            allowed=self._allowed,
            mode=self._mode,
        )
        tied = {name: self._model.tied[name] for name in self._model.tied if name in read}
        graph = graph.replace(source=self._model.source, tied=tied)
        training = self._training.training(row["training"]) if "training" in row else None
        found = Stage(row["index"], graph, training)
        if found.key != key:
            raise PlanError("the graph of a stage is not that of its key", got=found.key, want=key)
        return found

    def _binding(self, row: StageRow, shared: Json) -> Binding:
        own = [i["node"] for i in shared["inputs"]] + [n["name"] for n in shared["nodes"]]
        nodes = row["nodes"] or tuple(own)
        binding = Binding(
            title=row["title"],
            nodes=nodes,
            inputs=tuple(name for _, name in row["inputs"]),
            outputs=tuple(name for _, name in row["outputs"]),
            channels=row["channels"],
        )
        known = {**self._origins, **_origins_of_sends(shared, binding)}
        origins: list[Any] = [known.get(name) for name in nodes[len(binding.inputs) :]]
        for index, origin in row["origins"].items():
            origins[index] = origin
        return Binding(**{**vars(binding), "origins": tuple(origins)})


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
