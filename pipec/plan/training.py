"""Training graphs on disk: ``graphs/<key>/F.json``, ``B.json``, ``I.json``, ``W.json``.

One folder per distinct differentiated stage; a stage's record holds only its own names.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import Meta

from pipec.autodiff.model import Training
from pipec.files import read_data
from pipec.graph.ir import Graph
from pipec.graph.printer import json_to_python
from pipec.graph.serialize import Json, dumps, graph_from_json, graph_to_json
from pipec.graph.torch_private import FakeTensorMode

Key = Annotated[str, Meta(pattern="^[0-9a-z]+$")]
"""Name of a folder of graphs."""


class Ends(TypedDict):
    """Names of what goes into a graph, and of what comes out."""

    inputs: list[str]
    outputs: list[str]


class TrainingRow(TypedDict):
    """The training graphs of a stage: where they are, and the names of their ends."""

    key: Key
    F: Ends
    B: Ends
    I: Ends  # noqa: E741
    W: Ends


class TrainingWriter:
    """Writes training graphs; stages whose graphs differ in the names of their ends share files.

    Args:
        folder: ``graphs``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[object, str] = {}

    def write(self, training: Training) -> Json:
        """Write the graphs of one stage unless they are there.

        Returns:
            The stage's record: the key of its files, and per graph the names of what goes in and
            out.
        """
        record: Json = {"key": self._key(training)}
        for kind, graph in training.graphs.items():
            record[kind] = {
                "inputs": [i.name for i in graph.inputs],
                "outputs": [o.name for o in graph.outputs],
            }
        return record

    def _key(self, training: Training) -> str:
        """Digest of all that the files say but the names of the ends."""
        graphs = training.graphs
        same = tuple((id(g.module), _kinds(g)) for g in graphs.values())
        if same not in self._written:
            data = {kind: graph_to_json(graph) for kind, graph in graphs.items()}
            text = "".join(dumps(_nameless(graph)) for graph in data.values())
            key = hashlib.sha256(text.encode()).hexdigest()[:12]
            self._written[same] = key
            place = self._folder / key
            if not place.exists():
                place.mkdir(parents=True)
                for kind, graph in data.items():
                    (place / f"{kind}.json").write_text(dumps(graph), encoding="utf-8")
                    (place / f"{kind}.py").write_text(json_to_python(graph), encoding="utf-8")
        return self._written[same]


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


class TrainingReader:
    """Reads what `TrainingWriter` wrote; each folder once.

    Args:
        folder: ``graphs``.
        model: The whole model, whose weights and source the graphs share.
        allowed: Op namespaces beyond pipec's own.
        mode: Of the fake tensors.
    """

    def __init__(
        self, folder: Path, model: Graph, allowed: Collection[str], mode: FakeTensorMode
    ) -> None:
        self._folder, self._model = folder, model
        self._allowed, self._mode = allowed, mode
        self._read: dict[tuple[str, str], Graph] = {}

    def training(self, record: TrainingRow) -> Training:
        """The graphs of one stage."""
        key = record["key"]
        ends = {"F": record["F"], "B": record["B"], "I": record["I"], "W": record["W"]}
        graphs = {kind: self._named(self._graph(key, kind), names) for kind, names in ends.items()}
        return Training(**graphs)

    def _graph(self, key: str, kind: str) -> Graph:
        if (key, kind) not in self._read:
            data = json.loads(read_data(self._folder / key / f"{kind}.json"))
            self._read[key, kind] = graph_from_json(data, allowed=self._allowed, mode=self._mode)
        return self._read[key, kind]

    def _named(self, graph: Graph, names: Ends) -> Graph:
        inputs = zip(graph.inputs, names["inputs"], strict=True)
        outputs = zip(graph.outputs, names["outputs"], strict=True)
        read = [n for i, n in zip(graph.inputs, names["inputs"], strict=True) if i.kind.is_weight]
        return graph.replace(
            inputs=tuple(dataclasses.replace(i, name=name) for i, name in inputs),
            outputs=tuple(dataclasses.replace(o, name=name) for o, name in outputs),
            weights={name: self._model.weights[name] for name in read},
            tied={n: t for n, t in self._model.tied.items() if n in read},
            source=self._model.source,
        )
