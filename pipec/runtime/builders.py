"""Optimizers and data by text, for the command line."""

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipec.errors import PipecError
from pipec.runtime.executor import Batch
from pipec.runtime.weights import OptimizerFactory


def optimizer_from_text(text: str) -> OptimizerFactory:
    """An optimizer of `torch.optim` from ``name:option=value,...``.

    Raises:
        PipecError: There is no such optimizer, or it has no such option.

    Example:
        >>> make = optimizer_from_text("sgd:lr=0.1,momentum=0.9")
        >>> type(make([nn.Parameter(torch.ones(1))])).__name__
        'SGD'
    """
    name, _, rest = text.partition(":")
    known = {n.lower(): c for n, c in vars(torch.optim).items() if inspect.isclass(c)}
    known.pop("optimizer", None)
    if name.lower() not in known:
        raise PipecError("no such optimizer", got=name, want=", ".join(sorted(known)))
    options = dict(_option(part, text) for part in rest.split(",") if part)
    found: Any = known[name.lower()]
    unknown = sorted(options.keys() - inspect.signature(found).parameters.keys())
    if unknown:
        raise PipecError(f"optimizer {name} has no option {unknown[0]!r}", where=text)

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = found(parameters, **options)
        return optimizer

    return make


def _option(text: str, where: str) -> tuple[str, float | bool]:
    key, equals, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, float(value)
    except ValueError as error:
        raise PipecError(
            "an option of the optimizer cannot be read",
            where=where,
            got=text if equals else f"{text} (no value)",
            want="name=number, or name=true",
        ) from error


def data_from_spec(spec: str) -> Batch:
    """The function ``name`` of ``path/file.py:name``: microbatch number to inputs by name.

    Raises:
        PipecError: The file or the function is missing.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not (file.suffix == ".py" and file.is_file() and name):
        raise PipecError("no such data function", got=spec, want="path/file.py:function")
    loader = importlib.util.spec_from_file_location(file.stem, file)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise PipecError("the file has no such function", where=path, got=name)

    def batch(number: int) -> Mapping[str, torch.Tensor]:
        given: Mapping[str, torch.Tensor] = function(number)
        return given

    return batch
