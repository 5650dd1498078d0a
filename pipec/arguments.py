"""Arguments of public functions, held against their annotations before anything is done."""

import functools
import inspect
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pipec.errors import PipecError

F = TypeVar("F", bound=Callable[..., Any])


def check_arguments(function: F) -> F:
    """Make a function refuse arguments of another type than it says.

    A bool is no number, and ``nan`` is no float. What an annotation says of functions' own
    parameters, and protocols, are not looked at.

    Example:
        >>> @check_arguments
        ... def twice(count: int, names: Sequence[str] = ()) -> int:
        ...     return 2 * count
        >>> twice(2)
        4
        >>> twice("2")
        Traceback (most recent call last):
        pipec.errors.PipecError: count: of another type
          got:   '2'
          want:  int
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            several = signature.parameters[name].kind
            values = value.values() if several is inspect.Parameter.VAR_KEYWORD else (value,)
            if name in hints and not all(fits(v, hints[name]) for v in values):
                got, want = reprlib.repr(value), _describe_type(hints[name])
                raise PipecError(f"{name}: of another type", got=got, want=want)
        return function(*args, **kwargs)

    return cast("F", call)


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as it can be seen.

    Example:
        >>> fits({"x": (1, 2)}, Mapping[str, Sequence[int]]), fits({"x": 8}, Mapping[str, Sequence])
        (True, False)
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is typing.Literal:
        return value in args
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is float:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return real and not math.isnan(value)
    kind = origin or hint
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind):
        return False
    return _holds(value, kind, args)


def _holds(value: Any, kind: type, args: Sequence[Any]) -> bool:
    """Whether what a mapping or sequence holds is what its annotation says."""
    if issubclass(kind, Mapping) and len(args) == 2:
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if isinstance(value, Sequence) and kind not in (str, tuple) and len(args) == 1:
        return all(fits(v, args[0]) for v in value)
    return True


def _describe_type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("collections.abc.", "").replace("typing.", "")
