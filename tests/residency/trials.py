"""One training under a memory limit: refused, or right and within what was asked for."""

from dataclasses import dataclass
from functools import cache
from math import inf

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.comparison import SAME_KERNELS, rounding_tolerance
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.verify_training import compare_gradients
from pipec.errors import PassError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from tests.autodiff.zoo import seeded
from tests.residency.random_models import MODELS
from tests.runtime.pipelines import batches

DEVICES = 2
SCHEDULES = {"gpipe": 2, "1f1b": 2, "interleaved": 4, "zb-h1": 2, "zbv": 4, "dualpipev": 4}
"""Schedule to stages on two devices."""
PASSES = {
    "recompute": "insert-recompute{{memory-limit={limit}{planned}}}",
    "offload": "insert-offload{{memory-limit={limit}{planned}}}",
    "both": "insert-offload{{memory-limit={limit} recompute=true{planned}}}",
}


@dataclass(frozen=True)
class Trial:
    """What became of one setting.

    Attributes:
        refused: What the pass said, if it refused.
        peak: The plan's simulated peak, as a share of the limit.
        error: Above 1 if a gradient is off.
        seconds: Of the whole schedule, as simulated.
    """

    refused: str | None = None
    peak: float = 0.0
    error: float = 0.0
    seconds: float = inf

    @property
    def verdict(self) -> str:
        """One word."""
        if self.refused is not None:
            return "refused"
        if self.error > 1:
            return "WRONG"
        return "over" if self.peak > 1 else "ok"


@cache
def planned(name: str, schedule: str) -> Plan:
    """Partitioned, differentiated and timed, no schedule yet."""
    stages, case = SCHEDULES[schedule], MODELS[name]
    args, target = case.batch(0)
    loss = Loss(case.loss, target)
    graph = trace(seeded(case), args, loss=loss, source=Source("memory", name))
    passes = (
        f"simplify,annotate-cost,partition{{stages={stages} schedule={schedule} microbatches=4}},"
        "insert-comm,differentiate,time-stages"
    )
    return make_plan(graph, parse_cluster(f"{DEVICES}xh100"), passes=parse_pipeline(passes))


def timed(plan: Plan, schedule: str, microbatches: int, before: str = "") -> Plan:
    """With a schedule and its timeline; ``before`` them another pass."""
    last = f"schedule{{generator={schedule} microbatches={microbatches}}},simulate"
    return run_passes(parse_pipeline(f"{before},{last}" if before else last), plan)


def tried(name: str, schedule: str, how: str, share: float, microbatches: int = 4) -> Trial:
    """Train under a limit and compare.

    Args:
        name: One of `MODELS`.
        schedule: One of `SCHEDULES`.
        how: One of `PASSES`.
        share: The limit, as a share of the peak without it.
        microbatches: Of one step.
    """
    case, plan = MODELS[name], planned(name, schedule)
    plain = timed(plan, schedule, microbatches).timeline
    assert plain is not None
    limit = share * max(plain.peak_bytes)
    told = f" generator={schedule} microbatches={microbatches}"
    try:
        plan = timed(plan, schedule, microbatches, PASSES[how].format(limit=limit, planned=told))
    except PassError as error:
        return Trial(refused=str(error))
    assert plan.timeline is not None
    inputs = [batches(case, plan.graph)(k) for k in range(2)]
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    found = compare_gradients(plan, plan.graph, inputs, tolerance, seed=3)
    worst = max((0.0 if c.ok else 1 + c.max_abs_error for c in found), default=0.0)
    peak = max(plan.timeline.peak_bytes) / limit
    return Trial(peak=peak, error=worst, seconds=plan.timeline.seconds)
