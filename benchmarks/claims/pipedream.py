"""PipeDream (Narayanan et al., SOSP'19): configurations and speed-ups over data parallelism.

Predicted from the shipped profiles by the paper's own formula: a pipeline's time per minibatch is
its slowest stage or boundary; data parallelism is the one-stage plan of the same formula, once
with its all-reduce hidden behind compute (the formula's max) and once after it.
"""

from benchmarks.claims.pipedream_parts import rows as parts
from benchmarks.claims.profiles import profile, totals
from benchmarks.claims.table import Row
from pipec.partition.costgraph import CostGraph
from pipec.partition.replicas.plan import plan_replicated
from pipec.partition.replicas.recurrence import Level

# servers of 4 V100 on PCIe behind 10 Gb/s, servers of 8 V100 on NVLink behind 25 Gb/s
CLUSTERS = {
    "4x4, 10 Gb/s": [Level(4, 10e9), Level(4, 1.25e9)],
    "2x8, 25 Gb/s": [Level(8, 30e9), Level(2, 3.125e9)],
    "16, 10 Gb/s": [Level(16, 1.25e9)],
    "1x4, PCIe": [Level(4, 10e9)],
    "3x4, 10 Gb/s": [Level(4, 10e9), Level(3, 1.25e9)],
}
CLAIMS = [
    ("vgg16", "4x4, 10 Gb/s", "15-1", 5.28),
    ("vgg16", "16, 10 Gb/s", "15-1", 5.28),
    ("vgg16", "2x8, 25 Gb/s", "15-1", 2.98),
    ("resnet50", "4x4, 10 Gb/s", "16 (data parallel)", 1.0),
    ("resnet50", "2x8, 25 Gb/s", "16 (data parallel)", 1.0),
    ("alexnet", "4x4, 10 Gb/s", "15-1", 4.92),
    ("alexnet", "2x8, 25 Gb/s", "15-1", 2.04),
    ("gnmt", "1x4, PCIe", "straight", 1.5),
    ("gnmt", "3x4, 10 Gb/s", "straight", 2.95),
    ("gnmt", "2x8, 25 Gb/s", "16 (data parallel)", 1.0),
]
TITLES = {"gnmt": "gnmt-8"}

MISSING = [
    ("gnmt-16: straight, 1.46x over data parallelism", "1x4, PCIe", "-", "the profile is GNMT-8's"),
    ("gnmt-16: straight, 2.34x", "4x4, 10 Gb/s", "-", "the profile is GNMT-8's"),
    ("gnmt-16: straight, 3.14x", "2x8, 25 Gb/s", "-", "the profile is GNMT-8's"),
    ("awd-lm: straight, 4.25x over data parallelism", "1x4", "-", "no profile of it is shipped"),
    (
        "s2vt: 2-1-1, 3.01x over data parallelism",
        "4x1, 40 Gb/s",
        "-",
        "no profile of it is shipped",
    ),
]


def rows() -> list[Row]:
    """One row per published configuration whose profile is here."""
    found = []
    for name, cluster, config, speed_up in CLAIMS:
        graph = profile(name)
        if graph is not None:
            found.append(_row(graph, name, cluster, config, speed_up))
    return [*found, *(Row(*missing) for missing in MISSING), *parts()] if found else []


def _row(graph: CostGraph, name: str, cluster: str, config: str, speed_up: float) -> Row:
    levels = CLUSTERS[cluster]
    plan = plan_replicated(graph, levels)
    hidden, after = _data_parallel(graph, levels)
    replicas = plan.configuration
    published = config.split(maxsplit=1)[0]
    same = replicas == published or (len(plan.stages) == 1 and "data parallel" in config)
    same |= config == "straight" and all(stage.replicas == 1 for stage in plan.stages)
    why = "" if same else f"our plan is {replicas}; "
    if len(levels) > 1:
        why += "replicas count servers; "
    compute, sync = _outermost(graph, levels)
    why += (
        f"in the shipped profile data parallelism computes {compute:.3g} ms between exchanges of "
        f"{sync:.3g} ms over the slowest links; the authors' profiling GPU, batch and bandwidth "
        "behind the claim are not published"
    )
    return Row(
        f"{TITLES.get(name, name)}: {config}, {speed_up:.2f}x over data parallelism",
        cluster,
        f"{plan.configuration}, {hidden / plan.seconds:.2f}x (all-reduce hidden) to "
        f"{after / plan.seconds:.2f}x (after compute)",
        why,
    )


def _outermost(graph: CostGraph, levels: list[Level]) -> tuple[float, float]:
    """Milliseconds of compute of one component of the outermost level, and of its all-reduce."""
    seconds, weights = totals(graph)
    for level in levels[:-1]:
        seconds /= level.workers
    m = levels[-1].workers
    return 1e3 * seconds, 2e3 * (m - 1) / m * weights / levels[-1].bytes_per_second


def _data_parallel(graph: CostGraph, levels: list[Level]) -> tuple[float, float]:
    """Seconds per minibatch of one stage on all devices: all-reduce hidden, and after compute."""
    hidden, weights = totals(graph)
    after = hidden
    for level in levels:
        m = level.workers
        sync = 2 * (m - 1) / m * weights / level.bytes_per_second
        hidden, after = max(hidden, sync) / m, (after + sync) / m
    return hidden, after
