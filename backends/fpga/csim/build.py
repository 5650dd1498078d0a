"""Compiling an emitted stage with plain g++, once per content."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from pipec.errors import BackendError

STANDARD = ("-std=c++17", "-O1", "-ftree-vectorize")
FLAGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-ffp-contract=off")
"""Flags of every C simulation; no contraction, so that every machine gives the same bits."""
SOURCES = ("src/stage_top.cpp", "tb/tb_stage.cpp")
INCLUDES = ("-Isrc", "-Isrc/engines", "-Itb", "-Icsim")


def command(compiler: str, target: str) -> list[str]:
    """The compiler's command line, to be run in the stage directory."""
    return [compiler, *STANDARD, *FLAGS, *INCLUDES, *SOURCES, "-o", target]


@cache
def _workspace() -> tempfile.TemporaryDirectory[str]:
    """Where binaries live until the process ends."""
    return tempfile.TemporaryDirectory(prefix="pipec-csim-")


def compiler() -> str:
    """The C++ compiler: ``$CXX``, or g++.

    Raises:
        BackendError: It is not installed.
    """
    wanted = os.environ.get("CXX") or "g++"
    if shutil.which(wanted) is None:
        raise BackendError(
            "the C simulation needs a C++ compiler, which is not installed",
            got=wanted,
            hint="install g++ (Debian: apt install g++), or set CXX",
        )
    return wanted


def digest(stage: Path) -> str:
    """Digest of everything that the binary is made of; weights are read when it runs."""
    found = hashlib.sha256(" ".join(command(compiler(), "tb")).encode())
    for folder in ("src", "tb", "csim"):
        for path in sorted((stage / folder).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                found.update(f"{path.relative_to(stage)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def build(stage: Path) -> Path:
    """Compile the test bench of a stage, unless this process has done so.

    Args:
        stage: Directory of an emitted stage.

    Returns:
        The binary.

    Raises:
        BackendError: No compiler, a file is missing, or the code does not compile.
    """
    for source in SOURCES:
        if not (stage / source).is_file():
            raise BackendError("an emitted file is missing", where=stage / source)
    binary = Path(_workspace().name) / digest(stage)
    if binary.exists():
        return binary
    half = binary.with_suffix(".tmp")
    done = subprocess.run(
        command(compiler(), str(half)), cwd=stage, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BackendError(
            "the emitted C++ does not compile",
            where=stage,
            got="\n" + "\n".join(done.stderr.splitlines()[:20]),
        )
    half.rename(binary)
    return binary
