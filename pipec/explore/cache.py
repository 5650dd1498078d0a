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
from pipec.explore.make import Maker
from pipec.explore.predict import Prediction
from pipec.graph.structure import structural_key


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pipec/explore``, or that below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pipec" / "explore"


def content_key(maker: Maker, candidates: Sequence[Candidate], batch: int) -> str:
    """Digest of graph, costs, cluster, candidates, batch, target, options and pipec's version."""
    base = maker.costed(maker.traced_batch)
    assert base.costs is not None
    content = {
        "pipec": version("pipec"),
        "graph": structural_key(base.graph),
        "costs": base.costs.to_json(),
        "cluster": maker.cluster.to_json(),
        "candidates": [str(c) for c in candidates],
        "batch": [batch, maker.traced_batch],
        "made": [maker.target, bool(maker.model.spec), maker.costs is None],
        "options": {name: str(value) for name, value in maker.options.items()},
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
    candidate = {**data["candidate"], "order": tuple(data["candidate"]["order"])}
    peaks = tuple(data["peak_bytes"])
    return Prediction(**{**data, "peak_bytes": peaks, "candidate": Candidate(**candidate)})
