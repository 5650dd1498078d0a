"""The C++ compiler, and where what it makes lives until the process ends."""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipec.errors import BackendError


def has_compiler() -> bool:
    """Whether the C++ compiler is installed."""
    return shutil.which(_compiler_name()) is not None


def _compiler_name() -> str:
    return os.environ.get("CXX") or "g++"


def compiler() -> str:
    """The C++ compiler: ``$CXX``, or g++.

    Raises:
        BackendError: It is not installed.
    """
    if not has_compiler():
        raise BackendError(
            "simulating emitted stages needs a C++ compiler, which is not installed",
            got=_compiler_name(),
            hint="install g++ (Debian: apt install g++), or set CXX",
        )
    return _compiler_name()


TIED = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Stands before commands, which are killed when the thread that waits for them ends."""


def run_command(command: Sequence[str | Path], **how: Any) -> subprocess.CompletedProcess[str]:
    """The output of a command, as text, and its exit status; ``how`` as of `subprocess.run`."""
    return subprocess.run([*TIED, *command], capture_output=True, text=True, check=False, **how)


_one_at_a_time = threading.Lock()
"""Stages are compiled in threads; of two directories made at once, one would vanish in use."""


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pipec-csim-")


def workspace() -> Path:
    """A directory of this process."""
    with _one_at_a_time:
        return Path(_directory().name)


def compile_cached(
    name: str, arguments: Sequence[str | Path], what: str, where: Path | None = None
) -> Path:
    """Run the compiler with arguments, once per process; the file in `workspace`.

    It runs in the folder where the sources are, if that is given. Threads and processes may meet
    here, and none writes what another one runs.

    Raises:
        BackendError: It is not installed, or refuses what it is given.
    """
    path = workspace() / name
    if not path.exists():
        half = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        done = run_command([compiler(), *arguments, "-o", half], cwd=where)
        if done.returncode != 0:
            output = "\n" + "\n".join(done.stderr.splitlines()[:20])
            raise BackendError(f"{what} does not compile", where=where, got=output)
        half.replace(path)
    return path
