"""Writing a file: it is complete under its name, or what was there before still is."""

import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import threading
import time
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pipec.errors import PipecError
from pipec.signals import interrupt_on

_LARGEST = 1 << 29
"""Bytes of a file of data: some thirty times the ``plan.json`` of 405 billion parameters."""

PACKAGE = Path(__file__).parent
"""All sources of pipec."""


@cache
def code_of(package: Path) -> str:
    """Digest of the sources of a package: the number of a version stays when they change."""
    folders = (package, *(f for f in package.iterdir() if f.is_dir()))  # some may be links
    files = sorted({path for folder in folders for path in folder.rglob("*.py")})
    text = "\n".join(f"{f.relative_to(package)} {f.read_text('utf-8')}" for f in files)
    return text_digest(text)


def text_digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_regular(path: Path) -> None:
    """Raise an `OSError` if this is a device, a pipe, a folder or missing."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_data(path: Path) -> str:
    """The text of a file that may be a stranger's.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ValueError: It is larger than 512 MiB, or no UTF-8.
    """
    check_regular(path)
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.stat().st_size} bytes, at most {_LARGEST}")
    return path.read_text(encoding="utf-8")


def check_output(path: Path | None, *endings: str) -> None:
    """See that a file may be written here, before there is something to write.

    Args:
        path: The file; None if there is to be none.
        endings: Those that it may have; any if none is given, or if it is a device.

    Raises:
        PipecError: It is a folder, in none, of another format, or a part of a plan.
    """
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir():
        hint = "name a file in it" if path.is_dir() else f"mkdir -p {path.parent}"
        raise PipecError("no file can be written here", got=path, hint=hint)
    if endings and path.suffix not in endings and (path.is_file() or not path.exists()):
        raise PipecError("no such format", got=path, want=" ".join(endings))
    if _in_plan(path.resolve()):
        hint = "name another file; those of a plan are not replaced"
        raise PipecError("the file belongs to a plan", got=path, hint=hint)


def _in_plan(file: Path) -> bool:
    """Whether a plan lists this file among its own."""
    for folder in file.parents:
        with suppress(OSError, ValueError, TypeError, KeyError):
            own = json.loads(read_data(folder / "plan.json"))["files"]
            if file == folder / "plan.json" or str(file.relative_to(folder)) in own:
                return True
    return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to; what is there takes the name when the block succeeds.

    It is on the disk before it does. A device such as ``/dev/stdout`` is written to as it is. The
    place has the ending of ``path``.

    Raises:
        PipecError: An `OSError` ended the block, such as a full disk; nothing has changed.
    """
    temporary = final = path
    try:
        if path.is_file() or not path.exists():
            final = path.resolve()
            for left in find_leftovers(final.parent, ".pipec"):
                left.unlink(missing_ok=True)
            prefix = f".pipec.{os.getpid()}.{threading.get_ident()}"
            temporary = final.with_name(prefix + path.suffix)
        with interrupt_on(signal.SIGTERM):
            yield temporary
            if temporary != final:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                if final.exists():
                    temporary.chmod(final.stat().st_mode)
                temporary.replace(final)
    except OSError as error:
        raise unwritten(path, error, "cannot write the file") from error
    finally:
        if temporary != final:
            with suppress(OSError):
                temporary.unlink()


def unwritten(path: Path, error: OSError, what: str, hint: str | None = None) -> PipecError:
    """The error of what could not be written: a full disk, or else ``what``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, hint = "the disk is full; nothing was written", None
    return PipecError(what, where=path, got=error.strerror or error, hint=hint)


def find_leftovers(folder: Path, prefix: str) -> list[Path]:
    """What processes that run no more have left: ``<prefix>.<process>.<any>[.<any>]``."""
    name = re.compile(rf"{re.escape(prefix)}\.(\d+)\.[^.]+(\.[^.]*)?")
    found = []
    with suppress(OSError):  # who writes to a folder reports that it cannot be read
        found = [(p, name.fullmatch(p.name)) for p in folder.iterdir()]
    return [p for p, match in found if match and not _is_alive(int(match[1]))]


def _is_alive(process: int) -> bool:
    """Whether there is such a process on this host."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file by way of `replacing`."""
    with replacing(path) as place:
        place.write_bytes(content.encode() if isinstance(content, str) else content)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as `numpy.load` reads them; any name will do, an argument of `savez` too."""
    from numpy.lib.format import write_array

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                write_array(file, array, allow_pickle=False)


class Lock:
    """A directory that this process alone may change, as long as one of its locks lives.

    Another process is waited for, for some seconds.

    The system frees it when the process ends, however it does. Where a file system has no locks,
    nobody is kept out.

    Raises:
        PipecError: Another process keeps it.
    """

    _held: ClassVar[weakref.WeakValueDictionary[Path, "_Locked"]] = weakref.WeakValueDictionary()

    def __init__(self, directory: Path) -> None:
        place = directory.resolve()
        self._locked = self._held.get(place) or _Locked(place)
        self._held[place] = self._locked


class _Locked:
    """The system's lock of a directory (flock)."""

    def __init__(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        last = time.monotonic() + 10.0  # seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > last:
                    what, hint = "another process writes here", "wait for it, or use another one"
                    raise PipecError(what, where=directory, hint=hint) from error
                time.sleep(0.1)
            except OSError:  # a file system without locks
                return
            else:
                return
