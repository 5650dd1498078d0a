"""Intervals and depths by this check beside reports of Vitis HLS on the same C++.

``python -m benchmarks.hls_check.vendor CHECKOUT`` looks for C++ files with reports of their
synthesis beside them (``*_csynth.xml``), such as the folder ``FPGA2025_Artificats`` of Stream-HLS
(github.com/UCLA-VAST/Stream-HLS), and compares every loop that the tool pipelined: the interval is
to be the same, the depth within two stages. The rules were made with the designs whose file names
have an even first byte in their SHA-256; ``--held-back`` takes the others.
"""

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.hls_check.circuit import Circuit
from benchmarks.hls_check.compiled import CLANG, FLAGS
from benchmarks.hls_check.ir import Function, Loop, functions
from benchmarks.hls_check.operators import Delays
from benchmarks.hls_check.source import (
    Place,
    SourceLoop,
    find_loops,
    own_text,
    read_places,
    read_target,
    translate,
)
from benchmarks.vitis_resources import has_odd_hash
from pipec.backends.fpga.vitis import read_module

CLOCK = 300.0
"""MHz that all rules were made at."""
NEAR = 2
"""Stages that a depth may be off."""
_EMPTY = ("hls_half.h", "hls_vector.h", "ap_axi_sdata.h", "ap_fixed.h", "ap_int.h")
_MATH = """#include <cmath>
namespace hls { using std::exp; using std::fabs; using std::log; using std::pow; using std::sqrt; }
"""


@dataclass(frozen=True)
class Reported:
    """A pipelined loop of a report: its module and name, interval, stages."""

    module: str
    name: str
    ii: int
    depth: int


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
        """Whether the depth is within two stages of the reported one."""
        return abs(self.depth - self.report.depth) <= NEAR


def read_reports(folder: Path) -> list[Reported]:
    """The pipelined loops of all modules of a folder.

    Raises:
        BackendError: A file is no report.
    """
    paths = sorted(folder.glob("*_csynth.xml"))
    modules = {path.name.removesuffix("_csynth.xml"): read_module(path) for path in paths}
    return [Reported(name, loop, ii, depth)
            for name, module in modules.items() for loop, ii, depth in module.loops]  # fmt: skip


def find_designs(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Source and folder of reports of every design."""
    for source in sorted(folder.rglob("*.cpp")):
        near = source.parent.parent if source.parent.name == "src" else source.parent
        if not source.stem.endswith("_tb"):
            yield from ((source, reports) for reports in sorted(near.rglob("syn/report")))


def match(reports: Sequence[Reported], loops: Sequence[SourceLoop]) -> dict[int, tuple[int, int]]:
    """Number of a report, and of how many loops it is, by the number of its innermost loop."""
    found: dict[int, tuple[int, int]] = {}
    for number, report in enumerate(reports):
        levels = {k: x.count_levels(report.name) for k, x in enumerate(loops)}
        ways = [(report.module.startswith(loops[k].function), len(loops[k].function), -k, count)
                for k, count in levels.items() if count]  # fmt: skip
        if ways:
            *_, place, count = max(ways)
            found.setdefault(-place, (number, count))
    return found


def compile_to_ir(text: str, *, reordered: bool) -> str:
    """A source file as LLVM IR.

    Raises:
        ClickException: clang refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="pipec-hls-") as name:
        folder = Path(name)
        for header in _EMPTY:
            (folder / header).touch()
        (folder / "hls_math.h").write_text(_MATH)
        stream = Path(__file__).with_name("hls_stream.h").read_text()
        (folder / "hls_stream.h").write_text(stream)
        (folder / "design.cpp").write_text('extern "C" void pipec_loop(int);\n' + text)
        flags = [*FLAGS, *["-fno-signed-zeros"] * reordered, "-S", "-emit-llvm", "-I", name]
        command = [CLANG[0], *flags, str(folder / "design.cpp"), "-o", str(folder / "design.ll")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(done.stderr[:1500])
        return (folder / "design.ll").read_text()


def is_reordered(reports: Path) -> bool:
    """Whether the script of a design allows the tool to reorder sums."""
    scripts = (p for folder in reports.parents[2:4] for p in folder.glob("*.tcl"))
    allowed = re.compile(r"^config_compile.*-unsafe_math_optimizations", re.MULTILINE)
    return any(allowed.search(p.read_text()) for p in scripts)


def measure(
    function: Function, loop: Loop, levels: int, places: Mapping[str, Place], target: int, *,
    tree: bool,
) -> tuple[int, int, str]:  # fmt: skip
    """Interval and depth of a loop by this check, and what the interval comes from."""
    body, quick = (
        Circuit(function, loop, {}, Delays(CLOCK), {}, levels, places, tree, quick)
        for quick in (False, True)
    )
    ports, memory = body.ports()
    if body.recurrence()[0] > max(target, ports):
        body = quick
    recurrence, cycle = body.recurrence()
    ii = max(recurrence, ports, target)
    because = f"ports of {memory}" if ports > recurrence else " ".join(cycle[:8])
    return ii, body.depth_at(ii), because


def compare(design: tuple[Path, Path], folder: Path) -> list[Compared]:
    """All pipelined loops of a design.

    Raises:
        ClickException: clang refuses it.
    """
    source, reports = design
    text, rows, name = source.read_text(), read_reports(reports), str(source.relative_to(folder))
    loops, tree = find_loops(text), is_reordered(reports)
    marked, places = match(rows, loops), read_places(text)
    found: dict[int, Compared] = {}
    for function in functions(compile_to_ir(translate(text, loops, marked), reordered=tree)):
        for mark in (i for i in function if i.callee == "@pipec_loop"):
            number, levels = marked[mark.numbers[0]]
            loop = function.innermost(mark.block)
            if loop is not None and number not in found:
                target = read_target(own_text(text, loops[mark.numbers[0]], loops))
                measured = measure(function, loop, levels, places[function.name_in_source],
                                   target, tree=tree)  # fmt: skip
                found[number] = Compared(name, rows[number], *measured)
    return [found.get(k, Compared(name, row)) for k, row in enumerate(rows)]


def print_row(row: Compared) -> None:
    """A loop in one line."""
    r = row.report
    print(f"{row.design} {r.module} {r.name}: interval {row.ii}, reported {r.ii}; depth "
          f"{row.depth}, reported {r.depth}; {row.because}", flush=True)  # fmt: skip


@click.command()
@click.argument("checkout", type=click.Path(exists=True, path_type=Path))
@click.option("--held-back", is_flag=True, help="The half that no rule was made with.")
@click.option("--only", default="", help="Designs with this in their path.")
@click.option("--rows", "everything", is_flag=True, help="Every loop, not only other intervals.")
@click.option("--processes", default=2, show_default=True)
def main(checkout: Path, held_back: bool, only: str, everything: bool, processes: int) -> None:
    """Compare, and print per family of designs how many loops agree."""
    chosen = [d for d in find_designs(checkout)
              if has_odd_hash(d[0].stem) == held_back and only in str(d[0])]  # fmt: skip
    families: dict[str, list[Compared]] = defaultdict(list)
    with ProcessPoolExecutor(processes) as pool:
        for rows in pool.map(partial(compare, folder=checkout), chosen):
            for row in rows:
                families[row.design.partition("/")[0]].append(row)
                if everything or not row.equal:
                    print_row(row)
    families["all"] = [row for rows in families.values() for row in rows]
    for family, rows in families.items():
        equal, near = (sum(getattr(r, what) for r in rows) for what in ("equal", "near"))
        print(f"{family}: {len({r.design for r in rows})} designs, {len(rows)} loops, "
              f"{equal} with the same interval ({equal / len(rows):.1%}), "
              f"{near} with a depth within {NEAR} ({near / len(rows):.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
