"""Optimizers, learning-rate schedules and data by text, for the command line."""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pipec.errors import PipecError, did_you_mean
from pipec.runtime.executor import Batch
from pipec.runtime.weights import OptimizerFactory, SchedulerFactory
from pipec.user_module import module_of, user_code


def optimizer_from_text(text: str) -> OptimizerFactory:
    """An optimizer of `torch.optim` from ``name:option=value,...``; ``betas=0.9/0.95`` is a tuple.

    Raises:
        PipecError: There is no such optimizer, or it has no such option; later, that it takes no
            such value.

    Example:
        >>> make = optimizer_from_text("sgd:lr=0.1,momentum=0.9")
        >>> type(make([torch.nn.Parameter(torch.ones(1))])).__name__
        'SGD'
    """
    make: OptimizerFactory = _make_factory(text, "optimizer", torch.optim, torch.optim.Optimizer)
    return make


def scheduler_from_text(text: str) -> SchedulerFactory:
    """A learning-rate schedule of `torch.optim.lr_scheduler` from ``name:option=value,...``.

    Raises:
        PipecError: There is no such schedule, or it has no such option; later, that it takes no
            such value.

    Example:
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> type(scheduler_from_text("steplr:step_size=10")(optimizer)).__name__
        'StepLR'
    """
    rates = torch.optim.lr_scheduler
    make: SchedulerFactory = _make_factory(text, "learning-rate schedule", rates, rates.LRScheduler)
    return make


def _make_factory(text: str, what: str, module: ModuleType, base: type) -> Callable[[Any], Any]:
    """What makes an instance of the class that ``text`` names, with its options."""
    found, options = _parse(text, what, module, base)

    def make(given: Any) -> Any:
        try:
            return found(given, **options)
        except (TypeError, ValueError) as error:
            _, *want = inspect.signature(found).parameters
            raise PipecError(
                f"the {what} cannot be made", where=text, got=error, want=", ".join(want)
            ) from error

    return make


def _parse(text: str, what: str, module: ModuleType, base: type) -> tuple[Any, dict[str, Any]]:
    name, _, rest = text.partition(":")
    classes = {n.lower(): c for n, c in vars(module).items() if inspect.isclass(c)}
    known = {
        n: c for n, c in classes.items()
        if issubclass(c, base) and c is not base and not n.startswith("_")
    }  # fmt: skip
    usable = ", ".join(sorted(n for n, c in known.items() if not _beyond_text(c)))
    if name.lower() not in known:
        raise PipecError(f"no such {what}", got=name, want=usable)
    found, options = known[name.lower()], dict[str, Any]()
    if beyond := _beyond_text(found):
        got = f"{name}, which needs {', '.join(beyond)}"
        raise PipecError(f"this {what} needs more than text can give", got=got, want=usable)
    _, *accepted = inspect.signature(found).parameters
    for part in rest.split(",") if rest else ():
        key, value = _option(part, text, what)
        if key not in accepted or key in options:
            raise PipecError(
                f"{what} {name} has no option {key!r}" if key not in accepted
                else f"option {key!r} is given twice", where=text, want=", ".join(accepted),
            )  # fmt: skip
        options[key] = value
    return found, options


def _beyond_text(found: Any) -> list[str]:
    """What a class needs that no text gives: arguments of its steps, functions, schedules."""
    made = inspect.signature(found).parameters.values()
    _, *stepped = inspect.signature(found.step).parameters.values()
    objects = [p for p in made if re.search("Callable|LRScheduler", str(p.annotation))]
    return [p.name for p in (*objects, *stepped) if p.default is p.empty]


def _option(text: str, where: str, what: str) -> tuple[str, bool | float | tuple[float, ...]]:
    key, equals, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        numbers = [int(v) if v.strip("-").isdigit() else float(v) for v in value.split("/")]
    except ValueError:
        numbers = [math.nan]
    if any(map(math.isnan, numbers)):
        raise PipecError(
            f"an option of the {what} cannot be read",
            where=where,
            got=text if equals else f"{text} (no value)",
            want="name=number, name=number/number, or name=true",
        )
    return key, tuple(numbers) if len(numbers) > 1 else numbers[0]


def data_from_spec(spec: str) -> Batch:
    """The function ``name`` of ``path/file.py:name``: microbatch number to inputs by name.

    Raises:
        PipecError: The file or the function is missing, or the file cannot be imported; later,
            that the function failed.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not (file.suffix == ".py" and file.is_file() and name):
        raise PipecError("no such data function", got=spec, want="path/file.py:function")
    with user_code(f"the data file {path} cannot be imported", error=PipecError):
        module = module_of(file, "data")
    function = getattr(module, name, None)
    if not callable(function):
        hint = did_you_mean(name, vars(module), "name a function of one argument")
        raise PipecError("the file has no such function", where=path, got=name, hint=hint)

    def batch(number: int) -> Mapping[str, torch.Tensor]:
        hint = "it is called with every number from 0 on: start again at the end of the data"
        with user_code(f"the data function failed at microbatch {number}", hint, PipecError):
            given = function(number)
        if not isinstance(given, Mapping):
            got, want = type(given).__name__, "a mapping from input names to tensors"
            raise PipecError("the data function gave no inputs", where=spec, got=got, want=want)
        return given

    return batch
