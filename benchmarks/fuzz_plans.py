"""Mutated plans under the commands that read one, as a stranger's: `make fuzz-plans`.

    python -m benchmarks.fuzz_plans [--mutants 100000] [--seed 0]

Prints each fault (a traceback, a signal, a hang over 20 s, a file that appears outside, more than
1 GiB, code of the plan that runs) with its seed. Mutants are tried in one process by the dozen;
where one of a dozen misbehaves, each of them is tried again in a process of its own.
"""

import argparse
import gc
import os
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._exit import positive
from tests.plan.mutants import bases, commands, mutate, try_commands

DOZEN = 12


@dataclass(frozen=True)
class Mutant:
    """A changed plan: its seed, its directory, what was changed, and the commands that read it."""

    number: int
    place: Path
    change: str
    words: list[tuple[str, ...]]


def _mutant(number: int, plans: Mapping[str, Path], folder: Path) -> Mutant:
    rng = random.Random(number)
    base = rng.choice(list(plans.values()))
    place = folder / f"mutant{number}"
    change = mutate(base, place, rng)
    return Mutant(number, place, f"{base.name}: {change}", commands(place, base))


def faults_of(numbers: Sequence[int], plans: Mapping[str, Path], folder: Path) -> list[str]:
    """Faults of commands with a dozen mutants of these seeds, in words.

    Args:
        numbers: Seeds.
        plans: Plans of `bases`.
        folder: Folder of the mutants; nothing of them is left.
    """
    dozen = [_mutant(n, plans, folder) for n in numbers]
    try:
        ends = try_commands([w for m in dozen for w in m.words], folder / "empty")
        if len(ends) == sum(len(m.words) for m in dozen) and not any(e.fault for e in ends):
            return []
        alone = [(m, e) for m in dozen for e in try_commands(m.words, folder / "empty")]
        found = [f"{m.number} {m.change}: {e.words[0]}: {e.fault}" for m, e in alone if e.fault]
        together = f"{numbers[0]}: nothing alone of {[e.fault for e in ends if e.fault]}"
        return found or [together]
    finally:
        for m in dozen:
            shutil.rmtree(m.place)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=positive, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        plans = bases(folder)
        os.environ |= {"PIPEC_MUTANTS": str(folder / "ran"), "XDG_STATE_HOME": str(folder / "no")}
        gc.freeze()  # less is copied in processes that are forked
        faults, end = 0, given.seed + given.mutants
        for first in range(given.seed, end, DOZEN):
            for fault in faults_of(range(first, min(first + DOZEN, end)), plans, folder):
                faults += 1
                print(fault, flush=True)
            if first // 1000 < (first + DOZEN) // 1000:
                print(f"{first + DOZEN}: {faults} faults", flush=True)
    print(f"{given.mutants} mutants, five commands each: {faults} faults")


if __name__ == "__main__":
    main()
