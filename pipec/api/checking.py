"""`schedule`, `partition` and `verify`: parts of the compiler on their own."""

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pipec.api.reading import Model, read_model
from pipec.api.registering import name_of
from pipec.arguments import check_arguments
from pipec.cluster.cluster import Link
from pipec.compiler.driver import emit
from pipec.compiler.verify import VerifyReport, verify_artifacts
from pipec.errors import PartitionError, PipecError, ScheduleError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import check_runnable, reload
from pipec.graph.ir import Source
from pipec.partition.costgraph import CostGraph
from pipec.partition.formats.workload import Workload, read_workload
from pipec.partition.result import CutResult
from pipec.partition.solve import solve_contiguous
from pipec.plan.manifest import read_manifest, source_of
from pipec.plan.model import Plan
from pipec.schedule.action import ActionKind
from pipec.schedule.lower import lower
from pipec.simulate.costs import generate_for
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times
from pipec.simulate.verify import verify as prove


@check_arguments
def schedule(
    name: str | Callable[..., object],
    stages: int,
    microbatches: int,
    *,
    times: Mapping[str, float] | None = None,
    comm: float = 0.0,
    **options: object,
) -> Timeline:
    """Generate a schedule, prove it legal and free of deadlock, and time it.

    Args:
        name: ``1f1b``, ``interleaved{chunks=2}``, ... (`pipec schedule` lists them), or a function
            of your own (`register`).
        stages: Pipeline stages.
        microbatches: Microbatches of one step.
        times: Of ``F``, ``B``, ``I``, ``W`` on every stage, in any one unit; F=1 and B=2F if not
            given.
        comm: Seconds of one transfer.
        options: Options of the schedule.

    Returns:
        The timeline; `print` draws it, ``.schedule`` has the actions.

    Raises:
        PipecError: The name is unknown.
        ScheduleError: It is malformed, illegal, or deadlocks.

    Example:
        >>> import pipec
        >>> timeline = pipec.schedule("1f1b", stages=4, microbatches=8)
        >>> timeline.seconds, round(timeline.bubble, 3), timeline.peak_in_flight
        (33.0, 0.273, (4.0, 3.0, 2.0, 1.0))
    """
    name = name_of(name)
    known = [kind.name for kind in ActionKind if kind.is_compute]
    if times and (unknown := sorted(set(times) - set(known))):
        raise ScheduleError("no such time", got=", ".join(unknown), want=", ".join(known))
    seconds = Times.uniform(stages, **(times or {}), comm=comm)
    plain = generate_for(name, stages, microbatches, seconds, **options)
    prove(plain)
    full = lower(plain)
    prove(full)
    return simulate(full, seconds)


@check_arguments
def partition(
    graph: CostGraph | str | os.PathLike[str],
    devices: int | None = None,
    *,
    bytes_per_second: float = 1e9,
    time_limit: float = 20.0,
) -> CutResult:
    """Cut a cost graph so that the slowest stage is as fast as possible, with proof.

    Args:
        graph: A dnn-partitioning JSON workload, a PipeDream profile, or a `CostGraph`.
        devices: Accelerators; as the file says if not given.
        bytes_per_second: Of each link, where the values are in bytes.
        time_limit: Seconds of processor time for the proof.

    Raises:
        PartitionError: The graph cannot be read or cut.

    Example:
        >>> import pipec
        >>> from pipec.partition.costgraph import Value, cost_graph
        >>> chain = cost_graph("abc", {"accelerator": [1, 2, 3]}, [Value(0, [1]), Value(1, [2])])
        >>> cut = pipec.partition(chain, devices=2)
        >>> cut.stage.tolist(), cut.proven
        ([0, 0, 1], True)
    """
    workload = Workload(graph, True) if isinstance(graph, CostGraph) else read_workload(Path(graph))
    targets = workload.devices(devices)
    if not targets:
        raise PartitionError("no devices", want="devices=4, as the file does not say how many")
    link = Link(bytes_per_second, 0.0)
    links = None if workload.priced else link
    return solve_contiguous(workload.graph, targets, links=links, time_limit=time_limit)


@check_arguments
def verify(
    plan: Plan | str | os.PathLike[str],
    model: Model | None = None,
    inputs: object = None,
    *,
    loss: object = None,
    seed: int = 0,
    tolerance: float | None = None,
    trust: bool = False,
) -> VerifyReport:
    """Run the emitted stages against the original model, on random inputs.

    Args:
        plan: A directory that was written before, or a plan, which is written for it.
        model: The model, if it is not where it was or was a module in memory.
        inputs: Example inputs of a module.
        loss: Loss of a module that the plan trains.
        seed: Seed of the random inputs.
        tolerance: Largest relative error; the target's if not given.
        trust: Allow formats that run code when they are read (``.pt2``).

    Returns:
        The error of every value that crosses a cut, every output and every gradient.

    Raises:
        PipecError: Something cannot be read, or it is another model.

    Example:
        >>> import pipec, torch
        >>> model, x = torch.nn.Sequential(*[torch.nn.Linear(8, 8)] * 4), torch.randn(2, 8)
        >>> plan = pipec.compile(model, x, "2xcpu")
        >>> pipec.verify(plan, model, x).ok
        True
    """
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise PipecError("no such tolerance", got=tolerance, want="0 or more, and finite")
    if isinstance(plan, Plan):
        if loss is not None and not plan.trains:
            raise PipecError("the plan does not train", got="a loss")
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made) / "out"
            emit(plan, directory)
            reference = _reference(plan.graph.source, model, inputs, loss, trust=trust)
            return verify_artifacts(directory, reference, seed=seed, tolerance=tolerance)
    record = read_manifest(Path(plan))
    source, target = source_of(record), str(record["target"])
    spec = None if model is None else str(model)
    check_runnable(Path(plan), source, target, spec, trust=trust)
    reference = _reference(source, model, inputs, loss, trust=trust)
    return verify_artifacts(Path(plan), reference, seed=seed, tolerance=tolerance)


def _reference(
    source: Source, model: Model | None, inputs: object, loss: object, *, trust: bool
) -> Loaded:
    if model is None or isinstance(model, str | os.PathLike):
        ignored = [n for n, given in (("inputs", inputs), ("loss", loss)) if given is not None]
        if ignored:
            raise PipecError(
                f"{' and '.join(ignored)} would have no effect",
                got=model or "the model of the plan, read from where it was",
                want="a module beside them, since a path brings its own",
            )
        return reload(source, spec=None if model is None else os.fspath(model), trust=trust)
    return read_model(model, inputs, loss, replace(LoadOptions.of(source), trust=trust))
