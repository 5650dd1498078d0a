"""Writing a directory all at once: it appears complete under its name, or not at all."""

import ctypes
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipec.errors import PipecError
from pipec.files import find_leftovers, read_data, unwritten
from pipec.plan.manifest import EDITABLE, FORMAT, PLAN
from pipec.signals import interrupt_on

_ASIDE = ".old"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


@contextmanager
def atomic_directory(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Write into a temporary sibling of ``path`` that takes its name when the block succeeds.

    Whatever ends the block early, an interrupt included, removes the sibling and leaves what was
    there before.

    Args:
        path: The directory to make; its parent must exist.
        force: Replace an existing directory, if it is empty or pipec wrote it.

    Yields:
        The empty temporary directory.

    Raises:
        PipecError: ``path`` exists or cannot be written, or an `OSError` (a full disk) ended the
            block.
    """
    _sweep(path)
    check_target(path, force=force)
    temporary: Path | None = None
    try:
        with interrupt_on(signal.SIGTERM):
            prefix = f".{path.name}.{os.getpid()}."
            temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            os.umask(mask := os.umask(0))  # it is read by setting it
            temporary.chmod(0o777 & ~mask)
            yield temporary
            _take_place(temporary, path)
    except OSError as error:
        hint = "name one in a folder where files may be written"
        raise unwritten(path, error, "the output cannot be written", hint) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def check_target(path: Path, *, force: bool = False) -> None:
    """See that `atomic_directory` may make ``path``, before the work whose result goes there.

    Raises:
        PipecError: It exists and is not to be replaced, or its parent does not exist.
    """
    if not path.parent.is_dir():
        raise PipecError(
            "the output's parent directory does not exist",
            got=path.parent,
            hint=f"mkdir -p {path.parent}",
        )
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise PipecError("the output exists and is no directory", got=path, hint="name another one")
    if not path.exists():
        return
    if not force:
        raise PipecError(
            "the output directory exists", got=path, hint="name another one, or give --force"
        )
    if others := _not_written(path):
        raise PipecError(
            "the directory holds something that pipec did not write; it is not replaced",
            where=path,
            got=", ".join(others[:5]) + (" ..." if len(others) > 5 else ""),
            want=f"a directory with a {PLAN} of pipec and what it lists, or an empty one",
            hint="move these away, or name another directory",
        )


def _not_written(path: Path) -> list[str]:
    """Names in a directory that no plan in it lists; what a stage's folder holds is the plan's."""
    try:
        record = json.loads(read_data(path / PLAN))
        files = record["files"] if record["format"] == FORMAT else ()
        listed = (PLAN, "__pycache__", *EDITABLE, *(name.split("/")[0] for name in files))
        known = set(listed if files else ())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        known = set()
    return sorted(entry.name for entry in path.iterdir() if entry.name not in known)


def _take_place(temporary: Path, path: Path) -> None:
    """Rename; an old directory changes places with the new one in one step, then it goes.

    Where the system cannot do that, the old one moves aside first, and `_sweep` brings it back
    should this process be killed in between.
    """
    if not path.exists():
        temporary.rename(path)
        return
    if _exchange(temporary, path):
        return
    aside = temporary.with_name(temporary.name + _ASIDE)
    path.rename(aside)
    try:
        temporary.rename(path)
    finally:
        if not path.exists():
            aside.rename(path)
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change names at once (``renameat2``); False where that is not known."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here, there = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    done: int = rename(_HERE, here, _HERE, there, _EXCHANGE)
    return done == 0


def _sweep(path: Path) -> None:
    """Remove what processes that were killed have left beside ``path``; bring its old self back."""
    for left in find_leftovers(path.parent, f".{path.name}"):
        if left.name.endswith(_ASIDE) and not path.exists():
            left.rename(path)
        else:
            shutil.rmtree(left, ignore_errors=True)
