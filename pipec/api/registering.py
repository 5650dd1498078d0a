"""`register`: a pass, a backend, a front end or a schedule of one's own, by its name."""

from collections.abc import Callable
from typing import Any, TypeVar

from pipec.compiler.backend import Backend
from pipec.compiler.pass_base import Pass
from pipec.errors import PipecError
from pipec.frontends.base import Frontend
from pipec.registry import add, check_class

_T = TypeVar("_T")
_BASES = {"pipec.passes": Pass, "pipec.backends": Backend, "pipec.frontends": Frontend}


def register(thing: _T) -> _T:
    """Give a pass, backend, front end (a class) or schedule (a function) its name, here and now.

    A package names its plug-ins as entry points instead; a program or a notebook uses this.

    Args:
        thing: A class with a ``name``, or a function of (stages, microbatches) whose name is the
            schedule's, ``_`` as ``-``.

    Returns:
        The same thing, so that it can be a decorator.

    Raises:
        PipecError: It is none of these, lacks a method, or an installed package has its name.

    Example:
        >>> import pipec
        >>> @pipec.register
        ... def one_by_one(stages, microbatches):
        ...     every = range(microbatches)
        ...     return [[f"{s}{k}{m}" for m in every for k in "FB"] for s in range(stages)]
        >>> pipec.schedule("one-by-one", stages=2, microbatches=2).seconds
        12.0
    """
    named: Any = thing
    for group, base in _BASES.items():
        if isinstance(thing, type) and issubclass(thing, base):
            name = getattr(thing, "name", "")
            if not name:
                raise PipecError("a plug-in has no name", where=thing, want="name = ...")
            check_class(group, name, thing, base)
            add(group, name, thing)
            return thing
    if isinstance(thing, type) or not callable(thing) or not hasattr(thing, "__name__"):
        raise PipecError(
            "this cannot be registered",
            got=repr(thing),
            want="a subclass of Pass, Backend or Frontend, or a function that makes a schedule",
        )
    add("pipec.schedules", named.__name__.replace("_", "-"), thing)
    return thing


def name_of(schedule: str | Callable[..., object]) -> str:
    """The name of a schedule; one that the caller wrote is registered."""
    if isinstance(schedule, str):
        return schedule
    return str(getattr(register(schedule), "__name__", "")).replace("_", "-")
