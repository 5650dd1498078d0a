"""Weights by name, each read when a stage asks for it: no rank holds the whole model."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pipec.errors import PlanError
from pipec.graph.ir import InputKind
from pipec.plan.model import Plan
from pipec.plan.weights import Lazy
from pipec.runtime.identity import mark

_INDEX = "*.safetensors.index.json"


def name_weights(weights: object, plan: Plan) -> Mapping[str, torch.Tensor]:
    """Weights that a user gives, with every name that the plan has, to be read when asked for.

    Raises:
        PlanError: A name is missing, or unknown, or two names of a shared weight differ.
    """
    if not isinstance(weights, Mapping):
        hint = "model.state_dict(), or the path of a .safetensors file"
        got = type(weights).__name__
        raise PlanError("weights are no mapping from names to tensors", got=got, hint=hint)
    graph = plan.graph
    others = {alias: name for name, aliases in graph.tied.items() for alias in aliases}
    wanted = {i.name for i in graph.inputs_of(InputKind.PARAMETER, InputKind.BUFFER)}
    unknown = [n for n in weights if n not in wanted and n not in others and n not in graph.weights]
    place = {others[n]: n for n in weights if n in others} | {n: n for n in weights}
    missing = [n for n in wanted if n not in place]
    if unknown or missing:
        raise PlanError(
            "the weights are not those of the model",
            got=f"unknown: {', '.join(unknown[:3])}" if unknown else "too few",
            want=f"{', '.join(sorted(missing)[:3])}" if missing else f"{len(wanted)} names",
        )
    for alias, name in others.items():
        if {alias, name} <= weights.keys() and mark(weights[alias]) != mark(weights[name]):
            hint = "the model shares them: give one of them, or two that are equal"
            raise PlanError(
                "two names of one weight have different values", where=name, got=alias, hint=hint
            )
    constants = {n: partial(graph.weights.__getitem__, n) for n in graph.weights}
    return Lazy(constants | {n: partial(weights.__getitem__, at) for n, at in place.items()})


def open_weights(path: Path) -> Lazy:
    """The tensors of a ``.safetensors`` file, or of a directory of them.

    Args:
        path: If a directory, with the index that transformers writes beside shards or without.

    Raises:
        PlanError: There is no such file, or it cannot be read.
    """
    return Lazy({name: partial(_tensor, file, name) for name, file in _files(path).items()})


def _tensor(file: Path, name: str) -> torch.Tensor:
    with _reading(file), safe_open(file, "pt") as found:
        tensor: torch.Tensor = found.get_tensor(name)
    return tensor


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise PlanError("weights cannot be read", where=file, got=error) from error


def _files(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return dict.fromkeys(_names(path), path)
    indices = sorted(path.glob(_INDEX))
    if indices:
        with _reading(indices[0]):
            data = json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"]
        return {str(name): path / Path(str(file)).name for name, file in data.items()}
    found = {n: file for file in sorted(path.glob("*.safetensors")) for n in _names(file)}
    if not found:
        raise PlanError("a directory holds no weights", got=path, want="*.safetensors")
    return found


def _names(file: Path) -> list[str]:
    with _reading(file), safe_open(file, "pt") as found:
        return list(found.keys())
