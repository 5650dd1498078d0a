"""The one door for plug-ins: passes, backends, schedules and front ends, found by entry point.

What ships with pipec comes through the same door, so nothing in the core names a pass or backend.
"""

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pipec.errors import PipecError

_KINDS = {
    "pipec.passes": "pass",
    "pipec.backends": "backend",
    "pipec.schedules": "schedule",
    "pipec.frontends": "front end",
}


@cache
def entries(group: str) -> dict[str, EntryPoint]:
    """Name to entry point of everything registered in ``group``, sorted by name; nothing loaded.

    Raises:
        PipecError: Two packages register one name; both are named.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise PipecError(
                f"two packages register {entry.name!r} in {group}",
                got=f"{_owner(other)} ({other.value}) and {_owner(entry)} ({entry.value})",
                hint="uninstall one of them",
            )
    return dict(sorted(found.items()))


def load(group: str, name: str) -> object:
    """The object registered as ``name``.

    Raises:
        PipecError: Nothing has this name (near names are suggested), or its import fails.
    """
    known = entries(group)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise PipecError(
            f"no such {_KINDS.get(group, group)}",
            got=name,
            want=", ".join(known) or "none",
            hint=hint,
        )
    try:
        loaded: object = known[name].load()
    except (ImportError, AttributeError) as error:
        raise PipecError(
            f"{name!r} of {group} cannot be imported",
            where=f"{_owner(known[name])} ({known[name].value})",
            got=error,
        ) from error
    return loaded


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
