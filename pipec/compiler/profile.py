"""Measuring a plan where it will run: its stages' graphs, its steps, its messages.

```text
rank 0   stage 0: rows of 1f1b and zb-h1, alone ...     messages of the plan's sizes
rank 1   stage 1: the same at the same time      ...    to and fro
```

Ranks measure at the same time, since that is how they will compute: they share memory bandwidth.
"""

import gc
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from msgspec import convert, to_builtins

from pipec.compiler.backend import load_backend
from pipec.compiler.capabilities import TimesNodes
from pipec.compiler.complete import complete
from pipec.compiler.facts import list_sums
from pipec.compiler.job import StageFunction, run_chain
from pipec.cost.count import count
from pipec.cost.measure import Measuring, Progress, measure_costs
from pipec.cost.stage import Figure, MessageCost, StageCost
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.plan.model import Plan
from pipec.runtime.agreement import exchange
from pipec.runtime.device import Device
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.process_group import ProcessGroupTransport
from pipec.runtime.profile import Clock, Row, Samples, measure_messages
from pipec.runtime.program import Program
from pipec.schedule.action import ActionKind
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule

_K = ActionKind
_SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
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

    def apply(self, plan: Plan, kind: str) -> Plan:
        """The plan with these costs on devices of one kind, timed anew.

        Raises:
            CostError: The plan has no costs of its nodes.
        """
        if plan.costs is None:
            raise CostError("the plan has no costs of its nodes", want="the pass annotate-cost")
        timed = plan.replace(costs=self.add_to(plan.costs, plan, kind))
        return timed.replace(timing=load_backend(plan.target).stage_seconds(timed))

    def add_to(self, costs: CostTable, plan: Plan, kind: str) -> CostTable:
        """A table with these costs too, those of devices of one kind.

        Of an inference each node's seconds are scaled, so that those of a stage add up to what the
        stage took: the target may run a node in another way than the machine that timed it alone.
        """
        messages = {kind: self.messages} if self.messages else {}
        stages = {**costs.stages.get(kind, {}), **self.stages}
        seconds = dict(costs.seconds.get(kind, {}))
        for stage in () if plan.trains else plan.stages:
            names = [n.name for n in lower(stage.graph).calls if n.name in seconds]
            alone, whole = sum(seconds[n] for n in names), self.stages.get(stage.cost_key)
            if alone and whole:
                seconds |= {n: seconds[n] * whole.F / alone for n in names}
        return replace(
            costs,
            seconds={**costs.seconds, **({kind: seconds} if seconds else {})},
            stages={**costs.stages, kind: stages},
            messages={**costs.messages, **messages},
        )


@runtime_checkable
class Profiles(Protocol):
    """A target that measures its stages in its own way, such as one rank per device."""

    def profile(
        self,
        plan: Plan,
        batch: Batch,
        settings: Settings,
        *,
        budget: float = 1.0,
        compute: Device | None = None,
    ) -> Profile:
        """Stages, and messages where there are several ranks; the same on every rank."""


def node_costs(
    target: object,
    graph: Graph,
    inputs: Mapping[str, torch.Tensor],
    kind: str,
    how: Measuring,
    progress: Progress = lambda _: None,
) -> CostTable:
    """As `measure_costs`, by the target's own engine where it tells."""
    if how.device == "cpu" and isinstance(target, TimesNodes):
        seconds = target.node_seconds(graph, inputs, how.warmup + how.repeats)
        if seconds:
            return CostTable(count(graph), {kind: seconds}, {kind: "measured"})
    return measure_costs(graph, inputs, kind, how, progress)


def profile_emitted(
    plan: Plan,
    stages: Sequence[StageFunction],
    inputs: Mapping[str, torch.Tensor],
    budget: float,
    clock: Clock = time.perf_counter,
) -> Profile:
    """Measure emitted stages, ``budget`` seconds each, on the values that they give each other."""
    seconds: dict[int, list[float]] = {s.index: [] for s in plan.stages}

    def watch(index: int, run: StageFunction) -> StageFunction:
        """The stage, whose seconds are noted."""

        def call(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            begin = clock()
            found = run(values)
            seconds[index].append(clock() - begin)
            return found

        return call

    watched = [watch(s.index, run) for s, run in zip(plan.stages, stages, strict=True)]
    deque(run_chain(plan, watched, inputs), maxlen=0)  # not counted: caches are cold
    until = clock() + budget * len(plan.stages)
    for found in seconds.values():
        found.clear()
    while not seconds[0] or clock() < until:
        deque(run_chain(plan, watched, inputs), maxlen=0)
    return Profile(
        _merge([{s.cost_key: StageCost(statistics.median(seconds[s.index]))} for s in plan.stages])
    )


def message_sizes(plan: Plan) -> list[int]:
    """Bytes of the plan's messages, eight of them at most, and of a short one.

    Besides, of what devices add up: weights that several stages train, gradients of replicas.
    """
    sizes = sorted({c.nbytes for c in plan.channels if c.nbytes > _SHORT})
    step = max(1, (len(sizes) + 6) // 7)
    return sorted({_SHORT, *sizes[::step], *sizes[-1:], *list_sums(plan)})


class Profiler:
    """Measures a plan as often as asked.

    Args:
        plan: With stages; differentiated if it trains.
        batch: Inputs of a microbatch.
        settings: With the optimizer whose steps count.
        compute: Where this rank computes; the CPU if absent.
        keep: Whether executors, and so weights and optimizers, stay from one time to the next.
        clock: Of what a rank computes: ``time.thread_time`` where the machine does other things too
            and a rank has one thread.
    """

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        settings: Settings,
        *,
        compute: Device | None = None,
        keep: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._plan, self._batch, self._settings, self._clock = plan, batch, settings, clock
        self._device = compute or Device(torch.device("cpu"))
        self._grouped = dist.is_available() and dist.is_initialized()
        self._rank, self._world = (
            (dist.get_rank(), dist.get_world_size()) if self._grouped else (0, 1)
        )
        self._programs = {name: Program.of(plan, order) for name, order in _rows(plan).items()}
        self._rows: dict[tuple[int, str], Row] | None = {} if keep else None
        self._workspace: dict[int, tuple[dict[str, int], ...]] = {}
        if self._world > 1:
            self._transport = ProcessGroupTransport(self._device.torch, [(0, 1)])

    def measure(self, budget: float = 1.0) -> Profile:
        """Measure stages and messages now; all ranks must call. Bytes are counted once.

        Args:
            budget: Seconds for each stage.

        Returns:
            The same on every rank.
        """
        found: list[dict[str, StageCost]] = []
        handling: list[float] = []
        for number in range(-(-len(self._plan.stages) // self._world)):
            index = self._rank + number * self._world
            samples = self._stage(index, budget)
            if not samples:
                continue
            stage = self._plan.stages[index]
            key = stage.cost_key
            found.append({key: _cost(index, samples, *self._workspace[index])})
            sends = [_pool(samples, kind, index, first=None) for kind in _SENDS]
            handling += [s for part in sends for s in part]
        if not self._grouped:
            return Profile(_merge(found))
        return self._share(_merge(found), statistics.median(handling or [0.0]))

    def _stage(self, index: int, budget: float) -> dict[str, Samples]:
        """One stage's rows, each while the other ranks measure theirs; nothing beyond the last."""
        there, counted = index < len(self._plan.stages), index in self._workspace
        found: dict[str, Samples] = {}
        for name in self._programs:
            row = self._row(index, name) if there else None
            if row is not None and not counted:
                before = self._workspace.get(index, ({}, {}))
                self._workspace[index] = tuple(map(_larger, before, row.workspace()))
            if self._grouped:
                dist.barrier()
            if row is not None:
                found[name] = row.measure(budget / len(self._programs))
            if self._grouped:
                self._keep_busy(row)
        return found

    def _row(self, index: int, name: str) -> Row:
        if self._rows is not None and (index, name) in self._rows:
            return self._rows[index, name]
        gc.collect()  # executors are in cycles, and the rows before held weights and optimizers
        program = self._programs[name]
        row = Row(program, index, self._batch, self._settings, self._device, self._clock)
        if self._rows is not None:
            self._rows[index, name] = row
        return row

    def _keep_busy(self, row: Row | None) -> None:
        """Keep the memory busy until all ranks are done: they will compute at the same time."""
        waiting = dist.barrier(async_op=True)
        assert waiting is not None
        while row is not None and not waiting.is_completed():
            row.round()
        waiting.wait()

    def _share(self, costs: dict[str, StageCost], handling: float) -> Profile:
        """Everybody's stages, and messages between the first two ranks."""
        device, messages = self._device.torch, None
        if self._world > 1:
            sizes = message_sizes(self._plan)
            messages = measure_messages(
                self._transport, self._rank, sizes, device=device, handling=handling
            )
            if messages is not None:
                messages = replace(messages, slots=self._transport.slots)
        shared = exchange(to_builtins([costs, messages]))
        parts, found = [convert(part, dict[str, StageCost]) for part, _ in shared], shared[0][1]
        return Profile(_merge(parts), convert(found, MessageCost | None))


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _pool(
    samples: Mapping[str, Samples], kind: ActionKind, stage: int, *, first: bool | None
) -> list[float]:
    """Seconds of a kind of action in all rows; only of first ones, of later ones, or of both."""
    return [
        seconds
        for row in samples.values()
        for key, found in row.seconds.items()
        if key[:2] == (kind, stage) and first in (None, key[2])
        for seconds in found
    ]


def _cost(
    stage: int,
    samples: Mapping[str, Samples],
    workspace: Mapping[str, int],
    kernels: Mapping[str, int],
) -> StageCost:
    """One stage on rows with full backwards, with split ones, and with a step per microbatch."""

    def every(name: str, kind: ActionKind, *, first: bool | None = None) -> list[float]:
        """Of one row, if it was run."""
        return _pool({n: s for n, s in samples.items() if n == name}, kind, stage, first=first)

    forward = statistics.median(_pool(samples, _K.F, stage, first=None))
    if "inference" in samples:
        return StageCost(forward, workspace=workspace, kernels=kernels)
    making = every("1f1b", _K.B, first=True) + every("pipedream", _K.B)
    adding = every("1f1b", _K.B, first=False)
    alone, later = statistics.median(making), statistics.median(adding)
    if later < alone:  # no difference beyond chance
        alone = later = statistics.median(making + adding)
    weight_gradients = every("zb-h1", _K.W, first=True)
    weight_gradients += [max(0.0, s - (later - alone)) for s in every("zb-h1", _K.W, first=False)]
    step = statistics.median(every("1f1b", _K.STEP))
    copied = every("pipedream", _K.STEP)
    return StageCost(
        F=forward,
        B=alone,
        I=statistics.median(every("zb-h1", _K.I)),
        W=statistics.median(weight_gradients),
        accumulate=later - alone,
        step=step,
        step_copied=statistics.median(copied) if copied else step,
        optimizer_bytes=samples["1f1b"].optimizer_bytes.get(stage, 0),
        workspace=workspace,
        kernels=kernels,
    )


def _rows(plan: Plan) -> dict[str, Schedule]:
    """The schedules that are measured, without those that the plan cannot run."""
    names = ["1f1b", "zb-h1", "pipedream"] if plan.trains else ["inference"]
    if plan.trains and any(len(stages) > 1 for stages in plan.find_tied().values()):
        names = names[:2]
    count = len(plan.stages)
    return {name: complete(generate(name, count, max(4, count)), plan) for name in names}


def _merge(parts: Sequence[Mapping[str, StageCost]]) -> dict[str, StageCost]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _mean([part[key] for part in parts if key in part]) for key in keys}


def _mean(costs: Sequence[StageCost]) -> StageCost:
    names = [f.name for f in fields(StageCost) if f.type is Figure]
    times = {name: statistics.fmean(getattr(c, name) for c in costs) for name in names}
    return StageCost(**{**asdict(costs[0]), **times})
