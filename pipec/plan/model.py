"""What a plan is made of. Everything is frozen: a pass returns a new plan."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from torch import fx

from pipec.arguments import check_arguments
from pipec.autodiff.model import Training
from pipec.cluster.cluster import Cluster
from pipec.cost.table import CostTable
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, tensor
from pipec.graph.lower import lower, with_transfers
from pipec.graph.structure import structural_key
from pipec.graph.tensor_type import dtype_text
from pipec.graph.written import Part, parts_of
from pipec.registry import load_view
from pipec.schedule.schedule import Placement, Schedule
from pipec.simulate.timeline import Timeline

STATE_WAITS = "optimizer_waits"
"""Name of the plan's option that the optimizer's state waits in host memory between steps: how many
compute actions it is copied beside; 0 where each STEP brings it and sends it back."""


class Fact(StrEnum):
    """What is already decided; passes say which facts they require and provide.

    Example:
        >>> import pipec, torch
        >>> plan = pipec.compile(torch.nn.Linear(4, 2), torch.zeros(1, 4), "1xv100")
        >>> pipec.Fact.PARTITION in plan.facts(), pipec.Fact.SCHEDULE in plan.facts()
        (True, True)
    """

    COST = "cost"
    PARTITION = "partition"
    COMM = "comm"
    SAVED = "saved"
    TIMING = "timing"
    SCHEDULE = "schedule"
    TIMELINE = "timeline"


@dataclass(frozen=True)
class Partition:
    """What goes together: the stage of every call node, and how good that is.

    Attributes:
        stage_of: Call node name to stage, 0-based.
        seconds: Predicted seconds of each stage per microbatch, transfers included.
        lower_bound: No cut of this kind does better than this, in seconds: of a step, or of the
            slowest stage where ``step_seconds`` is 0.
        proven: Whether the cut is proven optimal among those of this kind.
        answers: Which problem the numbers answer, in words (contiguous, chunks, ...).
        method: The algorithm that found it.
        step_seconds: Predicted seconds of a step of the schedule that was cut for; 0 where the
            slowest stage was made as fast as can be instead.
    """

    stage_of: Mapping[str, int]
    seconds: tuple[float, ...]
    lower_bound: float
    proven: bool
    answers: str
    method: str
    step_seconds: float = 0.0

    @property
    def max_load(self) -> float:
        """Seconds of the slowest stage."""
        return max(self.seconds)

    @property
    def gap(self) -> float:
        """How far the step (or the slowest stage) may be above the optimum, as a share of it."""
        return 0.0 if self.proven else (self.step_seconds or self.max_load) / self.lower_bound - 1


@dataclass(frozen=True)
class ValueChannel:
    """One value of the model on its way from one stage to another, one hop.

    What the schedule needs of it (its kind, ends, bytes, depth, and the gradient's way back) is a
    `pipec.schedule.channels.Channel`, made of it in `pipec.compiler.complete`.

    Attributes:
        name: ``s<src>.s<dst>.<value>``.
        value: Node of the whole model that computes it.
        src: Sending stage.
        dst: Receiving stage.
        nbytes: Bytes per microbatch.
        shape: Shape of the value.
        dtype: Its dtype, as torch writes it without ``torch.``.
        depth: Slots: 0 is a rendezvous, n buffers n values.
    """

    name: str
    value: str
    src: int
    dst: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    depth: int = 2

    @classmethod
    def of(cls, value: fx.Node, src: int, dst: int, depth: int) -> Self:
        """The channel of a value of the model between two stages."""
        t, name = tensor(value), f"s{src}.s{dst}.{value.name}"
        shape, dtype = tuple(t.shape), dtype_text(t.dtype)
        return cls(name, value.name, src, dst, nbytes(value), shape, dtype, depth)


@dataclass(frozen=True)
class HostSlot:
    """Where saved values of one stage wait in host memory between F and B.

    Attributes:
        name: ``s<stage>.host<number>``.
        stage: The stage.
        values: Nodes of F that compute them, in graph order.
        nbytes: Bytes per microbatch, all values together.
        depth: Sets of these values that may be on the device on either side of the copies, and
            how many compute actions before its backward a set begins to come back.
    """

    name: str
    stage: int
    values: tuple[str, ...]
    nbytes: int
    depth: int = 1


@dataclass(frozen=True)
class Stage:
    """One pipeline stage.

    Attributes:
        index: Position in the pipeline, 0-based.
        graph: Its graph, with communication nodes once these are inserted.
        training: Its F, B, I and W graphs and what is saved between them, once differentiated.

    Example:
        >>> import pipec, torch
        >>> plan = pipec.compile(torch.nn.Linear(4, 2), torch.zeros(1, 4), "1xv100")
        >>> stage, x = plan.stages[0], torch.ones(1, 4)
        >>> [tuple(y.shape) for y in stage.module(*stage.graph.weights.values(), x)]
        [(1, 2)]
    """

    index: int
    graph: Graph
    training: Training | None = None

    @property
    def phases(self) -> Training:
        """The training graphs of a stage that has them."""
        assert self.training is not None
        return self.training

    @property
    def key(self) -> str:
        """Structural key of the graph, computed anew: equal stages share it."""
        return structural_key(self.graph)

    @property
    def cost_key(self) -> str:
        """What measured costs of the whole stage are filed under: what it runs, names aside."""
        return self.training.key if self.training else self.key

    @property
    def module(self) -> fx.GraphModule:
        """What it computes, without communication; `print` its ``code``."""
        return lower(self.graph).graph.module

    def __repr__(self) -> str:
        trained = ", differentiated" if self.training else ""
        return f"Stage({self.index}: {len(self.graph.calls)} nodes, graph {self.key}{trained})"

    def _repr_html_(self) -> str:
        return str(load_view("stage.html")(self))


def stage_parts(
    model: Graph, stage_of: Mapping[str, int], count: int, channels: Sequence[ValueChannel] = ()
) -> list[Part]:
    """What a cut and channels make of a model: the part of every stage.

    Args:
        model: The whole model.
        stage_of: Call node to stage.
        count: Number of stages.
        channels: What stages send and receive, in nodes of their graphs; other values stay inputs
            and outputs. Left out are channels of values that the sender does not have.
    """
    rows: list[list[fx.Node]] = [[] for _ in range(count)]
    for n in model.calls:
        if 0 <= (k := stage_of.get(n.name, -1)) < count:
            rows[k].append(n)
    parts, nodes = parts_of(model, rows), model.nodes if channels else {}
    ends = [(c.src, c.dst, (c.name, nodes[c.value])) for c in channels if c.value in nodes]
    for k, part in enumerate(parts if channels else ()):
        receives = [end for _, dst, end in ends if dst == k]
        here = {n.name for n in part.calls} | {n.name for _, n in receives}
        sends = [end for src, _, end in ends if src == k and end[1].name in here]
        parts[k] = with_transfers(part, receives, sends)
    return parts


def cut_stages(
    model: Graph, stage_of: Mapping[str, int], count: int, channels: Sequence[ValueChannel] = ()
) -> tuple[Stage, ...]:
    """The stages of `stage_parts`, each with its own copies of nodes."""
    parts = enumerate(stage_parts(model, stage_of, count, channels))
    return tuple(Stage(k, part.graph(f"Stage{k}")) for k, part in parts)


@dataclass(frozen=True)
class StageTiming:
    """What a backend predicts for one stage on its device.

    Attributes:
        interval_seconds: Between two results in steady state.
        latency_seconds: From the first input to the first whole result.
        bottleneck: What bounds the interval, in words.
        memory_bytes: Bytes of device memory that the stage holds; where values do not stream, its
            weights alone, since the timeline follows the rest.
        transfer_seconds: The part of the interval in which the stage sends or receives and does not
            compute; 0 where transfers run beside compute.
        notes: What the user must know, such as weights that are streamed.
        backward_seconds: What one backward takes; 0 where the backend does not say.
        together_seconds: What a forward and a backward take that run at the same time, each on
            its part of the device; 0 where the device has no such parts.
        step_seconds: One update of the weights.
        workspace_bytes: In inference, what a forward allocates while it runs, the model's inputs
            with it; 0 where values stream.
        output_bytes: In inference, outputs of the model that a forward leaves on the device; 0
            where they stream.
        link_seconds: Each value that is sent, and what it takes of its link, flight included; what
            the cluster says of the link where the backend does not say.

    Example:
        >>> import pipec, torch
        >>> plan = pipec.compile(torch.nn.Linear(4, 2), torch.zeros(1, 4), "1xv100")
        >>> (timing,) = plan.timing
        >>> timing.bottleneck, timing.interval_seconds < 1e-4
        ('compute (100% in linear)', True)
    """

    interval_seconds: float
    latency_seconds: float
    bottleneck: str
    memory_bytes: int = 0
    transfer_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    backward_seconds: float = 0.0
    together_seconds: float = 0.0
    step_seconds: float = 0.0
    workspace_bytes: int = 0
    output_bytes: int = 0
    link_seconds: tuple[tuple[str, float], ...] = ()

    @property
    def compute_seconds(self) -> float:
        """The interval without transfers: what one forward takes of the compute lane."""
        return self.interval_seconds - self.transfer_seconds


@dataclass(frozen=True)
class Tried:
    """One schedule that was predicted on the plan when the schedule was chosen.

    Attributes:
        schedule: Name of the schedule.
        seconds: Seconds of one step; None if it is impossible here.
        bubble: Share of device time without compute.
        peak_bytes: Most bytes held, per device.
        why: Why it lost, in words; ``chosen`` for the one that won.
    """

    schedule: str
    seconds: float | None
    bubble: float
    peak_bytes: tuple[float, ...]
    why: str


@dataclass(frozen=True)
class Plan:
    """One model on one cluster: what, what together, where, when.

    Attributes:
        graph: What is computed.
        cluster: The devices and links.
        target: Name of the backend that will emit it.
        costs: Per node cost.
        partition: Node to stage.
        placement: (stage, phase) to devices.
        stages: The stage graphs.
        channels: What crosses between stages, one per value and hop.
        slots: What waits in host memory between F and B.
        schedule: Per device the ordered actions.
        timing: What the backend predicts per stage.
        timeline: The schedule with the time of every action.
        explored: The schedules among which the plan's was chosen, fastest first; empty if it was
            named.
        options: Options of passes and backends to remember (strings and numbers only).

    Example:
        >>> import pipec, torch
        >>> model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
        >>> plan = pipec.compile(model, torch.zeros(2, 8), "2xv100")
        >>> [len(stage.graph.calls) for stage in plan.stages], [c.nbytes for c in plan.channels]
        ([3, 3], [64])
    """

    graph: Graph
    cluster: Cluster
    target: str = "torch"
    costs: CostTable | None = None
    partition: Partition | None = None
    placement: Placement | None = None
    stages: tuple[Stage, ...] = ()
    channels: tuple[ValueChannel, ...] = ()
    slots: tuple[HostSlot, ...] = ()
    schedule: Schedule | None = None
    timing: tuple[StageTiming, ...] = ()
    timeline: Timeline | None = None
    explored: tuple[Tried, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @check_arguments
    def save(self, directory: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the plan with the artifacts of its target: all of them, or nothing.

        Args:
            directory: What to make.
            force: Replace a directory that pipec wrote.

        Raises:
            PipecError: See `pipec.compiler.driver.emit`.
        """
        load_view("plan.save")(self, Path(directory), force=force)

    @check_arguments
    def report(self, path: str | os.PathLike[str], other: "Plan | None" = None) -> Path:
        """Write one HTML page that shows the plan, or how another one differs from it.

        Raises:
            PipecError: The file cannot be written.
        """
        written: Path = load_view("plan.report")(self, Path(path), other=other)
        return written

    def __str__(self) -> str:
        """Its tables, as ``pipec inspect`` prints them."""
        return str(load_view("plan.text")(self))

    def __repr__(self) -> str:
        cut, when = self.partition, self.schedule
        facts = [f"{len(self.stages)} stages" if self.stages else "not cut"]
        facts += [f"slowest {cut.max_load:.3g} s"] if cut else []
        facts += [f"{when.name}, {when.microbatches} microbatches"] if when else []
        facts += [f"{self.timeline.seconds:.3g} s a step"] if self.timeline else []
        model = self.graph.source.location
        return f"Plan({model} on {self.cluster} for {self.target}: {'; '.join(facts)})"

    def _repr_html_(self) -> str:
        return str(load_view("plan.html")(self))

    def facts(self) -> frozenset[Fact]:
        """What is decided, read off the plan itself."""
        has = {
            Fact.COST: self.costs is not None,
            Fact.PARTITION: bool(self.stages),
            Fact.COMM: bool(self.stages) and (bool(self.channels) or not self._exchanges),
            Fact.SAVED: bool(self.stages) and (not self.trains or self.differentiated),
            Fact.TIMING: bool(self.timing),
            Fact.SCHEDULE: self.schedule is not None,
            Fact.TIMELINE: self.timeline is not None,
        }
        return frozenset(fact for fact, holds in has.items() if holds)

    @property
    def _exchanges(self) -> bool:
        """Whether a stage reads what another one yields."""
        return any(stage.graph.inputs_of(InputKind.VALUE) for stage in self.stages)

    @property
    def order(self) -> Schedule:
        """The schedule of a plan that has one."""
        assert self.schedule is not None
        return self.schedule

    @property
    def state_waits(self) -> bool:
        """Whether the optimizer's state waits in host memory between steps."""
        return STATE_WAITS in self.options

    @property
    def home(self) -> Mapping[str, int]:
        """The stage of every call, as cut; nothing before."""
        return {} if self.partition is None else self.partition.stage_of

    @property
    def trains(self) -> bool:
        """Whether the model ends in a loss."""
        return bool(self.graph.outputs_of(OutputKind.LOSS))

    @property
    def differentiated(self) -> bool:
        """Whether every stage has its training graphs."""
        return all(s.training is not None for s in self.stages)

    def replace(self, **changes: object) -> "Plan":
        """A copy with some fields changed (`dataclasses.replace`)."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def find_tied(self, *, trained: bool = False) -> dict[str, tuple[int, ...]]:
        """Weights that more than one stage reads, with these stages; only those that one trains."""
        readers: dict[str, list[int]] = {}
        for stage in self.stages:
            for i in stage.graph.inputs:
                if i.kind.is_weight:
                    readers.setdefault(i.name, []).append(stage.index)
        learns = {name for s in self.stages if s.training for name in s.training.trained}
        known = readers.keys() & learns if trained else readers
        return {n: tuple(at) for n, at in readers.items() if len(at) > 1 and n in known}
