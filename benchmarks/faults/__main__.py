"""Inject faults, verify, and write the table: ``python -m benchmarks.faults [--seeds N]``."""

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks._exit import positive
from benchmarks.faults.inject import Fault, faults, print_graphs, reseal
from benchmarks.faults.models import FILES, MODULES, QUANTISED, TRAINED, make
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_artifacts
from pipec.errors import PipecError
from pipec.frontends.base import Loaded

DEVICES = {"torch": "2xcpu", "onnx": "2xcpu", "fpga": "2xvcu118"}
ON_BOARDS = ("mlp", "cnn", "residual", "gated")
PAGE = Path("docs/faults.md")


@dataclass(frozen=True)
class Result:
    """What verification reports of one fault: ``how`` is empty where it reports none."""

    model: str
    target: str
    fault: Fault
    how: str


def report_of(directory: Path, loaded: Loaded, seed: int) -> str:
    """How verification reports a directory: ``values``, or the error; empty if it is content."""
    try:
        report = verify_artifacts(directory, loaded, seed=seed)
    except PipecError as error:
        return str(error).split("\n")[0]
    return "" if report.ok else "values differ"


def try_fault(directory: Path, loaded: Loaded, fault: Fault, scratch: Path, seed: int = 0) -> str:
    """`report_of` of a copy of a clean directory with one fault in it."""
    copy = scratch / "faulty"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    fault.apply(copy)
    print_graphs(copy)
    reseal(copy)
    return report_of(copy, loaded, seed)


def sample(found: list[Fault], most: int, seed: int) -> list[Fault]:
    """At most so many faults, of all kinds in turn."""
    rng, kinds = random.Random(seed), dict[str, list[Fault]]()
    for fault in found:
        kinds.setdefault(fault.kind, []).append(fault)
    for faults_ in kinds.values():
        rng.shuffle(faults_)
    turns = (f[k] for k in range(len(found)) for f in kinds.values() if k < len(f))
    return [fault for fault, _ in zip(turns, range(most), strict=False)]


def runs(most: int, seeds: int, folder: Path, targets: list[str]) -> Iterator[Result | str]:
    """Results, and a line for every false alarm on a clean directory."""
    for target in targets:
        names = (*MODULES, *FILES, *QUANTISED) if target != "fpga" else ON_BOARDS
        for name in (*names, *(TRAINED if target == "torch" else ())):
            print(target, name, flush=True)
            loaded, clean = make(name, folder), folder / f"{name}-{target}"
            plan = make_plan(loaded.graph, parse_cluster(DEVICES[target]), target)
            emit(plan, clean)
            for seed in range(seeds):
                how = report_of(clean, loaded, seed)
                if how:
                    yield f"{name} {target} seed {seed}: {how}"
            for k, fault in enumerate(sample(faults(clean, target), most, 0)):
                yield Result(name, target, fault, try_fault(clean, loaded, fault, folder, k))


def page(results: list[Result], alarms: list[str], seeds: int) -> str:
    """The page of the documentation."""
    kinds, cells = sorted({r.fault.kind for r in results}), Counter[tuple[str, str, bool]]()
    for r in results:
        cells[r.fault.kind, r.target, bool(r.how)] += 1
    targets = [t for t in DEVICES if any(r.target == t for r in results)]
    lines = [f"| fault | {' | '.join(targets)} |", f"|---|{'---|' * len(targets)}"]
    for kind in kinds:
        row = []
        for t in targets:
            hit, miss = cells[kind, t, True], cells[kind, t, False]
            row.append(f"{hit} of {hit + miss}" if hit + miss else "")
        lines.append(f"| {kind} | {' | '.join(row)} |")
    caught, models = sum(bool(r.how) for r in results), len({r.model for r in results})
    missed = [
        f"* {r.model}, {r.target}: {r.fault.kind}, {r.fault.where}" for r in results if not r.how
    ]
    clean = len({(r.model, r.target) for r in results})
    return "\n".join(
        [
            "# Injected faults", "",
            "Written by `make faults`. Files of emitted directories are changed, their digests are",
            "computed anew, and `pipec verify` runs on inputs of another seed for each fault: only",
            "what the stages compute can give a fault away. (With the digests as they were, every",
            "one of them is refused before anything runs.)", "",
            f"{caught} of {len(results)} faults reported ({100 * caught / len(results):.1f} %), "
            f"{models} models, {clean} emitted directories; "
            f"{len(alarms)} false alarms on the clean directories, {seeds} seeds each.", "",
            *lines, "",
            *(["Not reported:", "", *missed, ""] if missed else []),
            *(["False alarms:", "", *(f"* {a}" for a in alarms), ""] if alarms else []),
        ]
    )  # fmt: skip


def main() -> None:
    """Run, print what is missed, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=positive, default=16, help="most faults of a directory")
    parser.add_argument("--seeds", type=positive, default=100, help="of each clean directory")
    parser.add_argument("--targets", default="torch,onnx,fpga")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results, alarms = list[Result](), list[str]()
    with tempfile.TemporaryDirectory(prefix="pipec-faults-") as name:
        for found in runs(options.faults, options.seeds, Path(name), options.targets.split(",")):
            if isinstance(found, str):
                alarms.append(found)
                print("false alarm:", found, flush=True)
                continue
            results.append(found)
            if not found.how:
                fields = (found.model, found.target, found.fault.kind, found.fault.where)
                print("missed:", *fields, flush=True)
    options.out.write_text(page(results, alarms, options.seeds), encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
