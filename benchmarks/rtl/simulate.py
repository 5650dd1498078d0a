"""Runs the SystemVerilog of stages under Verilator or Icarus, and reads the logs of its benches."""

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.rtl.generate import (
    Json,
    bench_verilog,
    clock_main,
    library,
    stage_verilog,
    top_verilog,
)
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import SOURCE, Tile, tile_bench_verilog
from pipec.errors import BackendError


class Simulator(StrEnum):
    """An installed RTL simulator: Verilator is fast to run, Icarus fast to compile."""

    VERILATOR = "verilator"
    ICARUS = "iverilog"

    @property
    def installed(self) -> bool:
        """Whether its command is found."""
        return shutil.which(self.value) is not None


@dataclass(frozen=True)
class Bench:
    """What is to be run.

    Attributes:
        name: Identifier; the log is ``<name>.log``.
        subject: The parsed ``stage.json``, or a tiled engine.
        frames: Frames to run.
        style: How pipelines stall.
    """

    name: str
    subject: Json | Tile
    frames: int
    style: Style = Style.FREE


@dataclass(frozen=True)
class Observed:
    """The observations of a bench.

    Attributes:
        visible: By stream the cycles at which its tokens became visible to its reader.
        frames: By engine the cycle of the last start of each frame.
        stalls: By stream the cycles that its reader and its writer lost to it.
        values: By output stream its tokens in order, elements lowest first, if logged.
        deadlocked: Whether nothing moved any more before all frames were done.
        end: Cycles simulated.
    """

    visible: Mapping[str, list[int]]
    frames: Mapping[str, list[int]]
    stalls: Mapping[str, int]
    deadlocked: bool
    end: int
    values: Mapping[str, list[str]] = field(default_factory=dict)


def write_sources(benches: Sequence[Bench], folder: Path, *, values: bool = False) -> list[Path]:
    """Write engines, stages, benches and top; the files in compilation order.

    Args:
        benches: What is to be run on one clock.
        folder: An existing directory.
        values: Log the data of stage outputs.

    Raises:
        BackendError: An engine has no SystemVerilog.
    """
    texts = {**library(), SOURCE.name: SOURCE.read_text(encoding="utf-8")}
    for bench in benches:
        if isinstance(bench.subject, Tile):
            texts[f"bench_{bench.name}.sv"] = tile_bench_verilog(
                bench.subject, bench.name, bench.frames
            )
            continue
        texts[f"{bench.name}.sv"] = stage_verilog(bench.subject, bench.name, bench.style)
        texts[f"bench_{bench.name}.sv"] = bench_verilog(
            bench.subject, bench.name, bench.frames, values=values
        )
    texts["top.sv"] = top_verilog([bench.name for bench in benches])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "main.cpp").write_text(clock_main(), encoding="utf-8")
    return [folder / name for name in texts]


def run_benches(
    benches: Sequence[Bench], folder: Path, simulator: Simulator, *, values: bool = False
) -> dict[str, Observed]:
    """Compile and run benches together.

    Args:
        benches: What is to be run.
        folder: An existing directory for sources, binaries and logs.
        simulator: With what.
        values: Log the data of stage outputs.

    Returns:
        What each bench saw, by name.

    Raises:
        BackendError: The simulator is not installed, or it fails.
    """
    if not simulator.installed:
        raise BackendError(
            "the RTL simulator is not installed",
            want=simulator.value,
            hint=f"apt-get install {simulator.value}",
        )
    sources = [path.name for path in write_sources(benches, folder, values=values)]
    compile_, execute = _commands(simulator, sources)
    for command in (compile_, execute):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BackendError(
                f"{command[0]} fails", where=str(folder), got=(done.stderr or done.stdout)[-2000:]
            )
    return {bench.name: read_log(bench, folder / f"{bench.name}.log") for bench in benches}


def _commands(simulator: Simulator, sources: Sequence[str]) -> tuple[list[str], list[str]]:
    if simulator is Simulator.ICARUS:
        flags = ["-g2012", "-Wno-timescale", "-s", "clocked", "-o", "top.vvp"]
        return ["iverilog", *flags, *sources], ["vvp", "-n", "top.vvp"]
    warnings = [
        f"-Wno-{w}"
        for w in ("WIDTH", "UNOPTFLAT", "UNSIGNED", "CMPCONST", "PINMISSING", "SELRANGE")
    ]
    flags = [
        "--cc",
        "--exe",
        "--build",
        "-j",
        "1",
        "--top-module",
        "top",
        "-MAKEFLAGS",
        "OPT_FAST=-O0 OPT_GLOBAL=-O0",
    ]
    return ["verilator", *flags, *warnings, "main.cpp", *sources], ["obj_dir/Vtop"]


def read_log(bench: Bench, path: Path) -> Observed:
    """Parse the log of a bench."""
    names, engines = _names(bench.subject)
    visible, frames, values = (defaultdict[str, list[int]](list), defaultdict[str, list[int]](list),
                               defaultdict[str, list[str]](list))  # fmt: skip
    stalls, end, dead = dict.fromkeys(names, 0), 0, False
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, *rest = line.split()
        if kind == "s":
            visible[names[int(rest[0])]].append(int(rest[1]))
        elif kind == "e":
            frames[engines[int(rest[0])][0]].append(int(rest[1]))
        elif kind == "o":
            values[names[int(rest[0])]].append(rest[2])
        elif kind == "w":
            ports = engines[int(rest[0])][1]
            if (port := ports[int(rest[1])]) is not None:
                stalls[port] += int(rest[2])
        else:
            end, dead = int(rest[0]), rest[1] == "1"
    return Observed(visible, frames, stalls, dead, end, values)


def _names(subject: Json | Tile) -> tuple[list[str], list[tuple[str, list[str | None]]]]:
    """Streams by number; engines by number with the stream of each port, inputs first."""
    if isinstance(subject, Tile):
        return [], [("store", [])]
    engines = [(e["name"], [*(e["inputs"] or [None]), *e["outputs"]]) for e in subject["engines"]]
    return [f["name"] for f in subject["fifos"]], engines
