"""Intervals and depths by this check beside reports of Vitis HLS on the same C++.

``python -m benchmarks.hls_check.vendor CHECKOUT`` looks for C++ files with reports of their
synthesis beside them (``*_csynth.xml``), such as the folder ``FPGA2025_Artificats`` of Stream-HLS
(github.com/UCLA-VAST/Stream-HLS), and compares every loop that the tool pipelined: the interval is
to be the same, the depth within two stages, at the clock of the report. The rules were made with
the designs of Stream-HLS whose file names have an even first byte in their SHA-256, and with
``evaluation/rtl`` of Prometheus (github.com/UCLA-VAST/Prometheus); ``--held-back`` takes the other
half, ``--every`` both, as of another repository.
"""

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.hls_check.circuit import Circuit
from benchmarks.hls_check.compiled import CLANG, FLAGS
from benchmarks.hls_check.ir import functions
from benchmarks.hls_check.operators import Delays
from benchmarks.hls_check.source import (
    SourceLoop,
    find_loops,
    own_text,
    read_places,
    read_target,
    translate,
)
from benchmarks.vitis_resources import has_odd_hash
from pipec.backends.fpga.vitis import read_module
from pipec.errors import BackendError

NEAR = 2
"""Stages that a depth may be off."""
REQUEST = 8
"""Cycles of a request and a word of memory outside of the chip, beyond its latency."""
VITIS_LATENCY = 64
"""Cycles that ``-flow_target vitis`` sets for a memory outside of the chip (UG1399)."""
_HEADERS = ("ap_axi_sdata.h", "ap_fixed.h", "ap_int.h", "hls_half.h", "hls_math.h", "hls_vector.h")


@dataclass(frozen=True)
class Reported:
    """A pipelined loop of a report: its module and name, interval, stages, clock."""

    module: str
    name: str
    ii: int
    depth: int
    clock_mhz: float = 300.0


@dataclass(frozen=True)
class Compared:
    """A reported loop of a design, and what this check says; 0 of a loop that it does not find."""

    design: str
    report: Reported
    ii: int = 0
    depth: int = 0
    because: str = "no such loop in the code"

    @property
    def equal(self) -> bool:
        """Whether the interval is the reported one."""
        return self.ii == self.report.ii

    @property
    def near(self) -> bool:
        """Whether the loop is found, and the depth within two stages of the reported one."""
        return self.ii > 0 and abs(self.depth - self.report.depth) <= NEAR


def read_reports(folder: Path) -> list[Reported]:
    """The pipelined loops of all modules of a folder.

    Raises:
        BackendError: A file is no report, or has no clock.
    """
    paths = sorted(folder.glob("*_csynth.xml"))
    modules = {path.name.removesuffix("_csynth.xml"): read_module(path) for path in paths}
    if not all(module.target_ns for module in modules.values()):
        raise BackendError("a report without a target clock period", where=folder)
    return [Reported(name, loop, ii, depth, 1e3 / module.target_ns)
            for name, module in modules.items() for loop, ii, depth in module.loops]  # fmt: skip


def find_designs(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Source and folder of reports of every design; of several sources that with most loops."""
    sources: dict[Path, list[Path]] = defaultdict(list)
    for source in sorted(folder.rglob("*.cpp")):
        near = source.parent.parent if source.parent.name == "src" else source.parent
        if not source.stem.endswith("_tb"):
            for reports in sorted(near.rglob("syn/report")):
                sources[reports].append(source)
    for reports, candidates in sources.items():
        rows = read_reports(reports) if len(candidates) > 1 else []
        yield max(candidates, key=partial(_count_loops, rows)), reports


def _read(source: Path) -> str:
    return source.read_text(errors="replace")


def _count_loops(rows: Sequence[Reported], source: Path) -> int:
    """Loops of the reports that a source has; none of one that is not read."""
    try:
        return len(match(rows, find_loops(_read(source))))
    except BackendError:
        return 0


def match(
    reports: Sequence[Reported], loops: Sequence[SourceLoop]
) -> dict[int, tuple[list[int], int]]:
    """Numbers of reports, and of how many loops it is made, by the number of the innermost loop.

    A function that is called with other constants has several modules, each with the same loop.
    """
    found: dict[int, tuple[list[int], int]] = {}
    for number, report in enumerate(reports):
        levels = {k: x.count_levels(report.name) for k, x in enumerate(loops)}
        ways = [(report.module.startswith(loops[k].function), len(loops[k].function), -k, count)
                for k, count in levels.items() if count]  # fmt: skip
        if ways:
            *_, place, count = max(ways)
            found.setdefault(-place, ([], count))[0].append(number)
    return found


def compile_to_ir(text: str, beside: Path, *, reordered: bool) -> str:
    """A source file, which lies in a folder with its headers, as LLVM IR.

    Raises:
        BackendError: clang refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-hls-") as name:
        folder = Path(name)
        for header in _HEADERS:
            (folder / header).write_text('#include "hls_types.h"\n')
        for header in ("hls_stream.h", "hls_types.h"):
            shutil.copy(Path(__file__).with_name(header), folder)
        (folder / "design.cpp").write_text('extern "C" void pipec_loop(int);\n' + text)
        flags = [*FLAGS, *["-fno-signed-zeros"] * reordered, "-S", "-emit-llvm"]
        for kept in ("-disable-licm-promotion", "-enable-load-pre=0"):
            flags += ["-mllvm", kept]  # what stays in a register is decided here
        flags += ["-I", name, "-I", str(beside)]
        command = [CLANG[0], *flags, str(folder / "design.cpp"), "-o", str(folder / "design.ll")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BackendError("clang refuses the code", got=done.stderr[:600])
        return (folder / "design.ll").read_text()


@dataclass(frozen=True)
class Script:
    """What a design's script sets.

    Attributes:
        tree: Whether sums may be reordered.
        latency: Cycles of memory outside of the chip, with a request.
    """

    tree: bool
    latency: int

    def time_outside(self, module: str) -> int:
        """Cycles of an access; a module that is only a loop has its requests in front of it."""
        return 1 if "_Pipeline_" in module else self.latency


def read_script(source: Path, reports: Path) -> Script:
    """The script of a design, beside its source or above its reports."""
    folders = (source.parent, *reports.parents[2:4])
    text = "".join(_read(p) for folder in folders for p in folder.glob("*.tcl"))
    tree = re.search(r"^config_compile.*-unsafe_math_optimizations", text, re.MULTILINE)
    kernel = re.search(r"^open_solution.*-flow_target +vitis", text, re.MULTILINE)
    return Script(tree is not None, REQUEST + (VITIS_LATENCY if kernel else 0))


def measure(body: Circuit) -> tuple[int, int, str]:
    """Interval and depth of a loop by this check, and what that comes from; 0 if unknown."""
    try:
        body = body.with_adders(body.target) if body.target else body
        (ports, memory), (recurrence, cycle) = body.ports(), body.recurrence()
    except BackendError as error:
        return 0, 0, " ".join(str(error).split())
    ii = max(recurrence, ports, body.target)
    because = f"ports of {memory}" if ports > recurrence else " ".join(cycle[:8])
    return ii, body.depth_at(ii), because


def compare(design: tuple[Path, Path], folder: Path) -> list[Compared]:
    """All pipelined loops of a design; of one that clang refuses none is found."""
    source, reports = design
    text, rows, name = _read(source), read_reports(reports), str(source.relative_to(folder))
    try:
        found = dict(measure_loops(text, rows, source.parent, read_script(source, reports)))
    except BackendError as error:
        return [Compared(name, row, because=" ".join(str(error).split())) for row in rows]
    return [Compared(name, row, *found.get(k, ())) for k, row in enumerate(rows)]


def measure_loops(
    text: str, rows: Sequence[Reported], beside: Path, script: Script
) -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Number in the reports, interval, depth and what it comes from of every loop of a source.

    Raises:
        BackendError: clang refuses it.
    """
    loops, places, seen = find_loops(text), read_places(text), set[int]()
    marked = match(rows, loops)
    headers = "".join(_read(p) for p in sorted(beside.glob("*.h*")))
    code = translate(text, loops, marked, headers)
    for function in functions(compile_to_ir(code, beside, reordered=script.tree)):
        for mark in (i for i in function if i.callee == "@pipec_loop"):
            place, loop = mark.numbers[0], function.innermost(mark.block)
            if loop is not None and place not in seen:
                seen.add(place)
                numbers, levels = marked[place]
                target = read_target(own_text(text, loops[place], loops))
                for number in numbers:
                    row, arrays = rows[number], places.get(function.name_in_source, {})
                    body = Circuit(function, loop, {}, Delays(row.clock_mhz), levels=levels,
                                   places=arrays, tree=script.tree, target=target,
                                   outside=script.time_outside(row.module))  # fmt: skip
                    yield number, measure(body)


def print_row(row: Compared) -> None:
    """A loop in one line."""
    r = row.report
    print(f"{row.design} {r.module} {r.name}: interval {row.ii}, reported {r.ii}; depth "
          f"{row.depth}, reported {r.depth}; {row.because}", flush=True)  # fmt: skip


@click.command()
@click.argument("checkout", type=click.Path(exists=True, path_type=Path))
@click.option("--held-back", is_flag=True, help="The half that no rule was made with.")
@click.option("--every", is_flag=True, help="Both halves.")
@click.option("--only", default="", help="Designs with this in their path.")
@click.option("--rows", "everything", is_flag=True, help="Every loop, not only other intervals.")
@click.option("--processes", default=2, show_default=True)
def main(
    checkout: Path, held_back: bool, every: bool, only: str, everything: bool, processes: int
) -> None:
    """Compare, and print per family of designs how many loops agree."""
    if every and held_back:
        raise click.UsageError("--every is both halves, --held-back one of them")
    chosen = [d for d in find_designs(checkout)
              if (every or has_odd_hash(d[0].stem) == held_back) and only in str(d[0])]  # fmt: skip
    families: dict[str, list[Compared]] = defaultdict(list)
    with ProcessPoolExecutor(processes) as pool:
        for rows in pool.map(partial(compare, folder=checkout), chosen):
            for row in rows:
                families[row.design.partition("/")[0]].append(row)
                if everything or not row.equal:
                    print_row(row)
    if not families:
        raise click.ClickException(f"no design of {checkout} has pipelined loops in its reports")
    families["all"] = [row for rows in families.values() for row in rows]
    for family, rows in families.items():
        equal, near = (sum(getattr(r, what) for r in rows) for what in ("equal", "near"))
        print(f"{family}: {len({r.design for r in rows})} designs, {len(rows)} loops, "
              f"{equal} with the same interval ({equal / len(rows):.1%}), "
              f"{near} with a depth within {NEAR} ({near / len(rows):.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
