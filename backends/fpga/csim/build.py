"""Compiling an emitted stage with plain g++, once per content."""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from pipec.backends.fpga.toolchain import compile_cpp, compiler, workspace
from pipec.errors import BackendError

STANDARD = ("-std=c++17", "-O1", "-ftree-vectorize")
FLAGS: tuple[str, ...] = ("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-ffp-contract=off")
"""Flags of every C simulation; no contraction, so that every machine gives the same bits."""
BOUNDED = ("-DPIPEC_BOUNDED", "-U_FORTIFY_SOURCE")
"""Streams as deep as declared, engines as coroutines (whose jumps fortified code forbids)."""
TIMED = ("-DPIPEC_TIMED", "-U_FORTIFY_SOURCE")
"""The same, with the cycle of every handshake."""
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Address and undefined-behaviour sanitizers."""
SOURCES = ("src/stage_top.cpp", "tb/tb_stage.cpp")
INCLUDES = ("-Isrc", "-Isrc/engines", "-Itb", "-Icsim")


def arguments(target: str, extra: Sequence[str] = ()) -> list[str]:
    """What the compiler is told in the stage directory.

    Args:
        target: Binary to write.
        extra: `BOUNDED`, `TIMED`, `SANITIZED`, or nothing.
    """
    return [*STANDARD, *FLAGS, *extra, *INCLUDES, *SOURCES, "-o", target]


def digest(stage: Path, extra: Sequence[str] = ()) -> str:
    """Digest of everything that the binary is made of; weights are read when it runs."""
    found = hashlib.sha256(" ".join([compiler(), *arguments("tb", extra)]).encode())
    for folder in ("src", "tb", "csim"):
        for path in sorted((stage / folder).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                found.update(f"{path.relative_to(stage)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def build(stage: Path, extra: Sequence[str] = ()) -> Path:
    """Compile the test bench of a stage, unless this process has done so.

    Args:
        stage: Directory of an emitted stage.
        extra: Further flags, as of `arguments`.

    Returns:
        The binary.

    Raises:
        BackendError: No compiler, a file is missing, or the code does not compile.
    """
    for source in SOURCES:
        if not (stage / source).is_file():
            raise BackendError("an emitted file is missing", where=stage / source)
    binary = workspace() / digest(stage, extra)
    if binary.exists():
        return binary
    half = binary.with_suffix(f".{threading.get_ident()}")  # equal stages may meet here
    compile_cpp(arguments(str(half), extra), "the emitted C++", stage)
    half.replace(binary)
    return binary
