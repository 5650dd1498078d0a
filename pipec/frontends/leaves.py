"""Names for the tensors inside nested inputs and outputs, and calls rebuilt from flat tensors."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor, nn

from pipec.errors import FrontendError


def _items(value: object) -> list[tuple[str, object]] | None:
    """Name and value of each item of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [(str(k), v) for k, v in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    return None


def name_leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Every leaf of nested mappings, sequences and dataclasses, with its path as a name.

    Example:
        >>> list(name_leaves({"a": 1, "b": (2, 3)}, ""))
        [('a', 1), ('b.0', 2), ('b.1', 3)]
        >>> list(name_leaves((4,), "x"))
        [('x.0', 4)]
    """
    items = _items(value)
    if items is None:
        yield name, value
        return
    for key, item in items:
        yield from name_leaves(item, f"{name}.{key}" if name else key)


def _rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """``value`` with its tensor leaves taken from ``tensors``, in the order of `name_leaves`."""
    items = _items(value)
    if items is None:
        return next(tensors) if isinstance(value, Tensor) else value
    new: list[Any] = [_rebuilt(item, tensors) for _, item in items]
    if isinstance(value, Mapping):
        return dict(zip(value, new, strict=True))
    if isinstance(value, list):
        return new
    if isinstance(value, tuple):
        return type(value)(*new) if hasattr(value, "_fields") else (*new,)
    return replace(value, **{k: v for (k, _), v in zip(items, new, strict=True)})


def write_value(value: object, names: Iterator[str]) -> object:
    """``value`` in types of JSON, each tensor as the next of ``names``; `read_back` reads it.

    Example:
        >>> import torch
        >>> write_value([torch.ones(1), (2.5, "x")], iter(["a.0"]))
        ['list', ['tensor', 'a.0'], ['tuple', 2.5, 'x']]
    """
    if isinstance(value, Tensor):
        return ["tensor", next(names)]
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else ["float", str(value)]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: write_value(v, names) for k, v in value.items()}
    items = _items(value)
    inner = [write_value(v, names) for _, v in items or ()]
    if items is not None and type(value) in (list, tuple):
        return [type(value).__name__, *inner]
    return ["other", f"a {type(value).__name__}"]


def read_back(record: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `write_value` wrote, with other tensors.

    Raises:
        FrontendError: There was something in it that JSON has no form for.
    """
    if isinstance(record, Mapping):
        return {k: read_back(v, tensors) for k, v in record.items()}
    if not isinstance(record, list):
        return record
    kind, *inner = record
    if kind == "other":
        raise FrontendError(
            "the model was compiled with an argument that a plan does not keep",
            got=inner[0],
            want="tensors, numbers and text, in lists, tuples and dictionaries by text",
            hint="let a module around it make the argument",
        )
    if kind in ("list", "tuple"):
        items = [read_back(v, tensors) for v in inner]
        return items if kind == "list" else (*items,)
    return tensors[inner[0]] if kind == "tensor" else float(inner[0])


class Call:
    """The arguments of one call of a module, with the tensors in them taken out and named.

    Attributes:
        tensors: Name to tensor; the names follow the parameters of ``module.forward``.

    Example:
        >>> import torch
        >>> call = Call(nn.Linear(2, 2), (torch.ones(1, 2),), {})
        >>> list(call.tensors), call.arguments([torch.zeros(1, 2)])
        (['input'], ((tensor([[0., 0.]]),), {}))

    Raises:
        FrontendError: The arguments do not fit the signature.
    """

    def __init__(
        self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        signature = inspect.signature(module.forward)
        try:
            self._bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise FrontendError(
                "the example inputs do not fit the model's forward",
                where=type(module).__name__,
                got=error,
                want=f"forward{signature}",
            ) from None
        self.tensors: dict[str, Tensor] = {}
        for name, value in self._bound.arguments.items():
            variadic = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            for path, leaf in name_leaves(value, "" if variadic else name):
                if isinstance(leaf, Tensor):
                    self.tensors[path] = leaf

    @property
    def record(self) -> object:
        """The arguments by parameter, as `write_value` writes them."""
        return write_value(self._bound.arguments, iter(self.tensors))

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments of the same call on other tensors."""
        fresh = iter(tensors)
        values = {k: _rebuilt(v, fresh) for k, v in self._bound.arguments.items()}
        bound = inspect.BoundArguments(self._bound.signature, values)
        return bound.args, bound.kwargs


def name_tensors(value: object) -> dict[str, Tensor]:
    """The tensors of a model's output by name.

    A lone tensor is called ``output``, items of a tuple ``output0``, ``output1``, items of a
    mapping or dataclass by their keys. Numbers, strings and None are dropped: nothing computes
    them.

    Raises:
        FrontendError: There is something else in it (a cache object), or no tensor at all.
    """
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        value = value[0] if len(value) == 1 else {f"output{k}": v for k, v in enumerate(value)}
    found: dict[str, Tensor] = {}
    for name, leaf in name_leaves(value, ""):
        if isinstance(leaf, Tensor):
            found[name or "output"] = leaf
        elif leaf is not None and not isinstance(leaf, bool | int | float | str):
            raise FrontendError(
                "the model returns something that is not a tensor",
                where=f"output {name}",
                got=type(leaf).__name__,
                hint="return tensors only (transformers: set use_cache=False)",
            )
    if not found:
        want = "tensors, or tuples, lists, dictionaries or data classes of them"
        raise FrontendError("the model returns no tensor", got=type(value).__name__, want=want)
    return found
