"""What the planner promises, at scale: ``python -m benchmarks.planner [PART ...]``.

``enumerated``: on 100 small models all contiguous cuts go through the predictor; none may be faster
than the chosen one. ``memory``: 500 of (model, schedule, limit), a fifth of them compiled: none may
be over its limit, none that fits may be missed, the fastest that fits is wanted. ``tight``: 200
explorations at the memory that one candidate needs; none may say that nothing fits. ``orders``: 50
unlike clusters, listed in every order. ``more``: 200 clusters with and without one device more.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.errors import PartitionError, PlanError
from pipec.explore.candidate import Candidate
from pipec.explore.explore import explore
from pipec.explore.make import Maker
from pipec.explore.predict import Predictor
from pipec.schedule.registry import ASYNCHRONOUS, SYNCHRONOUS, generate
from pipec.simulate.timeline import Timeline
from tests.compiler.test_cut_search import cluster_of, contiguous, costed, net, search_of, tight
from tests.explore.test_explore import maker, shrunk, ways

SCHEDULES = ("1f1b", "gpipe", "zb-h1")
KINDS = ("v100", "h100", "cpu", "a100")
LIMITS = 5  # memory limits per model and schedule
EVERY = (*SYNCHRONOUS, *ASYNCHRONOUS, "inference")
SAME = 1 + 1e-9
MICROBATCHES = 4


def run_enumerated() -> None:
    """The chosen cut beside every contiguous one."""
    worst, cuts = 1.0, 0
    for seed in range(100):
        name = EVERY[seed % len(EVERY)]
        cluster = cluster_of(seed, generate(name, 2, MICROBATCHES).devices)
        search = search_of(costed(net(seed, 16), cluster), name, 2, MICROBATCHES)
        best = search.find_best(list)
        every = [search.predict(stage).seconds for stage in contiguous(search, 2)]
        worst, cuts = max(worst, best.timeline.seconds / min(every)), cuts + len(every)
        assert best.bound <= min(every) * SAME
    print(f"100 models, {cuts} cuts enumerated: chosen over fastest at most {worst:.9f}")


def _most(timeline: Timeline | None) -> float:
    assert timeline is not None
    return max(timeline.peak_bytes)


def memory() -> None:
    """Plans under limits from below the least peak of any cut to above the most."""
    over = missed = slower = fits = made = late = 0
    draw = random.Random(0)
    for case in range(500 // LIMITS):
        name = SCHEDULES[case % 3]
        base = costed(net(case, 64), cluster_of(case, 2))
        full = base.replace(cluster=tight(base.cluster, 1.0))  # all that is saved is counted
        loose = search_of(full, name, 2, MICROBATCHES)
        every = [loose.predict(stage) for stage in contiguous(loose, 2)]
        peaks = [_most(t) for t in every]
        for number in range(LIMITS):
            limit = min(peaks) + draw.uniform(-0.05, 1.05) * (max(peaks) - min(peaks))
            there = [t.seconds for t, p in zip(every, peaks, strict=True) if p <= limit]
            devices = tight(base.cluster, limit)
            try:
                slow = search_of(base.replace(cluster=devices), name, 2, MICROBATCHES)
                found = slow.find_best(list)
            except PartitionError:
                missed += bool(there)
                continue
            fits += 1
            over += _most(found.timeline) > limit * SAME
            slower += bool(there) and found.timeline.seconds > min(there) * SAME
            if not number:
                passes = default_passes(schedule=name, microbatches=MICROBATCHES)
                made += 1
                try:
                    plan = make_plan(base.graph, devices, passes=passes)
                except PlanError:
                    late += 1
                else:
                    over += _most(plan.timeline) > limit * SAME
    print(
        f"500 limits: {fits} cuts fit, of which {made} were compiled and {late} of them refused; "
        f"{over} over their limit, "
        f"{missed} errors where a cut fits, "
        f"{slower} slower than the fastest cut that fits"
    )


def _draw(draw: random.Random, most: int = 3) -> Cluster:
    """Unlike devices with links of one speed."""
    kinds = [draw.choice(KINDS) for _ in range(draw.randint(2, most))]
    return _link(kinds, draw.choice([1e9, 1e11]))


def _link(kinds: list[str], rate: float) -> Cluster:
    devices = tuple(parse_cluster(kind).devices[0] for kind in kinds)
    pairs = [(a, b) for a in range(len(kinds)) for b in range(a + 1, len(kinds))]
    return Cluster(devices, dict.fromkeys(pairs, Link(rate, 1e-5)))


def _fastest(maker: Maker, tried: list[Candidate], batch: int) -> float:
    return explore(maker, tried, batch)[0].best.seconds


def explorations() -> None:
    """Explorations at the memory that some candidate needs."""
    draw, refused, tried = random.Random(0), 0, 0
    while tried < 200:
        made = maker(_draw(draw), draw.choice([64, 256]), draw.randint(2, 4), 64)
        every = ways(made, 256, *SCHEDULES)
        known = Predictor(made).predict(draw.choice(every))
        if not known.possible:
            continue
        tried += 1
        cluster = shrunk(made.cluster, max(known.peak_bytes) * draw.uniform(1.0, 1.1) * SAME)
        try:
            _fastest(replace(made, cluster=cluster), every, 256)
        except PartitionError:
            refused += 1
    print(f"{tried} explorations, each with room for a candidate: {refused} say that nothing fits")


def orders() -> None:
    """Unlike clusters, their devices listed in every order."""
    draw, worst, listed, done = random.Random(1), 1.0, 0, 0
    while done < 50:
        cluster = _draw(draw)
        kinds, rate = [d.kind for d in cluster.devices], cluster.link(0, 1).bytes_per_second
        if len(set(kinds)) == 1:
            continue
        done, found = done + 1, []
        for order in sorted(set(permutations(kinds))):
            made = maker(_link(list(order), rate), 256, 3, 8)
            found.append(_fastest(made, ways(made, 32, "1f1b", "gpipe"), 32))
        worst, listed = max(worst, max(found) / min(found)), listed + len(found)
    print(f"50 unlike clusters in {listed} orders: slowest over fastest at most {worst:.9f}")


def more() -> None:
    """Clusters with one device more."""
    draw, worst, better = random.Random(2), 0.0, 0
    for _ in range(200):
        cluster = _draw(draw, 2)
        kinds, rate = [d.kind for d in cluster.devices], cluster.link(0, 1).bytes_per_second
        grown = _link([*kinds, draw.choice(KINDS)], rate)
        found = []
        for each in (cluster, grown):
            made = maker(each, 256, 3, 8)
            found.append(_fastest(made, ways(made, 32, "1f1b", "gpipe"), 32))
        worst, better = max(worst, found[1] / found[0]), better + (found[1] < found[0] / SAME)
    print(f"200 clusters with one device more: {better} faster, at most {worst:.9f} of the time")


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {
        "enumerated": run_enumerated, "memory": memory, "tight": explorations, "orders": orders,
        "more": more,
    }  # fmt: skip
    for part in sys.argv[1:] or list(parts):
        parts[part]()
