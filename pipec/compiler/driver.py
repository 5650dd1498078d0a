"""From a loaded model to a plan, and from a plan to a directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.output import atomic_directory
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import Observer, parse_pipeline, run_passes
from pipec.cost.table import CostTable
from pipec.errors import BackendError, PlanError
from pipec.graph.ir import Graph
from pipec.plan.model import Plan
from pipec.plan.store import check_emitted, write_plan
from pipec.plan.trust import remember
from pipec.user_module import user_code


def default_passes(
    *,
    stages: int | None = None,
    schedule: str = "fastest",
    microbatches: int = 8,
    recompute: Sequence[str] = (),
    offload: Sequence[str] = (),
    offload_optimizer: bool = False,
) -> list[Pass]:
    """The passes that ``pipec compile`` runs by default.

    Args:
        stages: Number of stages; as many as fill the devices if not given.
        schedule: Name of a schedule, its options behind it: ``interleaved{chunks=4}``; or
            ``fastest``, of those with a flush, on one stage per device.
        microbatches: Microbatches of one step.
        recompute: Modules or values that the backward computes again.
        offload: Modules or values that wait in host memory for it.
        offload_optimizer: Whether the optimizer's state waits there too, between steps.
    """
    count = f"microbatches={microbatches}"
    named = f"generator={'1f1b' if schedule == 'fastest' else schedule} {count}"
    again = f"insert-recompute{{values={','.join(recompute)} {named}}}," if recompute else ""
    leave = [f"values={','.join(offload)}"] * bool(offload) + ["optimizer=true"] * offload_optimizer
    freed = ["activations"] * bool(recompute or offload) + ["state"] * offload_optimizer
    later = f" freed={','.join(freed)}" if freed else ""
    memory = again + (f"insert-offload{{{' '.join(leave)} {named}}}," if leave else "")
    return parse_pipeline(
        f"simplify,annotate-cost,partition{{stages={str(stages).lower()} schedule={schedule} "
        f"{count}{later}}},insert-comm,differentiate,time-stages,{memory}"
        f"schedule{{generator={schedule} {count}}},simulate"
    )


def make_plan(
    graph: Graph,
    cluster: Cluster,
    target: str = "torch",
    *,
    passes: Sequence[Pass] | None = None,
    costs: CostTable | None = None,
    options: Mapping[str, object] | None = None,
    observe: Observer | None = None,
) -> Plan:
    """Compile: run the passes on a fresh plan.

    Args:
        graph: What is computed.
        cluster: Devices and links.
        target: Name of the backend.
        passes: The pipeline; `default_passes` if not given.
        costs: Measured costs, instead of a model's.
        options: What passes and the backend must remember, such as ``precision``.
        observe: Called after every pass.

    Raises:
        PipecError: Whatever a pass, the verifier or the backend found.
    """
    plan = Plan(graph, cluster, target, costs=costs, options=dict(options or {}))
    return run_passes(default_passes() if passes is None else passes, plan, observe)


def emit(plan: Plan, directory: Path, *, force: bool = False) -> None:
    """Check the plan and write it with its artifacts: all of them, or nothing.

    Raises:
        PlanError: The plan has no stages.
        BackendError: The backend cannot emit it.
        PipecError: The directory exists or cannot be written.
    """
    if not plan.stages:
        raise PlanError("the plan has no stages", hint="run the pass partition first")
    backend = load_backend(plan.target)
    backend.check(plan)
    failed = user_code(f"the target {plan.target} cannot emit the plan", error=BackendError)
    with failed, atomic_directory(directory, force=force) as temporary:
        backend.emit(plan, temporary)
        check_emitted(temporary)
        write_plan(plan, temporary)
    remember(directory)
