"""Resources that the FPGA estimate counts, against AMD's synthesis reports of the same modules.

``python -m benchmarks.vitis_resources [FOLDER]`` reads ``modules.csv`` and the tables beside it:
what Vitis HLS made of some thousand modules, the operators that it bound, memories and FIFOs.
The rules that price an engine price every module:

* An operator costs what `pipec.backends.fpga.arithmetic.step_cost` says, an integer multiply-add
  on a DSP slice one DSP; a loop has the control of an engine with as many additions on the fabric
  and stages as the report says, counters of as many bits as its iterations have, and updates each
  of its memories. FIFOs that it reads and writes are known of designs that were co-simulated
  (``dataflow.json.gz``); of the others, their handshakes are added to the module of the FIFOs.
* A memory takes what `pipec.backends.fpga.memory.Item` says of its width and depth, in the
  kind that the report names; a FIFO without block RAM lies in LUTs.
* A module has also what it calls, times the instances.

What no engine of ours has is priced here (`Shared`): operators and memory ports that serve several
operations of an iteration (II above 1) or several called modules, adders built of LUTs, and two
copies of a memory between processes.

The reports charge one block RAM to a FIFO of any depth, so that block RAM is compared memory by
memory.

Rules were made on one half of the designs. The other half (``--held-back``) is that of the kernels
whose name has an odd first byte in its SHA-256; a kernel is in one half in all of its versions.
"""

import argparse
import csv
import gzip
import hashlib
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path

from pipec.backends.fpga.arithmetic import step_cost
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.memory import CHOICE_LUT, SHIFT_REGISTER, Item, fifo_logic, with_control

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "vitis"
STEPS = {
    "fadd": "add", "fsub": "sub", "fmul": "mul", "fdiv": "div", "fexp": "exp", "fcmp": "max",
    "frecip": "reciprocal", "fsqrt": "sqrt",
}  # fmt: skip
"""Operators of the reports as steps of an engine."""
TABLES = ("modules", "cores", "ops", "loops", "memories", "fifos")

FABRIC_ADDER = 338
"""LUTs of a float32 adder without DSPs, with no more flip-flops than one with them."""
WORD = 32
"""Bits of the words that modules compute with and move."""
PACKED = 8192
"""Words of the smallest memory whose second copy begins right behind the first."""

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
    return has_odd_hash(kernel)


def has_odd_hash(kernel: str) -> bool:
    """Whether the first byte of a name's SHA-256 is odd: the half that is held back."""
    return hashlib.sha256(kernel.encode()).digest()[0] % 2 == 1


@dataclass(frozen=True)
class Reports:
    """The tables of a folder, by design and module; FIFOs that a module reads, and writes."""

    tables: Mapping[str, Mapping[Name, Sequence[Line]]]
    fifos: Mapping[Name, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Reports":
        """All tables of a folder."""
        found: dict[str, dict[Name, list[Line]]] = {}
        for table in TABLES:
            found[table] = defaultdict(list)
            with (folder / f"{table}.csv").open(newline="") as file:
                for line in csv.DictReader(file):
                    found[table][line["design"], line["module"]].append(line)
        with gzip.open(folder / "dataflow.json.gz") as packed:
            designs = json.load(packed)["designs"]
        used: dict[Name, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for design in designs:
            for process in design["processes"]:
                sides = used[design["design"], process["name"]]
                for access in (a for loop in process["loops"] for a in loop["access"]):
                    sides[access["op"] == "w"].update(access["fifos"])
        return cls(found, {name: (len(r), len(w)) for name, (r, w) in used.items()})

    def of(self, table: str, name: Name) -> Sequence[Line]:
        """The lines of a module."""
        return self.tables[table].get(name, ())

    @cached_property
    def modules(self) -> list[Name]:
        """Modules that can be priced: they compute, and all that they call can be priced."""
        return [name for name in self.tables["modules"] if self._is_known(name)]

    def copies(self, name: Name) -> int:
        """How often a module holds each of its memories."""
        return 2 if self.of("modules", name)[0]["pipeline"] == "dataflow" else 1

    def calls(self, name: Name) -> list[tuple[Name, int]]:
        """The modules that one calls, with their instances."""
        called = (line for line in self.of("cores", name) if line["kind"] == "module")
        return [((name[0], line["core"]), int(line["count"])) for line in called]

    def _is_known(self, name: Name) -> bool:
        own = bool(self.of("ops", name)) and bool(self.of("loops", name))
        called = [called for called, _ in self.calls(name)]
        return (own or bool(called)) and all(self._is_known(c) for c in called)


@dataclass(frozen=True)
class Shared:
    """The operators of a module.

    Attributes:
        dsp: DSPs of them.
        lut: LUTs of them, as engines have them.
        beside: What engines do not have: adders of LUTs, multiplexers and registers of sharing.
        times: Operations of an iteration per operator.
    """

    dsp: float
    lut: float
    beside: Resources
    times: float

    @classmethod
    def of(cls, reports: Reports, name: Name) -> "Shared":
        """Those of a module, the ones among them that the modules it calls use by turns.

        An operator of k operations has two multiplexers of k inputs, and each result a register.
        """
        operations, cores = Counter[str](), Counter[str]()
        for line in reports.of("ops", name):
            operations[line["op"]] += int(line["operations"])
        dsp = lut = fabric = 0.0
        for line in reports.of("cores", name):
            if line["kind"] == "core" and line["op"] in STEPS:
                each, count = step_cost(STEPS[line["op"]], "float32"), int(line["count"])
                without = line["op"] in ("fadd", "fsub") and "no_dsp" in line["core"]
                dsp, lut = dsp + count * each[0] * (not without), lut + count * each[1]
                fabric += count * (FABRIC_ADDER - each[1]) * without
                cores[line["op"]] += count
        slices = (
            o for o in reports.of("ops", name) if (o["op"], o["impl"]) == ("mul", "dsp_slice")
        )
        dsp += sum(int(o["cores"]) * step_cost("mul", "ap_fixed<16,6>")[0] for o in slices)
        users = 1 + sum(count for _, count in reports.calls(name))
        inputs = {op: operations[op] / count or users for op, count in cores.items()}
        choices = sum(2 * count * multiplexer(inputs[op]) for op, count in cores.items())
        held = sum(max(operations[op] - count, 0) for op, count in cores.items())
        beside = Resources(lut=fabric + choices, ff=WORD * held)
        mean = sum(operations[op] for op in cores) / max(cores.total(), 1)
        return cls(dsp, lut, beside, max(mean, 1.0))


def multiplexer(inputs: float) -> float:
    """LUTs of a multiplexer of any width, as AMD's reports price it; nothing for one input.

    Example:
        >>> [multiplexer(inputs) for inputs in (1, 2, 3, 4, 9)]  # reported: 9, 14, 20, 49
        [0.0, 9.0, 14.5, 20.0, 47.5]
    """
    return CHOICE_LUT + 5.5 * (math.ceil(inputs) - 2) if inputs > 1 else 0.0


def estimate(reports: Reports, name: Name) -> Resources:
    """The estimate of a module, block RAM of FIFOs left out."""
    shared, copies = Shared.of(reports, name), reports.copies(name)
    total = shared.beside
    if reports.of("loops", name):
        total = total + loop(reports, name, shared)
    else:
        total = total + Resources(dsp=shared.dsp, lut=shared.lut, ff=2 * shared.lut)
    parts = [(memory(m, copies), int(m["count"])) for m in reports.of("memories", name)]
    unknown = name[0] not in {design for design, _ in reports.fifos}
    for line in reports.of("fifos", name):
        handshakes = Resources(lut=2 * CHOICE_LUT * unknown)
        parts.append((fifo(line) + handshakes, int(line["count"])))
    parts += [(estimate(reports, called), count) for called, count in reports.calls(name)]
    for part, count in parts:
        total = Resources(
            *(a + count * b for a, b in zip(astuple(total), astuple(part), strict=True))
        )
    return total


def loop(reports: Reports, name: Name, shared: Shared) -> Resources:
    """The loops of a module: operators and control of an engine, and states above an II of 1.

    Then a memory port serves several accesses. Where ports are what limits the loop, two ports
    of one memory have an access in each state, and what they read waits in registers.
    """
    loops, memories = reports.of("loops", name), reports.of("memories", name)
    additions = sum(
        int(line["cores"])
        for line in reports.of("ops", name)
        if line["op"] in ("add", "sub") and line["impl"] == "fabric"
    )
    states = max(int(line["ii"] or 1) for line in loops)
    limited = any("Resource" in line["ii_violation"] for line in loops)
    words = sum(int(m["bits"]) * int(m["count"]) for m in memories)
    reads, writes = reports.fifos.get(name, (0, 0))
    found = with_control(
        shared.dsp,
        shared.lut,
        additions,
        max(int(line["depth"] or 1) for line in loops),
        words / shared.times,
        word=WORD * max(reads, 1),
        ports=reads + writes,
        bits=max(int(line["trip_max"] or 1) for line in loops).bit_length(),
    )
    if states == 1:
        return found
    ports = sum(int(m["count"]) for m in memories)
    choices = multiplexer(states + 1) * (1 + 2 * limited) + ports * multiplexer(3)
    return found + Resources(lut=choices, ff=states * (1 + 2 * WORD * limited))


def fifo(line: Line) -> Resources:
    """The estimate of a FIFO; with its memory, if that lies in LUTs."""
    width, depth = int(line["bits"]), int(line["depth"])
    found = fifo_logic(width, depth)
    if depth > SHIFT_REGISTER and not float(line["BRAM_18K"] or 0):
        found = found + Item("", "", width, depth).cost_in(Memory.LUT)
    return found


def memory(line: Line, copies: int) -> Resources:
    """The estimate of a memory, where the report says that it lies.

    The first bit of an address says which copy is meant, so that copies begin at powers of two;
    the reports do without in large ones.
    """
    place = Memory.BRAM if float(line["BRAM_18K"] or 0) else Memory.LUT
    place = Memory.URAM if float(line["URAM"] or 0) else place
    width, words = int(line["bits"]) * int(line["banks"]), int(line["words"])
    if copies > 1 and words <= PACKED:
        words = 1 << (words - 1).bit_length()
    return Item("", "", width, copies * words).cost_in(place)


@dataclass(frozen=True)
class Row:
    """A module: what its report says, and what the estimate does, by resource."""

    design: str
    module: str
    kind: str
    reported: Mapping[str, float]
    estimated: Mapping[str, float]

    def figures(self, resource: str) -> tuple[float, float]:
        """The figures of the estimate, and those of the report."""
        return self.estimated[resource], self.reported[resource]

    def error(self, resource: str) -> float:
        """Relative error, signed; of nothing in nothing 0."""
        got, want = self.figures(resource)
        return (got - want) / want if want else float(got > 0)


def rows_of(reports: Reports, *, held_back: bool) -> Iterator[Row]:
    """The modules of one half that can be priced."""
    for name in reports.modules:
        if is_held_back(name[0]) == held_back:
            (line,), found = reports.of("modules", name), estimate(reports, name)
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
    """A line per kind of module: per resource the median error, shares within limits, and sums.

    DSPs are compared where the report has some.
    """
    yield f"{'':26}      {'   '.join(f'{r.upper():>28}' for r in RESOURCES)}"
    head = f"{'median':>7} {'3 %':>6} {'20 %':>6} {'total':>6}"
    yield f"{'modules':26} count {'   '.join([head] * len(RESOURCES))}"
    for kind in ("", *sorted({row.kind for row in rows})):
        of_kind = [r for r in rows if kind in ("", r.kind)]
        cells = "   ".join(errors_of(of_kind, resource) for resource in RESOURCES)
        yield f"{kind or 'all':26} {len(of_kind):5} {cells}"


def errors_of(rows: Sequence[Row], resource: str) -> str:
    """Median error, shares of modules within 3 % and 20 %, and error of the sum."""
    some = [r for r in rows if resource != "dsp" or r.reported["dsp"]]
    sizes = [abs(r.error(resource)) for r in some]
    ours, theirs = (sum(of) for of in zip(*(r.figures(resource) for r in some), strict=True))
    return (
        f"{statistics.median(sizes):7.1%} {share(sizes, 0.03):6.0%} {share(sizes, 0.2):6.0%} "
        f"{ours / theirs - 1:+6.0%}"
    )


def share(sizes: Sequence[float], limit: float) -> float:
    """Share of numbers that are at most a limit."""
    return sum(size <= limit for size in sizes) / len(sizes)


def of_memories(reports: Reports, *, held_back: bool) -> Iterator[str]:
    """How many memories take what we say, by kind, and the one furthest off."""
    found: dict[str, list[tuple[float, float, Line]]] = defaultdict(list)
    for name, lines in reports.tables["memories"].items():
        for line in lines if is_held_back(name[0]) == held_back else ():
            ours = memory(line, reports.copies(name))
            got = {"BRAM_18K": 2 * ours.bram36, "URAM": ours.uram, "LUT": ours.lut}
            kind = next((key for key in got if float(line[key] or 0)), "")
            if kind:
                found[kind].append((got[kind], float(line[kind]), line))
    for kind, memories in sorted(found.items()):
        sizes = [abs(ours / theirs - 1) for ours, theirs, _ in memories]
        most, reported, line = max(memories, key=lambda m: abs(m[0] / m[1] - 1))
        yield (
            f"{len(memories)} memories in {kind}: {share(sizes, 0):.1%} exact, "
            f"{share(sizes, 0.03):.1%} within 3 %; furthest off {line['words']} x {line['bits']} "
            f"bits: {most:g}, reported {reported:g}"
        )


def worst(rows: Sequence[Row]) -> Iterator[str]:
    """Of each resource, the module that computes and is furthest off."""
    some = [r for r in rows if r.kind == COMPUTES]
    for resource in RESOURCES:
        r = max(some, key=lambda r: abs(r.error(resource)))
        yield (
            f"{COMPUTES}, furthest off: {r.estimated[resource]:,.0f} {resource.upper()}, "
            f"reported {r.reported[resource]:,.0f} ({r.design})"
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
