"""An emitted kernel as LLVM IR, its pragmas put into words that clang understands."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.hls_check.found import Array, Interval, engine_in
from benchmarks.hls_check.ir import Function, functions
from benchmarks.hls_check.operators import Delays
from benchmarks.hls_check.recurrence import Body
from benchmarks.hls_check.schedule import HAND_OVER, pauses_in
from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.stagejson import read_record
from pipec.backends.fpga.toolchain import workspace
from pipec.errors import BackendError

CLANG = ("clang-14", "clang-15", "clang-16")
"""Compilers whose IR has typed pointers, or that have an option for them."""
_UNROLL = re.compile(r"^(\s*for \(.*\{)\n(#pragma HLS UNROLL\b.*)$", re.MULTILINE)
LIBRARY = ("cmath", "cstddef", "cstdint", "cstring", "limits", "type_traits", "utility")
MOST_PORTS = 1 << 30
"""Reads of a memory with as many ports as it is read by (UG1399, ``rom_np``)."""
_PIPELINE = re.compile(r"^#pragma HLS PIPELINE\b(?: +II *= *(.+))?$", re.MULTILINE)
_DISTANCE = re.compile(
    r"^#pragma HLS DEPENDENCE variable = (\w+) type = inter direction = RAW distance = (\S+).*$",
    re.MULTILINE,
)
_PRAGMA = re.compile(r"^ *#pragma HLS (\w+)\s+(.*)$", re.MULTILINE)
_HEAD = re.compile(r"^(?:inline )?[\w:<>,&* ]+?(\w+)\([^;]*?$", re.MULTILINE)
_CALLED = re.compile(r"(?<!void )\b(\w+)[<(]")
_GLOBAL = re.compile(
    r"^(@(?:\"[^\"]+\"|[-\w.$]+)) = .*?(?:global|constant) ((?:\[\d+ x )+)", re.MULTILINE
)
LEAST = {
    "pipec_pipeline": {"II": 1},
    "pipec_fire": {"II": 1, "DEPTH": 1},
    "pipec_gap": {"pause": 0},
    "pipec_distance": {"distance": 1},
}
"""What calls that stand for pragmas and firings are given, and the least that it can be."""
FLAGS = [
    "-std=c++17",
    "-O2",
    "-fno-discard-value-names",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-unroll-loops",
    "-fno-exceptions",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-w",
    "-mllvm",
    "-inline-threshold=1000000",
    "-mllvm",
    "-pragma-unroll-threshold=100000000",
    "-mllvm",
    "-unroll-threshold=100000000",
    "-mllvm",
    "-disable-loop-idiom-all",
    "-mllvm",
    "-jump-threading-threshold=0",
    "-mllvm",
    "-indvars-widen-indvars=0",
]


def intervals(stage: Path) -> list[Interval]:
    """What every pipelined loop of an emitted stage allows, and every pause between two of them.

    Args:
        stage: Its directory, ``stage.json`` included.

    Raises:
        BackendError: There is no clang, or it refuses the code; a loop is left in a pipelined one;
            an interval, depth, pause or distance is one that no pipeline can have.
    """
    return loops_in(stage / "src", float(read_record(stage)["clock_mhz"]))


def loops_in(source: Path, clock_mhz: float) -> list[Interval]:
    """The same of a folder with ``stage_top.cpp``, whose engines are functions of ``engine::``.

    Raises:
        BackendError: As `intervals`.
    """
    found, delays = parse(source), Delays(clock_mhz)
    bodies = [(f, found.arrays, delays, found.sizes) for f in found.functions]
    for function in found.functions:
        _check_marks(function)
    return [i for kind in (_loops, _pauses) for body in bodies for i in kind(*body)]


@dataclass(frozen=True)
class Code:
    """The code of a kernel.

    Attributes:
        functions: As clang has them.
        arrays: What pragmas say, by function and variable.
        sizes: Words by global array, dimension by dimension.
    """

    functions: list[Function]
    arrays: dict[tuple[str, str], Array]
    sizes: dict[str, tuple[int, ...]]


def parse(source: Path) -> Code:
    """A kernel as clang reads it; functions of ``links::`` are engines, too.

    Raises:
        BackendError: There is no clang, or it refuses the code.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-hls-") as name:
        folder = Path(name)
        shutil.copytree(source, folder / "src", ignore=shutil.ignore_patterns("weights"))
        arrays: dict[tuple[str, str], Array] = {}
        kernel = (folder / "src" / "stage_top.cpp").read_text(encoding="utf-8")
        engines = frozenset(re.findall(r"(?:engine|links)::(\w+)[<(]", kernel))
        paths = [p for p in sorted((folder / "src").rglob("*")) if p.suffix in {".h", ".cpp"}]
        texts = {path: path.read_text(encoding="utf-8") for path in paths}
        headers = "\n".join(text for path, text in texts.items() if path.suffix == ".h")
        called = set(_CALLED.findall(headers))
        for path, text in texts.items():
            _collect(arrays, text, called)
            path.write_text(_translate(text, engines), encoding="utf-8")
        shutil.copy(Path(__file__).with_name("hls_stream.h"), folder)
        for header in ("ap_axi_sdata.h", "ap_int.h"):
            (folder / header).write_text(own_header(f"csim/{header}"), encoding="utf-8")
        text = _ir(folder)
    sizes = {n: tuple(map(int, re.findall(r"\d+", d))) for n, d in _GLOBAL.findall(text)}
    return Code(functions(text), arrays, sizes)


def _check_marks(function: Function) -> None:
    """Refuse what is no constant, and constants that no pipeline can have."""
    for mark in (i for i in function if i.callee):
        limits = next((m for name, m in LEAST.items() if name in mark.callee), {})
        given = re.findall(r"i32 (?:noundef )?([^,)\s]+)", mark.rest)
        for (name, least), value in zip(limits.items(), given, strict=False):
            constant = value.lstrip("-").isdigit()
            if not constant or int(value) < least:
                raise BackendError(f"the emitted code declares an impossible {name}",
                                   where=f"engine {engine_in(function.name)}",
                                   got=value if constant else "no constant",
                                   want=f"a constant of {least} or more",
                                   hint="do not edit src/types.h; emit the stage anew")  # fmt: skip


def _loops(
    function: Function,
    arrays: dict[tuple[str, str], Array],
    delays: Delays,
    sizes: dict[str, tuple[int, ...]],
) -> Iterator[Interval]:
    """The pipelined loops of a function: those with a mark of their own."""
    seen = set[str]()
    marks = [i for i in function if i.callee == "@pipec_pipeline"]
    for mark in marks:
        loop = function.innermost(mark.block)
        if loop is None or loop.header in seen:
            continue
        seen.add(loop.header)
        inner = [x for x in function.loops if x.header != loop.header and x.blocks < loop.blocks]
        if inner and all(any(m.block in x.blocks for m in marks) for x in inner):
            continue  # a copy of that loop's first iteration, in front of it
        if inner:
            raise BackendError("a loop inside a pipelined loop has no fixed end",
                               where=function.name, got=inner[0].header,
                               hint="unroll it")  # fmt: skip
        (declared,) = mark.numbers
        body = Body(function, loop, arrays, delays, sizes).with_adders(declared)
        ports, memory = body.ports()
        least, cycle = body.recurrence()
        yield Interval(
            function.name, declared, least, cycle, ports, memory, body.unknown,
            body.depth(declared), _sum_depth(body),
        )  # fmt: skip


def _sum_depth(body: Body) -> int | None:
    """Pipeline depth by the code; of several loops of one iteration each, the pauses between, too.

    None of a loop that no engine counts cycles of.
    """
    fires = [i.numbers[1] for i in body.instructions if i.callee == "@pipec_fire"]
    gaps = [i.numbers[0] for i in body.instructions if i.callee == "@pipec_gap"]
    return max(fires) + sum(gaps[1:]) if fires else None


def _pauses(
    function: Function,
    arrays: dict[tuple[str, str], Array],
    delays: Delays,
    sizes: dict[str, tuple[int, ...]],
) -> Iterator[Interval]:
    """The pauses between pipelined loops: the first one drains, what lies between is computed."""
    for pause in pauses_in(function):
        parts = (pause.before, pause.between)
        bodies = (Body(function, part, arrays, delays, sizes) for part in parts)
        least = HAND_OVER + sum(body.cycles for body in bodies)
        between = ("drain", "between")
        yield Interval(function.name, pause.declared, least, between, 1, "", pause=True)


def _translate(text: str, engines: Collection[str]) -> str:
    """The source with clang's unrolling; each engine a function, all else a part of one.

    Pragmas that make a pipeline or say a distance become calls, which know constants of templates.
    """
    text = _UNROLL.sub(r"#pragma clang loop unroll(full)\n\1", text)
    text = _PIPELINE.sub(lambda m: f"pipec_pipeline({m[1] or 1});", text)
    text = _DISTANCE.sub(r"void pipec_distance_\1(int); pipec_distance_\1(\2);", text)
    names = "|".join(sorted(engines))
    alone = "static __attribute__((noinline)) void "
    return re.sub(rf"^void (?=(?:{names})\()", alone, text, flags=re.MULTILINE)


def _collect(arrays: dict[tuple[str, str], Array], text: str, called: Collection[str]) -> None:
    """Add what the pragmas of a text say of arrays; functions that headers call have no name."""
    heads = [(m.start(), m[1]) for m in _HEAD.finditer(text)]
    for pragma in _PRAGMA.finditer(text):
        kind, rest = pragma.groups()
        around = [name for at, name in heads if at < pragma.start()]
        words = dict(re.findall(r"(\w+)\s*=\s*([\w.]+)", rest))
        variable = words.get("variable", "").split(".")[0]
        name = (around[-1] if around and around[-1] not in called else "", variable)
        old = arrays.get(name, Array())
        if kind == "ARRAY_PARTITION" and "complete" in rest:
            arrays[name] = Array(int(words.get("dim", 0)), old.ports)
        elif kind == "BIND_STORAGE" and words.get("type") in {"ram_2p", "ram_s2p"}:
            arrays[name] = Array(old.partitioned, (1, 1))
        elif kind == "BIND_STORAGE" and words.get("type") == "rom_np":
            arrays[name] = Array(old.partitioned, (MOST_PORTS, 1))


def _ir(folder: Path) -> str:
    made = folder / "stage.ll"
    options: list[str | Path] = ["-S", "-emit-llvm", "-include-pch", _library(), "-I", folder]
    _clang([*options, "-I", folder / "src", folder / "src" / "stage_top.cpp", "-o", made])
    return made.read_text(encoding="utf-8")


@cache
def _library() -> Path:
    """The standard headers that engines include, read once, since they take longest."""
    made = workspace() / "hls_check.pch"
    if not made.exists():
        half = made.with_suffix(f".{os.getpid()}")  # another process may be here too
        words = (word for name in LIBRARY for word in ("-include", name))
        _clang(["-x", "c++-header", *words, "/dev/null", "-o", half])
        half.replace(made)
    return made


def _clang(arguments: Sequence[str | Path]) -> None:
    clang = next((c for c in CLANG if shutil.which(c)), None)
    if clang is None:
        raise BackendError("no clang to read the emitted code with", want=" or ".join(CLANG),
                           hint="apt-get install clang-14")  # fmt: skip
    command = [clang, *FLAGS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode != 0:
        raise BackendError("clang refuses the emitted code", got=done.stderr[:2000])
