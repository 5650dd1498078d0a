"""Orders made from costs, beside a lower bound and every generator of one stage per device.

``python -m benchmarks.synthesis [SETTINGS]`` draws unequal settings (2 to 32 stages, 1 to 256
microbatches; F, I, W and sizes uniform in 0.5 to 1.5; transfers 0, 0.05 or 0.2; memory unlimited
or that of 1, 1.5 or 2 times 1F1B's microbatches), synthesizes an order for each, and times it and
the generators that keep the memory in the simulator.
"""

import random
import sys
import time
from math import inf
from statistics import mean, median

from pipec.schedule.build import build
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.synthesis import StageCosts, least_seconds, synthesize
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

GENERATORS = ("1f1b", "gpipe", "1f1b-so", "zb-h1", "zb-h1{memory=2}")


def draw_setting(draw: random.Random) -> tuple[StageCosts, int]:
    """One setting."""
    stages, microbatches = draw.randint(2, 32), draw.randint(1, 256)
    f, i, w, saved = ([draw.uniform(0.5, 1.5) for _ in range(stages)] for _ in range(4))
    factor, hop = draw.choice((inf, 1.0, 1.5, 2.0)), draw.choice((0.0, 0.05, 0.2))
    limits = [max(1.0, factor * (stages - s)) * saved[s] for s in range(stages)]
    return StageCosts(f, i, w, [hop] * stages, saved, [v / 2 for v in saved], limits), microbatches


def fits(timeline: Timeline, costs: StageCosts) -> bool:
    """Whether no device holds more than its limit."""
    pairs = zip(timeline.peak_bytes, costs.limits, strict=True)
    return all(peak <= limit * (1 + 1e-9) for peak, limit in pairs)


def main() -> None:
    """One line per setting, then the summary."""
    count, draw = int(sys.argv[1]) if len(sys.argv) > 1 else 500, random.Random(0)
    gaps, ratios, took = [], [], []
    for _ in range(count):
        costs, m = draw_setting(draw)
        n = len(costs.forward)
        times = Times.of_stages(
            costs.forward, None, costs.input_gradient, costs.weight_gradient, comm=costs.transfer[0]
        )
        memory = Memory(saved=costs.saved, saved_for_w=costs.saved_for_w)
        begin = time.process_time()
        order = synthesize(costs, range(n), m)
        took.append(time.process_time() - begin)
        own = simulate(lower(build("synthesized", order.rows, m)), times, memory)
        assert fits(own, costs)
        others = [simulate(lower(generate(g, n, m)), times, memory) for g in GENERATORS]
        best = min((t.seconds for t in others if fits(t, costs)), default=inf)
        gaps.append(own.seconds / least_seconds(costs, range(n), m) - 1)
        ratios.append(own.seconds / best)
        print(f"{n} stages, {m} microbatches: {gaps[-1]:.2%} above the bound, "
              f"{ratios[-1]:.3f} of the best generator, {took[-1]:.1f} s", flush=True)  # fmt: skip
    print(
        f"{count} settings: median {median(gaps):.2%} above the bound, mean {mean(gaps):.2%}, "
        f"worst {max(gaps):.2%}; of the best generator's time median {median(ratios):.3f}, "
        f"worst {max(ratios):.4f}; processor "
        f"seconds median {median(took):.1f}, most {max(took):.1f}"
    )


if __name__ == "__main__":
    main()
