"""Resources that the FPGA estimate counts, against AMD's synthesis reports of the same modules.

``python -m benchmarks.vitis_resources [FOLDER]`` reads ``modules.csv`` and the tables beside it:
what Vitis HLS made of some thousand modules, the operators that it bound, memories and FIFOs.
The rules that price an engine price every module:

* An operator costs what `pipec.backends.fpga.arithmetic.step_cost` says, an integer multiply-add
  on a DSP slice one DSP; a loop has the control of an engine with as many additions on the fabric
  and stages as the report says, and updates each of its memories.
* A memory takes what `pipec.backends.fpga.memory.stored` says of its width and depth, in the
  kind that the report names; between processes of a dataflow region it is twice as deep.
* A module has also what it calls, times the instances.

The reports charge one block RAM to a FIFO of any depth, so that block RAM is compared memory by
memory. Modules that share an operator (II above 1) are priced too, though no engine of ours shares.

Rules were made on one half of the designs. The other half (``--held-back``) is that of the kernels
whose name has an odd first byte in its SHA-256; a kernel is in one half in all of its versions.
"""

import argparse
import csv
import hashlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path

from pipec.backends.fpga.arithmetic import step_cost
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.memory import Item, fifo_logic, with_control

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "vitis"
STEPS = {
    "fadd": "add", "fsub": "sub", "fmul": "mul", "fdiv": "div", "fexp": "exp", "fcmp": "max",
    "frecip": "reciprocal", "fsqrt": "sqrt",
}  # fmt: skip
"""Operators of the reports as steps of an engine."""
TABLES = ("modules", "cores", "ops", "loops", "memories", "fifos")

RESOURCES = ("dsp", "lut", "ff")
COMPUTES = "loops, II 1, that compute"

Line = Mapping[str, str]
Name = tuple[str, str]


def is_held_back(design: str) -> bool:
    """Whether a design belongs to the half that no rule was made on.

    Example:
        >>> is_held_back("polybench/allo/3mm/3mm.prj"), is_held_back("mlps/opt1/ResMLP")
        (True, False)
    """
    kernel = design.rpartition("/")[2].removesuffix(".prj")
    if design.startswith("polybench"):
        kernel = kernel.removeprefix("k")
    return hashlib.sha256(kernel.encode()).digest()[0] % 2 == 1


@dataclass(frozen=True)
class Reports:
    """The tables of a folder, by design and module."""

    tables: Mapping[str, Mapping[Name, Sequence[Line]]]

    @classmethod
    def read(cls, folder: Path) -> "Reports":
        """All tables of a folder."""
        found: dict[str, dict[Name, list[Line]]] = {}
        for table in TABLES:
            found[table] = defaultdict(list)
            with (folder / f"{table}.csv").open(newline="") as file:
                for line in csv.DictReader(file):
                    found[table][line["design"], line["module"]].append(line)
        return cls(found)

    def of(self, table: str, name: Name) -> Sequence[Line]:
        """The lines of a module."""
        return self.tables[table].get(name, ())

    @cached_property
    def modules(self) -> list[Name]:
        """Modules that can be priced: they compute, and all that they call can be priced."""
        return [name for name in self.tables["modules"] if self._known(name)]

    def copies(self, name: Name) -> int:
        """How often a module holds each of its memories."""
        return 2 if self.of("modules", name)[0]["pipeline"] == "dataflow" else 1

    def calls(self, name: Name) -> list[tuple[Name, int]]:
        """The modules that one calls, with their instances."""
        called = (line for line in self.of("cores", name) if line["kind"] == "module")
        return [((name[0], line["core"]), int(line["count"])) for line in called]

    def _known(self, name: Name) -> bool:
        own = bool(self.of("ops", name)) and bool(self.of("loops", name))
        called = [called for called, _ in self.calls(name)]
        return (own or bool(called)) and all(self._known(c) for c in called)


def estimated(reports: Reports, name: Name) -> Resources:
    """What the estimate says of a module, block RAM of FIFOs left out."""
    dsp = lut = 0.0
    additions = 0
    for line in reports.of("ops", name):
        cores = int(line["cores"])
        if line["op"] in STEPS:
            each = step_cost(STEPS[line["op"]], "float32")
            dsp, lut = dsp + cores * each[0], lut + cores * each[1]
        elif line["op"] == "mul" and line["impl"] == "dsp_slice":
            dsp += cores * step_cost("mul", "ap_fixed<16,6>")[0]
        elif line["op"] in ("add", "sub") and line["impl"] == "fabric":
            additions += cores
    total = Resources()
    if loops := reports.of("loops", name):
        words = sum(int(m["bits"]) * int(m["count"]) for m in reports.of("memories", name))
        depth = max(int(line["depth"] or 1) for line in loops)
        total = with_control(dsp, lut, additions, depth, words)
    copies = reports.copies(name)
    parts = [(memory(m, copies), int(m["count"])) for m in reports.of("memories", name)]
    parts += [
        (fifo_logic(int(f["bits"]), int(f["depth"])), int(f["count"]))
        for f in reports.of("fifos", name)
    ]
    parts += [(estimated(reports, called), count) for called, count in reports.calls(name)]
    for part, count in parts:
        total = Resources(
            *(a + count * b for a, b in zip(astuple(total), astuple(part), strict=True))
        )
    return total


def memory(line: Line, copies: int) -> Resources:
    """What the estimate says of a memory, where the report says that it lies."""
    place = Memory.BRAM if float(line["BRAM_18K"] or 0) else Memory.LUT
    place = Memory.URAM if float(line["URAM"] or 0) else place
    width, depth = int(line["bits"]) * int(line["banks"]), copies * int(line["words"])
    return Item("", "", width, depth).taken(place)


@dataclass(frozen=True)
class Row:
    """A module: what its report says, and what the estimate does, by resource."""

    design: str
    module: str
    kind: str
    reported: Mapping[str, float]
    estimated: Mapping[str, float]

    def error(self, resource: str) -> float:
        """Relative error, signed; of nothing in nothing 0."""
        got, want = self.estimated[resource], self.reported[resource]
        return (got - want) / want if want else float(got > 0)


def rows_of(reports: Reports, *, held_back: bool) -> Iterator[Row]:
    """The modules of one half that can be priced."""
    for name in reports.modules:
        if is_held_back(name[0]) == held_back:
            (line,), found = reports.of("modules", name), estimated(reports, name)
            yield Row(
                *name,
                kind_of(reports, name),
                {key: float(line[key.upper()] or 0) for key in RESOURCES},
                {key: getattr(found, key) for key in RESOURCES},
            )


def kind_of(reports: Reports, name: Name) -> str:
    """What a module is, as far as the estimate is concerned."""
    if reports.calls(name):
        return "made of modules"
    intervals = [int(line["ii"] or 0) for line in reports.of("loops", name)]
    if max(intervals) > 1:
        return "loops, II > 1"
    computes = any(line["op"] in STEPS for line in reports.of("ops", name))
    return COMPUTES if computes else "loops, II 1, that move"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of errors, one per kind of module and resource."""
    yield "                                            median  signed   within   within"
    yield "modules                              count   error  median     3 %     20 %   total"
    kinds = sorted({row.kind for row in rows})
    for kind in ("", *kinds):
        for resource in RESOURCES:
            of_kind = [r for r in rows if kind in ("", r.kind)]
            some = [r for r in of_kind if resource != "dsp" or r.reported["dsp"]]
            errors = [r.error(resource) for r in some]
            sizes = [abs(e) for e in errors]
            ours = sum(r.estimated[resource] for r in some)
            yield (
                f"{kind or 'all':26} {resource.upper():4} {len(some):11} "
                f"{statistics.median(sizes):7.1%} {statistics.median(errors):+7.1%} "
                f"{share(sizes, 0.03):7.1%} {share(sizes, 0.2):8.1%} "
                f"{ours / sum(r.reported[resource] for r in some) - 1:+7.1%}"
            )


def share(sizes: Sequence[float], limit: float) -> float:
    """Share of numbers that are at most a limit."""
    return sum(size <= limit for size in sizes) / len(sizes)


def of_memories(reports: Reports, *, held_back: bool) -> Iterator[str]:
    """Lines that say how many memories take what we say, by kind, and those furthest off."""
    found: dict[str, list[tuple[float, float, Line]]] = defaultdict(list)
    for name, lines in reports.tables["memories"].items():
        for line in lines if is_held_back(name[0]) == held_back else ():
            ours = memory(line, reports.copies(name))
            got = {"BRAM_18K": 2 * ours.bram36, "URAM": ours.uram, "LUT": ours.lut}
            kind = next((key for key in got if float(line[key] or 0)), "")
            if kind:
                found[kind].append((got[kind], float(line[kind]), line))
    for kind, memories in sorted(found.items()):
        sizes = [abs(got / want - 1) for got, want, _ in memories]
        yield (
            f"{len(memories)} memories in {kind}: {share(sizes, 0):.1%} exact, "
            f"{share(sizes, 0.03):.1%} within 3 %"
        )
        wrong = sorted((m for m in memories if m[0] != m[1]), key=lambda m: -abs(m[0] / m[1] - 1))
        for estimate, want, line in wrong[:3]:
            yield f"    {line['words']} x {line['bits']} bits: {estimate:g}, reported {want:g}"


def worst(rows: Sequence[Row], count: int = 4) -> Iterator[str]:
    """The modules that compute and are furthest off."""
    some = [r for r in rows if r.kind == COMPUTES]
    for resource in RESOURCES:
        yield f"furthest off in {resource.upper()} of '{COMPUTES}':"
        for r in sorted(some, key=lambda r: -abs(r.error(resource)))[:count]:
            yield (
                f"    {r.design} {r.module}: {r.estimated[resource]:,.0f}, "
                f"reported {r.reported[resource]:,.0f}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors by kind of module; 2 if the reports are not there."""
    parser = argparse.ArgumentParser(prog="benchmarks.vitis_resources", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument(
        "--held-back", action="store_true", help="the half that nothing was made on"
    )
    args = parser.parse_args(arguments)
    if not (args.folder / "modules.csv").is_file():
        print(f"no such file: {args.folder / 'modules.csv'}", file=sys.stderr)
        return 2
    reports = Reports.read(args.folder)
    rows = list(rows_of(reports, held_back=args.held_back))
    print("the half held back" if args.held_back else "the half that rules were made on")
    for line in (*summary(rows), *of_memories(reports, held_back=args.held_back), *worst(rows)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
