"""A layout or a schedule that another tool made, judged beside the exploration's own plan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipec.compiler.complete import complete
from pipec.compiler.endless import drains, round_of
from pipec.compiler.layers import parse_layout
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PartitionError, PipecError
from pipec.explore.candidate import INFERENCE, Candidate
from pipec.explore.explore import Exploration
from pipec.explore.make import Maker, passes_of
from pipec.plan.model import Plan
from pipec.schedule.csv_form import from_csv
from pipec.schedule.registry import generate
from pipec.schedule.rows import from_rows
from pipec.schedule.schedule import Schedule


@dataclass(frozen=True)
class Rival:
    """What another layout takes.

    Attributes:
        layout: As given.
        plan: The layout as a plan of ours: verified, free of deadlock, timed.
        chosen: The exploration's plan.
    """

    layout: str
    plan: Plan
    chosen: Plan

    @property
    def seconds(self) -> float:
        """Of one step of the layout."""
        assert self.plan.timeline is not None
        return self.plan.timeline.seconds

    @property
    def ratio(self) -> float:
        """How many times as fast the exploration's plan is."""
        assert self.chosen.timeline is not None
        if drains(self.chosen.order):
            return self.seconds / self.chosen.timeline.seconds
        return self.seconds / round_of(self.chosen).seconds

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        assert self.plan.partition is not None
        return {
            "layout": self.layout,
            "schedule": self.plan.order.name,
            "stages": len(self.plan.stages),
            "microbatches": self.plan.order.microbatches,
            "deadlock": False,
            "seconds": self.seconds,
            "stage_seconds": list(self.plan.partition.seconds),
            "chosen_is_faster": self.ratio,
        }

    def __str__(self) -> str:
        """Two lines."""
        return (
            f"beside {self.layout}: {self.plan.order.name}, {len(self.plan.stages)} stages, "
            f"{self.plan.order.microbatches} microbatches: free of deadlock"
            f"{' with sends and receives of pipec' * self.layout.endswith('.csv')}, "
            f"{self.seconds * 1e3:.4g} ms per step\n"
            f"the chosen plan is {self.ratio:.3g} times as fast"
        )


def judge(layout: str, maker: Maker, exploration: Exploration, chosen: Plan) -> Rival:
    """Makes plans of a layout at every microbatch that fits it; the fastest.

    Raises:
        PipecError: It cannot be read, does not suit the model or the cluster, or deadlocks.
    """
    schedule = _read_schedule(Path(layout)) if layout.endswith(".csv") else None
    found: list[Plan] = []
    failed: PipecError | None = None
    for candidate in _candidates(layout, schedule, maker, exploration):
        try:
            found.append(_make_plan(maker, candidate, layout, schedule))
        except PipecError as error:
            failed = failed or error
    if not found:
        parts = f" of {schedule.microbatches} microbatches" if schedule else ""
        raise failed or PartitionError(
            "the layout suits no split of the batch",
            got=f"{layout}{parts}, a batch of {exploration.batch} on {maker.cluster}",
        )
    return Rival(layout, min(found, key=lambda p: p.timeline.seconds if p.timeline else 0), chosen)


def _read_schedule(path: Path) -> Schedule:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PartitionError("the schedule cannot be read", where=path, got=error) from error
    read = from_csv(text, name=path.stem, where=str(path))
    # what is sent depends on the plan's channels
    rows = [[a for a in row if a.kind.is_compute] for row in read.rows()]
    return from_rows(read.name, rows, placement=read.placement)


def _candidates(
    layout: str, schedule: Schedule | None, maker: Maker, exploration: Exploration
) -> Iterator[Candidate]:
    """Ways to run it: as many replicas as the cluster has room for."""
    size, batch = maker.cluster.size, exploration.batch
    stages = schedule.stages if schedule else len(parse_layout(layout).layers)
    depth = schedule.devices if schedule else min(stages, size)
    if stages % depth or size % depth:
        raise PartitionError(
            "the layout does not fit the cluster",
            got=f"{stages} stages on {depth} of {size} devices",
            want="a whole number of stages per device, and of pipelines",
            hint=f"a layout of {size} stages does",
        )
    name = INFERENCE if schedule is None else _find_like(schedule)
    if schedule is None and maker.trains:
        name = "1f1b" if stages == depth else f"interleaved{{chunks={stages // depth}}}"
    replicas = size // depth if schedule is None and maker.trains else 1
    tried = {p.candidate.microbatch for p in exploration.predictions}
    if schedule is not None:
        tried = set() if batch % schedule.microbatches else {batch // schedule.microbatches}
    for microbatch in sorted(tried):
        count = batch // (microbatch * replicas)
        if count * microbatch * replicas == batch:
            yield Candidate(depth, replicas, name, microbatch, count)


def _find_like(schedule: Schedule) -> str:
    """A schedule of ours that places its stages on the same devices."""
    chunks = max(schedule.stages // schedule.devices, 1)
    names = [INFERENCE] if not schedule.training else ["1f1b", "zbv"]
    if chunks > 1 and schedule.training:
        names.append(f"interleaved{{chunks={chunks}}}")
    for name in names:
        try:
            place = generate(name, schedule.stages, schedule.microbatches).placement
        except PipecError:
            continue
        if place == schedule.placement:
            return name
    raise PartitionError(
        "no plan places its stages like this schedule",
        got=schedule.placement.forward,
        want="stage k on device k or k mod devices, or there and back",
    )


def _make_plan(maker: Maker, candidate: Candidate, layout: str, schedule: Schedule | None) -> Plan:
    passes = passes_of(candidate)
    if schedule is None:
        put: Any = partial(replace, layout=layout)
        passes = [put(p) if p.name == "partition" else p for p in passes]
        return maker.make(candidate, passes=passes)
    names = [p.name for p in passes]
    plan = maker.make(candidate, passes=passes[: names.index("schedule")])
    plan = plan.replace(schedule=complete(schedule, plan))
    return run_passes(parse_pipeline("simulate"), plan)
