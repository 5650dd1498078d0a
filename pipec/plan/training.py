"""Training graphs on disk: ``graphs/<key>/F.json``, ``B.json``, ``I.json``, ``W.json``.

One folder per distinct differentiated stage; a stage's record holds only its own names.
"""

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path

from pipec.autodiff.model import Training
from pipec.errors import PlanError
from pipec.graph.ir import Graph
from pipec.graph.printer import json_to_python
from pipec.graph.serialize import Json, dumps, graph_from_json, graph_to_json
from pipec.graph.torch_private import FakeTensorMode

KINDS = ("F", "B", "I", "W")


def write_training(training: Training, folder: Path) -> Json:
    """Write the graphs of one stage unless a stage with the same key has.

    Args:
        training: The graphs.
        folder: ``graphs``.

    Returns:
        The stage's record: its key, and per graph the names of what goes in and out.
    """
    place = folder / training.key
    if not place.exists():
        place.mkdir(parents=True)
        for kind in KINDS:
            data = graph_to_json(getattr(training, kind))
            (place / f"{kind}.json").write_text(dumps(data), encoding="utf-8")
            (place / f"{kind}.py").write_text(json_to_python(data), encoding="utf-8")
    record: Json = {"key": training.key}
    for kind in KINDS:
        graph: Graph = getattr(training, kind)
        record[kind] = {
            "inputs": [i.name for i in graph.inputs],
            "outputs": [o.name for o in graph.outputs],
        }
    return record


class TrainingReader:
    """Reads what `write_training` wrote; each folder once.

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

    def training(self, record: Json) -> Training:
        """The graphs of one stage."""
        key = str(record["key"])
        if not key.isalnum():
            raise PlanError("not the key of a graph", got=key)
        graphs = {kind: self._named(self._graph(key, kind), record[kind]) for kind in KINDS}
        return Training(key=key, **graphs)

    def _graph(self, key: str, kind: str) -> Graph:
        if (key, kind) not in self._read:
            text = (self._folder / key / f"{kind}.json").read_text(encoding="utf-8")
            data = json.loads(text)
            self._read[key, kind] = graph_from_json(data, allowed=self._allowed, mode=self._mode)
        return self._read[key, kind]

    def _named(self, graph: Graph, names: Json) -> Graph:
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
