"""Explorations that were made before, found by the content of everything they depend on."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipec.explore.candidate import Candidate
from pipec.explore.explore import Exploration
from pipec.explore.predict import Prediction
from pipec.explore.workload import Workload
from pipec.graph.structure import structural_key


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pipec/explore``, or that below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pipec" / "explore"


def content_key(
    workload: Workload,
    candidates: Sequence[Candidate],
    batch: int,
    settings: Mapping[str, object] | None = None,
) -> str:
    """Digest of graph, costs, cluster, candidates, batch, settings and pipec's version."""
    content = {
        "pipec": version("pipec"),
        "graph": structural_key(workload.graph),
        "costs": workload.costs.to_json(),
        "cluster": workload.cluster.to_json(),
        "candidates": [str(c) for c in candidates],
        "batch": [batch, workload.traced_batch],
        "settings": {name: str(value) for name, value in (settings or {}).items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def recall(key: str) -> Exploration | None:
    """The exploration stored under ``key``; None if there is none or it cannot be read."""
    try:
        data = json.loads((cache_directory() / f"{key}.json").read_text())
        return Exploration(data["batch"], tuple(_prediction(p) for p in data["predictions"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(key: str, exploration: Exploration) -> None:
    """Store an exploration; a cache that cannot be written is no error."""
    data = {"batch": exploration.batch, "predictions": [asdict(p) for p in exploration.predictions]}
    path = cache_directory() / f"{key}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(data))
        temporary.replace(path)
    except OSError:
        return


def _prediction(data: Mapping[str, Any]) -> Prediction:
    lists = {k: tuple(data[k]) for k in ("peak_bytes", "memory_bytes")}
    candidate = {**data["candidate"], "order": tuple(data["candidate"]["order"])}
    return Prediction(**{**data, **lists, "candidate": Candidate(**candidate)})
