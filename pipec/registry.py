"""The one door for plug-ins: passes, backends, schedules and front ends, found by entry point.

What ships with pipec comes through the same door, so nothing in the core names a pass or backend.
What a program defines itself comes through it too: `add` gives it a name for the time that the
process lives.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from pipec.errors import PipecError, did_you_mean

_KINDS = {
    "pipec.passes": "pass",
    "pipec.backends": "backend",
    "pipec.schedules": "schedule",
    "pipec.frontends": "front end",
}
VIEWS = {
    "plan.html": "pipec.report.plan:plan_html",
    "plan.report": "pipec.report.page:write_report",
    "plan.save": "pipec.compiler.driver:emit",
    "plan.text": "pipec.report.plan:plan_text",
    "stage.html": "pipec.report.plan:stage_html",
    "timeline.svg": "pipec.simulate.draw_svg:svg",
    "timeline.text": "pipec.simulate.draw_text:grid",
}
"""Methods of plans and timelines that an upper layer implements: found by name, imported late."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class AddedEntry:
    """What a program put in by `add`; it looks like an entry point that is loaded already."""

    thing: object
    dist: None = None

    @property
    def value(self) -> str:
        """Where it is defined."""
        module, name = (getattr(self.thing, a, "?") for a in ("__module__", "__qualname__"))
        return f"{module}:{name}"

    def load(self) -> object:
        """The thing itself."""
        return self.thing


_added: dict[str, dict[str, AddedEntry]] = {}


def add(group: str, name: str, thing: object) -> None:
    """Register a thing of this process; what it registered before under the name is replaced.

    Raises:
        PipecError: An installed package has registered the name.
    """
    if name in _find_installed(group):
        raise PipecError(
            f"{name!r} is the name of a {_KINDS.get(group, group)} that is installed",
            where=_owner(_find_installed(group)[name]),
            got=AddedEntry(thing).value,
            hint="give it another name",
        )
    _added.setdefault(group, {})[name] = AddedEntry(thing)


def entries(group: str) -> Mapping[str, EntryPoint | AddedEntry]:
    """Name to entry point of everything registered in ``group``, sorted by name; nothing loaded.

    Raises:
        PipecError: Two packages register one name; both are named.
    """
    return dict(sorted([*_find_installed(group).items(), *_added.get(group, {}).items()]))


@cache
def _find_installed(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise PipecError(
                f"two packages register {entry.name!r} in {group}",
                got=f"{_owner(other)} ({other.value}) and {_owner(entry)} ({entry.value})",
                hint="uninstall one of them",
            )
    return found


def load(group: str, name: str) -> object:
    """The object registered as ``name``.

    Raises:
        PipecError: Nothing has this name (near names are suggested), or its import fails.
    """
    known = entries(group)
    if name not in known:
        kind, want, hint = _KINDS.get(group, group), ", ".join(known), did_you_mean(name, known)
        raise PipecError(f"no such {kind}", got=name, want=want or "none", hint=hint)
    try:
        loaded: object = known[name].load()
    except (Exception, SystemExit) as error:  # the module of a plug-in may raise anything
        raise PipecError(
            f"{name!r} of {group} cannot be imported",
            where=f"{_owner(known[name])} ({known[name].value})",
            got=error if isinstance(error, ImportError | AttributeError) else repr(error),
        ) from error
    return loaded


def load_view(name: str) -> Callable[..., Any]:
    """What shows or writes a thing of a lower layer: one of `VIEWS`."""
    module, _, function = VIEWS[name].partition(":")
    return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))


def load_class(group: str, name: str, base: type[_T]) -> type[_T]:
    """The class registered as ``name``: a subclass of ``base`` that lacks no method.

    Raises:
        PipecError: As `load`; or it is no such class, has another name, or lacks a method.
    """
    return check_class(group, name, load(group, name), base)


def list_working(group: str, base: type[_T]) -> Iterator[type[_T]]:
    """What is registered and can be loaded: a broken one is reported where it is named itself."""
    for name in entries(group):
        with suppress(PipecError):
            yield load_class(group, name, base)


def check_class(group: str, name: str, loaded: object, base: type[_T]) -> type[_T]:
    """See whether a class can be registered as ``name``; see `load_class`."""
    kind = _KINDS[group]
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise PipecError(f"a registered {kind} is not a {base.__name__}", where=name, got=loaded)
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if inspect.isabstract(loaded):
        raise PipecError(
            f"{kind} {name!r} lacks {', '.join(missing)}",
            where=f"{loaded.__module__}.{loaded.__qualname__}",
            want=f"every abstract method of {base.__name__}",
        )
    own = getattr(loaded, "name", name)
    if own != name:
        raise PipecError(f"a {kind} is registered under another name", got=name, want=own)
    return loaded


def _owner(entry: EntryPoint | AddedEntry) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "this process"
