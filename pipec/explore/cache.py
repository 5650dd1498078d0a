"""Explorations that were made before, found by the content of everything they depend on."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from msgspec import convert

from pipec.errors import PipecError
from pipec.explore.candidate import Candidate
from pipec.explore.explore import Exploration
from pipec.explore.make import Maker
from pipec.files import PACKAGE, code_of, text_digest, write_file
from pipec.graph.structure import structural_key


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pipec/explore``, or that below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pipec" / "explore"


def content_key(maker: Maker, candidates: Sequence[Candidate], batch: int, **more: bool) -> str:
    """Digest of graph, costs, cluster, candidates, batch, target, options and pipec's own code.

    Args:
        maker: Makes plans.
        candidates: What is tried.
        batch: Samples of one step.
        more: What is tried besides (`pipec.explore.explore.explore`).
    """
    base = maker.cost_model(maker.traced_batch)
    assert base.costs is not None
    content = {
        "pipec": code_of(PACKAGE),
        "graph": structural_key(base.graph),
        "costs": base.costs.to_json(),
        "cluster": maker.cluster.to_json(),
        "candidates": [str(c) for c in candidates],
        "more": more,
        "batch": [batch, maker.traced_batch],
        "made": [maker.target, bool(maker.model.spec), maker.costs is None],
        "options": {name: str(value) for name, value in maker.options.items()},
    }
    return text_digest(json.dumps(content, sort_keys=True))[:32]


def recall(key: str) -> Exploration | None:
    """The exploration stored under ``key``; None if there is none or it is not what was written."""
    try:
        digest, _, text = _entry(key).read_text(encoding="utf-8").partition("\n")
    except (OSError, RuntimeError, UnicodeError):
        return None
    if digest != text_digest(text):
        return None
    return convert(json.loads(text), Exploration)


def remember(key: str, exploration: Exploration) -> None:
    """Store an exploration with its digest; a cache that cannot be written is no error."""
    text = json.dumps(asdict(exploration))
    with suppress(PipecError, OSError, RuntimeError):  # no space, no right, no home
        path = _entry(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, f"{text_digest(text)}\n{text}")


def _entry(key: str) -> Path:
    return cache_directory() / f"{key}.json"
