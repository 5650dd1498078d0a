"""Figures of explored candidates beside those of their plans: ``python -m benchmarks.exploration``.

Random candidates (200, or as many as the first argument says) on several clusters are predicted,
and made into plans by the passes of ``pipec compile``. Prints the largest relative difference of
step seconds, how many bounds were above their step (none may be), and how tight the bounds are.
"""

import random
import sys
from statistics import median

from pipec.errors import PipecError
from pipec.explore.predict import Predictor
from tests.explore.test_explore import maker, ways

CLUSTERS = ("4xv100", "1xv100,2xh100", "2xcpu,1xh100", "3xh100")


def compare(count: int) -> None:
    """Predict and make ``count`` candidates; print what differs."""
    draw, off, above, tight, refused = random.Random(0), 0.0, 0, list[float](), 0
    for number, devices in enumerate(CLUSTERS):
        made = maker(devices, width=256 << (number % 2), layers=4, batch=8)
        predictor, every = Predictor(made), ways(made, 96)
        for c in draw.sample(every, min(len(every), count // len(CLUSTERS))):
            found, bound = predictor.predict(c), predictor.bound(c)
            try:
                timeline = made.make(c).timeline
            except PipecError:
                refused += 1
                assert not found.possible, c
                continue
            assert timeline is not None
            off = max(off, abs(found.seconds / timeline.seconds - 1))
            above += bound > timeline.seconds
            tight.append(bound / timeline.seconds)
    print(
        f"{len(tight)} candidates timed, {refused} refused by both: seconds differ by at most "
        f"{off:.1e}; {above} bounds above their step, median bound / step {median(tight):.2f}"
    )


if __name__ == "__main__":
    compare(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
