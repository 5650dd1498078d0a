"""The type of every value, inferred again from its op and the types of its arguments.

An op is run on fake tensors once per distinct call: equal layers ask the same questions, so that
126 of them cost little more than one.
"""

import operator
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import fx

from pipec.errors import first_line
from pipec.graph import norms  # noqa: F401, registers rules for fake tensors
from pipec.graph.tensor_type import type_text
from pipec.graph.torch_private import (
    UNKNOWN_WHEN_FAKE,
    FakeTensorMode,
    OpOverload,
    mute_logs,
    tree_map,
)

Type = object
"""The type of a value, comparable: a tuple per tensor, nested tuples, or the name of a class."""

UNKNOWN = "unknown"
"""Inferred for a result whose type depends on data."""

_inferred: dict[object, Type] = {}
_CHOSEN = ("scaled_dot_product",)
"""Ops whose kernel is chosen by more than the types of their arguments, and the strides with it."""
_MOST = 200_000
"""Distinct calls that are remembered."""


@cache
def _mode() -> FakeTensorMode:
    """Made when a type is asked for: it imports the compiler of torch, which takes a second."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def type_of(value: object) -> Type:
    """Dtype, shape, strides and device of a tensor; of several, a tuple of these.

    The stride of a dimension of one element, and those of an empty tensor, mean nothing.
    """
    if isinstance(value, torch.Tensor):
        shape, stride = tuple(value.shape), value.stride()
        if 1 in shape or 0 in shape:
            empty = 0 in shape
            stride = tuple(0 if empty or n == 1 else s for n, s in zip(shape, stride, strict=True))
        return value.dtype, shape, stride, value.device.type
    if isinstance(value, list | tuple):
        return tuple(map(type_of, value))
    return type(value).__name__


def type_words(value: object) -> str:
    """The type of a value for people: ``float32[4,64]``."""
    if isinstance(value, torch.Tensor):
        return type_text(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(type_words, value))})"
    return "nothing" if value is None else type(value).__name__


class Inference:
    """Infers the types of the nodes of one graph; what nodes yield is looked up once.

    Args:
        strided: Whether strides count. Not where values arrive: they come contiguous, whatever
            they were in the model, from which a stage has its annotations.
    """

    def __init__(self, *, strided: bool = True) -> None:
        self._strided = strided
        self._types: dict[fx.Node, Type] = {}

    def read_type(self, node: fx.Node) -> Type:
        """The type of ``meta["val"]``."""
        if node not in self._types:
            self._types[node] = type_of(node.meta.get("val"))
        return self._types[node]

    def find_wrong(self, node: fx.Node) -> str | None:
        """What the op of a call yields, in words, instead of what is annotated; None if nothing."""
        if node.target is operator.getitem:
            return self._wrong_item(node)
        if not isinstance(node.target, OpOverload):
            return None
        key = (node.target, self._key(node.args), self._key(node.kwargs))
        if key not in _inferred:
            if len(_inferred) >= _MOST:
                _inferred.clear()
            given = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            _inferred[key] = result_type(node.target, *given)
        found, annotated = _inferred[key], self.read_type(node)
        if found in (annotated, UNKNOWN):
            return None
        strided = self._strided and not any(part in str(node.target) for part in _CHOSEN)
        if same_type(found, annotated, strided=strided):
            return None
        return found if isinstance(found, str) else describe_type(found)

    def _wrong_item(self, node: fx.Node) -> str | None:
        source, index = node.args
        values: Any = source.meta.get("val") if isinstance(source, fx.Node) else None
        if not isinstance(values, list | tuple) or not isinstance(index, int):
            return f"no item {index} of {source}"
        if not -len(values) <= index < len(values):
            return f"no item {index} of {len(values)}"
        found = type_of(values[index])
        same = same_type(found, self.read_type(node), strided=self._strided)
        return None if same else describe_type(found)

    def _key(self, value: object) -> object:
        if isinstance(value, fx.Node):
            return "%", self.read_type(value)
        if isinstance(value, list | tuple):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((k, self._key(v)) for k, v in value.items())
        return type(value), repr(value)


def result_type(op: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> Type:
    """The type that a call yields on fake tensors; a sentence where it does not take them."""
    args, kwargs = tree_map(_fake, (args, kwargs))
    try:
        with mute_logs(), _mode():
            return type_of(op(*args, **kwargs))
    except UNKNOWN_WHEN_FAKE:
        return UNKNOWN
    except Exception as error:
        return f"an op that cannot take them: {first_line(error)}"


def _fake(value: Any) -> Any:
    """A tensor of the same type in this module's mode."""
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride, dtype = value.shape, value.stride(), value.dtype
    with _mode():
        return torch.empty_strided(shape, stride, dtype=dtype, device=value.device)


def same_type(a: Type, b: Type, *, strided: bool) -> bool:
    """Whether two types are equal, with their strides or but for these."""
    return a == b or (not strided and _without_strides(a) == _without_strides(b))


def _without_strides(found: Type) -> Type:
    if isinstance(found, tuple) and found and isinstance(found[0], torch.dtype):
        return found[0], found[1], found[3]
    return tuple(map(_without_strides, found)) if isinstance(found, tuple) else found


def describe_type(found: Type) -> str:
    """A type for people, with strides and device."""
    if isinstance(found, tuple) and found and isinstance(found[0], torch.dtype):
        dtype, shape, stride, device = found
        sizes = ",".join(map(str, shape))
        strides = ",".join(map(str, stride))
        return f"{str(dtype).removeprefix('torch.')}[{sizes}] of strides {strides} on {device}"
    if isinstance(found, tuple):
        return f"({', '.join(map(describe_type, found))})"
    return str(found)
