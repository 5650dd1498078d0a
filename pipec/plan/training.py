"""Training graphs on disk: ``graphs/<key>/F.json``, ``B.json``, ``I.json``, ``W.json``.

One folder per distinct differentiated stage, with the names that its first stage gives to what goes
in and out; `pipec.autodiff.model.share_training` gives those of the others, by their stage graphs.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from pipec.autodiff.model import KINDS, Training
from pipec.files import read_data
from pipec.graph.ir import Graph
from pipec.graph.printer import json_to_python
from pipec.graph.serialize import Json, dumps, graph_from_json, graph_to_json
from pipec.graph.torch_private import FakeTensorMode


class TrainingWriter:
    """Writes training graphs; stages whose graphs differ in the names of their ends share files.

    Args:
        folder: ``graphs``.
    """

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
    """What `TrainingWriter` wrote into one folder, without weights.

    Args:
        folder: ``graphs/<key>``.
        allowed: Op namespaces beyond pipec's own.
        mode: Mode of the fake tensors.
    """
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
