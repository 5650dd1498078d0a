"""Compiling an emitted stage with plain g++, once per content."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipec.backends.fpga.toolchain import compile_cached, compiler
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
OWN = ("src/stage_top.cpp", "tb/tb_stage.cpp")
COMMON = ("tb/port_files.cpp", "csim/dataflow.cpp")
"""The same in all stages; each includes no other file than its header."""
SOURCES = (*OWN, *COMMON)
LIBRARY = ("cmath", "cstdint", "cstdio", "cstdlib", "cstring", "limits", "string", "type_traits",
           "utility", "vector")  # fmt: skip
"""Most of the text of a small stage. The files include it themselves, too."""
INCLUDES = ("-Isrc", "-Isrc/engines", "-Itb", "-Icsim")


def build(stage: Path, extra: Sequence[str] = ()) -> Path:
    """Compile the test bench of an emitted stage; what is the same in all stages, once per process.

    Further flags may be `BOUNDED`, `TIMED` or `SANITIZED`.

    Raises:
        BackendError: No compiler, a file is missing, or the code does not compile.
    """
    for source in SOURCES:
        if not (stage / source).is_file():
            raise BackendError("an emitted file is missing", where=stage / source)
    library = [word for name in LIBRARY for word in ("-include", name)]
    header = _compile(stage, (), ("-x", "c++-header", *library, "/dev/null"), extra, ".h.gch")
    common = [
        str(_compile(stage, [source.replace(".cpp", ".*")], ("-c", source), extra))
        for source in COMMON
    ]
    own = ("-include", str(header.with_suffix("")), *OWN, *common)
    return _compile(stage, ("src/*", "src/engines/*", "tb/*", "csim/*"), own, extra)


def _compile(
    stage: Path, read: Sequence[str], rest: Sequence[str], extra: Sequence[str], ending: str = ""
) -> Path:
    """Compile texts, once per process; the file that the compiler writes."""
    command = [*STANDARD, *FLAGS, *extra, *INCLUDES, *rest]
    digest = hashlib.sha256(" ".join([compiler(), *command]).encode())
    for path in sorted(path for pattern in read for path in stage.glob(pattern)):
        if path.suffix in (".h", ".cpp"):  # weights are read when it runs
            digest.update(f"{path.relative_to(stage)}\0".encode() + path.read_bytes())
    return compile_cached(f"{digest.hexdigest()}{ending}", command, "the emitted C++", stage)
