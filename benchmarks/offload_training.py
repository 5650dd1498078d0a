"""Trainings of random models under memory limits: right, within the limit, or refused.

Every model of `tests.residency.random_models` under every schedule of `tests.residency.trials`,
with recompute, offload and both, at limits of 90, 70 and 50 % of the plain peak: the gradients of
two microbatches in the schedule's own order against autograd, and the simulated peak.
``python -m benchmarks.offload_training dropout,gpt-2 zb-h1,zbv`` runs a part of them.
"""

import sys
from collections import Counter

from tests.residency.random_models import MODELS
from tests.residency.trials import PASSES, SCHEDULES, tried

SHARES = (0.9, 0.7, 0.5)


def main(models: list[str], schedules: list[str]) -> int:
    """Print what is not right, and how often each verdict fell; 1 if anything is wrong."""
    verdicts = Counter[str]()
    for name in models:
        before = verdicts.copy()
        for schedule in schedules:
            for share in SHARES:
                trials = {how: tried(name, schedule, how, share) for how in PASSES}
                best = min(t.seconds for t in trials.values())
                for how, t in trials.items():
                    verdicts[t.verdict] += 1
                    if t.verdict in ("WRONG", "over"):
                        print(f"{name}, {schedule}, {how} at {share:.0%}: {t.verdict} {t.peak:.3f}")
                if trials["both"].seconds > best:
                    verdicts["slower"] += 1
                    print(f"{name}, {schedule} at {share:.0%}: both is slower than its parts")
        counted = ", ".join(f"{n} {v}" for v, n in sorted((verdicts - before).items()))
        print(f"{name:20} {counted}", flush=True)
    print(", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())))
    return int(any(verdicts[v] for v in ("WRONG", "over", "slower")))


if __name__ == "__main__":
    given = [a.split(",") for a in sys.argv[1:]]
    sys.exit(main(*(given + [list(MODELS), list(SCHEDULES)][len(given) :])))
