"""Mutated plans under the commands that read one, as a stranger's: `make fuzz-plans`.

    python -m benchmarks.fuzz_plans [--mutants 100000] [--seed 0]

Prints each fault (a traceback, a signal, a hang over 20 s, a file that appears outside, more than
1 GiB, code of the plan that runs) with its seed, and how many mutants each command accepted.
"""

import argparse
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.plan.mutants import bases, commands, mutate, try_commands


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        plans = bases(folder)
        os.environ |= {"PIPEC_MUTANTS": str(folder / "ran"), "XDG_STATE_HOME": str(folder / "no")}
        faults = Counter[str]()
        for number in range(given.seed, given.seed + given.mutants):
            rng = random.Random(number)
            base = rng.choice(list(plans.values()))
            place = folder / "mutant"
            told = mutate(base, place, rng)
            for ended in try_commands(commands(place, base), folder / "empty"):
                if ended.fault:
                    command = ended.words[0]
                    faults[command] += 1
                    print(f"{number} {base.name} {command}: {told}: {ended.fault}", flush=True)
            shutil.rmtree(place)
            if (number + 1) % 100 == 0:
                print(f"{number + 1}: {sum(faults.values())} faults {dict(faults)}", flush=True)
    print(f"{given.mutants} mutants, five commands each: {sum(faults.values())} faults")


if __name__ == "__main__":
    main()
