"""Measuring a plan where it will run: its stages' graphs, its steps, its messages.

```text
rank 0   stage 0: rows of 1f1b and zb-h1, alone ...     messages of the plan's sizes
rank 1   stage 1: the same at the same time      ...    to and fro
```

Ranks measure at the same time, since that is how they will compute: they share memory bandwidth.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from pipec.compiler.backend import load_backend
from pipec.compiler.complete import completed
from pipec.cost.stage import MessageCost, StageCost
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.plan.model import Plan
from pipec.runtime.device import Device
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.process_group import ProcessGroupTransport
from pipec.runtime.profile import measure_messages, measure_row, measure_workspace
from pipec.runtime.program import Program
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule

_K = ActionKind
_SHORT = 1024
"""Bytes of a message that is all latency."""


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        stages: A stage's key to its seconds.
        messages: None where there was one rank only.
    """

    stages: Mapping[str, StageCost] = field(default_factory=dict)
    messages: MessageCost | None = None

    def on(self, plan: Plan, kind: str) -> Plan:
        """The plan with these costs on devices of one kind, timed anew.

        Raises:
            CostError: The plan has no costs of its nodes.
        """
        if plan.costs is None:
            raise CostError("the plan has no costs of its nodes", want="the pass annotate-cost")
        timed = plan.replace(costs=self.added(plan.costs, kind))
        return timed.replace(timing=load_backend(plan.target).timing(timed))

    def added(self, costs: CostTable, kind: str) -> CostTable:
        """A table with these costs too, those of devices of one kind."""
        messages = {kind: self.messages} if self.messages else {}
        stages = {**costs.stages.get(kind, {}), **self.stages}
        return replace(
            costs,
            stages={**costs.stages, kind: stages},
            messages={**costs.messages, **messages},
        )


def profile(
    plan: Plan,
    batch: Batch,
    settings: Settings,
    *,
    budget: float = 1.0,
    compute: Device | None = None,
) -> Profile:
    """Measure a plan's stages on all ranks of the group, or in this process if there is none.

    Args:
        plan: With stages; differentiated if it trains.
        batch: Inputs of a microbatch.
        settings: With the optimizer whose steps count.
        budget: Seconds for each stage.
        compute: Where this rank computes; the CPU if absent.

    Returns:
        The same on every rank.
    """
    how = _How(batch, settings, budget, compute or Device(torch.device("cpu")))
    if not (dist.is_available() and dist.is_initialized()):
        return Profile(_own_stages(plan, range(len(plan.stages)), how))
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    mine = range(rank, len(plan.stages), world)
    stages = _own_stages(plan, mine, how)
    transport = ProcessGroupTransport(how.compute.torch, (), timedelta(minutes=5))
    dist.barrier()
    messages = None
    if world > 1:
        sizes = message_sizes(plan)
        messages = measure_messages(transport, rank, sizes, device=how.compute.torch)
    parts: list[dict[str, StageCost]] = [{} for _ in range(world)]
    dist.all_gather_object(parts, stages)
    told: list[MessageCost | None] = [messages]
    dist.broadcast_object_list(told, src=0)
    return Profile(_merged(parts), told[0])


def message_sizes(plan: Plan) -> list[int]:
    """Bytes of the plan's messages, eight of them at most, and of a short one."""
    sizes = sorted({c.nbytes for c in plan.channels if c.nbytes > _SHORT})
    step = max(1, (len(sizes) + 6) // 7)
    return [_SHORT, *sizes[::step], *sizes[-1:]]


@dataclass(frozen=True)
class _How:
    batch: Batch
    settings: Settings
    budget: float
    compute: Device


def _own_stages(plan: Plan, mine: Sequence[int], how: _How) -> dict[str, StageCost]:
    found: list[dict[str, StageCost]] = []
    for index in mine:
        stage = plan.stages[index]
        key = stage.training.key if stage.training else stage.key
        found.append({key: _measured(plan, index, how)})
    return _merged(found)


def _measured(plan: Plan, stage: int, how: _How) -> StageCost:
    """One stage on rows with full backwards, with split ones, and with a step per microbatch."""
    seconds: dict[tuple[str, ActionKind, bool], float] = {}
    workspace: dict[str, int] = {}
    kept, rows = 0, _rows(plan)
    for name, order in rows.items():
        this = Program.of(plan, order), stage, how.batch, how.settings
        for action, nbytes in measure_workspace(*this, compute=how.compute).items():
            workspace[action] = max(workspace.get(action, 0), nbytes)
        samples = measure_row(*this, budget=how.budget / len(rows), compute=how.compute)
        for (kind, _, first), found in samples.seconds.items():
            seconds[name, kind, first] = statistics.median(found)
        kept = samples.optimizer_bytes.get(stage, 0)
    if not plan.trains:
        return StageCost(seconds["inference", _K.F, False], workspace=workspace)
    alone = seconds["1f1b", _K.B, True]
    step = seconds["1f1b", _K.STEP, True]
    return StageCost(
        F=seconds["1f1b", _K.F, False],
        B=alone,
        I=seconds["zb-h1", _K.I, False],
        W=seconds["zb-h1", _K.W, True],
        accumulate=max(0.0, seconds["1f1b", _K.B, False] - alone),
        step=step,
        step_copied=seconds.get(("pipedream", _K.STEP, False), step),
        optimizer_bytes=kept,
        workspace=workspace,
    )


def _rows(plan: Plan) -> dict[str, Schedule]:
    """The schedules that are measured, without those that the plan cannot run."""
    names = ["1f1b", "zb-h1", "pipedream"] if plan.trains else ["inference"]
    if plan.trains and any(len(stages) > 1 for stages in plan.tied().values()):
        names = names[:2]
    count = len(plan.stages)
    return {name: completed(generate(name, count, max(4, count)), plan) for name in names}


def _merged(parts: Sequence[Mapping[str, StageCost]]) -> dict[str, StageCost]:
    """Means of what was measured of equal stages."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _mean([part[key] for part in parts if key in part]) for key in keys}


def _mean(costs: Sequence[StageCost]) -> StageCost:
    """Means of the times; bytes are the same."""
    rows = [c.to_json() for c in costs]
    times = {
        name: statistics.fmean(row[name] for row in rows)
        for name in rows[0]
        if name not in ("optimizer_bytes", "workspace")
    }
    return StageCost.from_json({**rows[0], **times})
