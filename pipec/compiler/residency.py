"""A stage's training graphs as a residency problem, and what its memory and times come to.

Seconds of the nodes of F and B are shares: the roofline's figures of these nodes, scaled so that F
takes what the plan says of the stage and B twice that (one product for each of two gradients).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from torch import fx

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import everything
from pipec.autodiff.rewrite import lineage
from pipec.cluster.device import Device
from pipec.compiler.problem import BACKWARD_OVER_FORWARD
from pipec.compiler.stage_timing import measured_stage, peak_live_bytes
from pipec.cost.count import count
from pipec.cost.model import Roofline
from pipec.cost.stage import StageCost
from pipec.graph.ir import Graph, nbytes
from pipec.graph.lower import lower
from pipec.plan.model import Plan
from pipec.residency.problem import FloatArray, IntArray, Problem
from pipec.schedule.versions import VersionRule
from pipec.simulate.times import Times

_FLUSH = VersionRule()


@dataclass(frozen=True)
class StageWork:
    """The seconds of one stage, node by node.

    Attributes:
        training: Its graphs.
        device: Where it runs.
        forward_seconds: What F takes.
    """

    training: Training
    device: Device
    forward_seconds: float

    @cached_property
    def forward(self) -> Mapping[str, float]:
        """Node of F to seconds; they sum up to ``forward_seconds``."""
        return self._scaled(lower(self.training.F).graph, self.forward_seconds)

    @cached_property
    def backward(self) -> Mapping[str, float]:
        """Node of B to seconds, recomputed nodes at what they take in F and all others scaled."""
        graph = lower(self.training.B).graph
        total = BACKWARD_OVER_FORWARD * self.forward_seconds
        return self._scaled(graph, total, apart=self.forward)

    def again(self, graph: Graph) -> float:
        """Seconds of what B, I or W computes that F has computed."""
        return sum(self.forward.get(n.name, 0.0) for n in lower(graph).graph.calls)

    def recompute(self, value: str) -> float:
        """Seconds to compute a saved value again from the others; infinite where it cannot be.

        Not computed again: what was received, what draws random numbers on the way, and what
        would have as many bytes saved in its place.
        """
        kept = {v.name for v in self.training.saved} - {value}
        steps = lineage(self.training, value, kept)
        calls = [n for n in steps if n.op == "call_function"]
        inputs = sum(nbytes(n) for n in steps if n.op == "placeholder")
        own = nbytes(self.training.F.node(value))
        if not all(map(everything, calls)) or 2 * inputs > own:
            return inf
        return sum(self.forward[n.name] for n in calls)

    def _scaled(
        self, graph: Graph, total: float, apart: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        apart = apart or {}
        counts, roofline = count(graph), Roofline()
        raw = {
            n.name: roofline.seconds(n, counts[n.name], self.device)
            for n in graph.calls
            if n.name not in apart
        }
        whole = sum(raw.values())
        scale = total / whole if whole else 0.0
        seconds = {name: scale * s for name, s in raw.items()}
        return {n.name: apart[n.name] if n.name in apart else seconds[n.name] for n in graph.calls}


def stage_problem(
    work: StageWork, cap: float, *, bandwidth: float, recompute: bool = True
) -> Problem:
    """The residency problem of one stage and one microbatch; values as in ``saved_in_order``.

    A slot ends wherever F has produced a saved value; B's nodes fall into the slot at the same
    share of the work, counted from the end.

    Args:
        work: The stage.
        cap: Bytes for the saved values of one microbatch.
        bandwidth: Bytes/s to the host and back; 0: no value leaves.
        recompute: Whether values may be computed again.
    """
    saved = saved_in_order(work.training)
    calls = lower(work.training.F).graph.calls
    at = {n.name: k for k, n in enumerate(calls)}
    seconds = np.array([work.forward[n.name] for n in calls])
    ends = sorted({at.get(name, 0) for name in saved} | {len(calls) - 1})
    forward = np.add.reduceat(seconds, [0, *(e + 1 for e in ends[:-1])])
    backward, slot_of = _backward_slots(work, forward)
    produced = np.searchsorted(ends, [at.get(name, 0) for name in saved])
    sizes = {v.name: v.nbytes for v in work.training.saved}
    return Problem(
        nbytes=np.array([float(sizes[name]) for name in saved]),
        recompute=np.array([work.recompute(n) if recompute else inf for n in saved]),
        produced=produced.astype(np.int64),
        used=_used(work, saved, slot_of),
        forward=forward,
        backward=backward,
        cap=cap,
        bandwidth=bandwidth,
    )


def saved_in_order(training: Training) -> list[str]:
    """Saved values that stay on the device, in the order in which F produces them."""
    names = {v.name for v in training.saved}
    return [n for n in training.F.nodes if n in names]


def _backward_slots(work: StageWork, forward: FloatArray) -> tuple[FloatArray, dict[str, int]]:
    """Seconds of B per slot, and the slot of every node of B."""
    last = len(forward) - 1
    total = max(float(forward.sum()), 1e-30)
    bounds = np.cumsum(forward[::-1])[:-1] / total
    whole = max(sum(work.backward.values()), 1e-30)
    backward, slot_of, done = np.zeros(len(forward)), dict[str, int](), 0.0
    for name, seconds in work.backward.items():
        slot = last - int(np.searchsorted(bounds, done / whole, side="right"))
        slot_of[name] = slot
        backward[slot] += seconds
        done += seconds
    return backward, slot_of


def _used(work: StageWork, saved: list[str], slot_of: Mapping[str, int]) -> IntArray:
    """The slot of the first node of B that reads each value, through views."""
    nodes = lower(work.training.B).graph.nodes
    found = []
    for name in saved:
        readers, stack = list[int](), [nodes[name]] if name in nodes else list[fx.Node]()
        while stack:
            for user in stack.pop().users:
                if user.name in work.forward:
                    stack.append(user)
                elif user.name in slot_of:
                    readers.append(slot_of[user.name])
        found.append(max(readers, default=0))
    return np.array(found, dtype=np.int64)


def stage_work(plan: Plan) -> list[StageWork]:
    """Every stage of a differentiated plan with a timing."""
    found = []
    for stage, timing in zip(plan.stages, plan.timing, strict=True):
        assert stage.training is not None
        where = plan.placement.forward[stage.index][0] if plan.placement else stage.index
        device = plan.cluster.devices[where]
        found.append(StageWork(stage.training, device, timing.compute_seconds))
    return found


def stage_times(plan: Plan, rule: VersionRule = _FLUSH, microbatches: int = 1) -> Times:
    """Seconds of F, B, I, W and a step per stage.

    Those of the costs where the whole stage was measured. Else B takes twice F, I and W once,
    plus what each recomputes, and a step takes no time.

    Args:
        plan: With stages and timing.
        rule: When weights change: how many microbatches add to one update, and whether a step
            leaves older versions as they are.
        microbatches: Of one round.
    """
    found = [measured_stage(plan, s) or _estimated(plan, s.index) for s in plan.stages]
    if not plan.differentiated:
        return Times.of_stages([c.F for c in found])
    per_update = min(rule.update_every or microbatches, microbatches)
    share = 1 - 1 / per_update
    times = Times.of_stages(
        [c.F for c in found],
        [c.B + share * c.accumulate for c in found],
        [c.I for c in found],
        [c.W + share * c.accumulate for c in found],
    )
    in_place = rule.name == _FLUSH.name
    step = tuple(c.step if in_place else c.step_copied for c in found)
    together = tuple(t.together_seconds for t in plan.timing)
    return dataclasses.replace(times, step=step, together=together)


def _estimated(plan: Plan, stage: int) -> StageCost:
    forward = plan.timing[stage].compute_seconds
    training = plan.stages[stage].training
    if training is None:
        return StageCost(forward)
    if backward := plan.timing[stage].backward_seconds:
        step = plan.timing[stage].step_seconds
        return StageCost(
            forward, B=backward, I=backward / 2, W=backward / 2, step=step, step_copied=step
        )
    work, half = stage_work(plan)[stage], BACKWARD_OVER_FORWARD / 2
    return StageCost(
        forward,
        B=2 * half * forward + work.again(training.B),
        I=half * forward + work.again(training.I),
        W=half * forward + work.again(training.W),
    )


def working_bytes(training: Training) -> int:
    """Most bytes of recomputed values that are alive at a time while B, I or W runs."""
    mine = {n.name for n in training.F.calls}
    graphs = (training.B, training.I, training.W)
    return max(peak_live_bytes(g, counted=_calls_among(g, mine)) for g in graphs)


def _calls_among(graph: Graph, names: set[str]) -> set[str]:
    return {n.name for n in lower(graph).graph.calls if n.name in names}
