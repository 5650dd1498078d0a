"""Factories: ``path/file.py:factory`` or ``package.module:factory``, and what they return.

```python
def factory():
    return module                                    # inputs follow from --shape
    return module, inputs                            # a tensor, a tuple, or a dict of keywords
    return module, inputs, loss                      # loss(outputs) -> scalar
    return module, inputs, (loss, target)            # loss(outputs, target), see `Loss`
```
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipec.errors import FrontendError, did_you_mean, find_near
from pipec.frontends.base import user_code
from pipec.frontends.trace import Loss
from pipec.user_module import module_of

_SPEC = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)|(?P<module>\w+(\.\w+)*):(?P<attribute>\w+)")
_MODEL = "a module, (module, example inputs) or (module, example inputs, loss)"
_LOSS = "a callable or (callable, target), the target of tensors"


@dataclass(frozen=True)
class FactoryResult:
    """What a factory returned, in one form.

    Attributes:
        module: The model.
        inputs: Example inputs; None where the factory gave none.
        loss: The loss, if there is one.
    """

    module: nn.Module
    inputs: object = None
    loss: Loss | None = None


def is_factory(spec: str) -> bool:
    """Whether ``spec`` names a factory.

    Example:
        >>> is_factory("examples/net.py:make"), is_factory("pkg.mod:make"), is_factory("net.onnx")
        (True, True, False)
    """
    return _SPEC.fullmatch(spec) is not None or spec.endswith(".py")


def call_factory(spec: str, seed: int) -> FactoryResult:
    """Import and call a factory with torch's random generator seeded.

    Raises:
        FrontendError: The file or factory is missing, raises, or returns something else.
    """
    factory = _import_function(spec)
    if isinstance(factory, nn.Module):
        return FactoryResult(factory)
    return _check(_call(factory, spec, seed), spec)


def call_loss(spec: str, seed: int) -> Loss:
    """Import and call a function that returns what is the third part of a factory's result.

    Raises:
        FrontendError: The file or function is missing, raises, or returns something else.
    """
    return as_loss(_call(_import_function(spec), spec, seed, _LOSS), spec)


def _call(function: Any, spec: str, seed: int, gives: str = _MODEL) -> object:
    hint = f"it is called without arguments, and returns {gives}"
    with torch.random.fork_rng(devices=[]), user_code(f"{spec} raised", hint):
        torch.manual_seed(seed)
        return function()


def _import_function(spec: str) -> Any:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise FrontendError(
            "the factory is not named", got=spec, want="path/file.py:factory, a function's name"
        )
    name = match["name"] or match["attribute"]
    if match["file"]:
        module = _from_file(Path(match["file"]))
    else:
        what = f"the module {match['module']} cannot be imported"
        with user_code(what, "is it installed, or on PYTHONPATH?"):
            module = importlib.import_module(match["module"])
    if not hasattr(module, name):
        hint = did_you_mean(name, vars(module))
        raise FrontendError("no such factory", where=spec, got=name, hint=hint)
    factory = getattr(module, name)
    if not callable(factory):
        want = "a function without arguments, or a module"
        got = type(factory).__name__
        raise FrontendError("the factory cannot be called", where=spec, got=got, want=want)
    return factory


def as_loss(loss: object, where: str) -> Loss:
    """A `Loss` from a callable or from (callable, target).

    Raises:
        FrontendError: It is neither.
    """
    if isinstance(loss, Loss):
        return loss
    fn, target = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)
    tensors = list(target.values()) if isinstance(target, Mapping) else target
    tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
    if not callable(fn) or not all(t is None or isinstance(t, Tensor) for t in tensors):
        raise FrontendError(
            "the loss cannot be used", where=where, got=type(loss).__name__, want=_LOSS
        )
    return Loss(fn, target)


def _check(made: object, spec: str) -> FactoryResult:
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        got = ", ".join(type(p).__name__ for p in parts)
        raise FrontendError(
            "the factory returned something else than a model",
            where=spec,
            got=f"({got})" if isinstance(made, tuple) else got,
            want=_MODEL,
        )
    loss = as_loss(parts[2], spec) if len(parts) == 3 and parts[2] is not None else None
    return FactoryResult(parts[0], parts[1] if len(parts) > 1 else None, loss)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FrontendError("no such model file", got=path, hint=find_near(path))
    with user_code(f"{path} cannot be imported", f"python {path} shows it too"):
        return module_of(path, "factory")
