"""Saved values of a candidate that does not fit: which leave or come by recompute, per stage.

Each stage is a residency problem over its nodes; what the optimiser chooses becomes host slots in
the schedule, a longer backward, and less that is saved, and the whole is simulated as a plan is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipec.compiler.fit import in_flight
from pipec.compiler.timeline import copies
from pipec.explore.layout import Layout
from pipec.partition.costgraph import CostGraph
from pipec.partition.result import CutResult
from pipec.residency.choose import Choice, choose
from pipec.residency.problem import KEEP, OFFLOAD, RECOMPUTE, FloatArray, Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import Memory
from pipec.simulate.simulate import simulate
from pipec.simulate.timeline import Timeline
from pipec.simulate.times import Times

ROUNDS = 4
"""How often room is made where the simulation finds a device fuller than its stages foresaw."""


@dataclass(frozen=True)
class Fitted:
    """A candidate's timeline with saved values that leave or are computed again.

    Attributes:
        timeline: Of the schedule with its copies.
        recomputed: Share of the saved bytes that is computed again.
        offloaded: Share of the saved bytes that waits in host memory.
    """

    timeline: Timeline
    recomputed: float
    offloaded: float


@dataclass(frozen=True)
class Fitting:
    """What is to be fitted.

    Attributes:
        prepared: The schedule, communication included.
        layout: Its devices.
        problem: The model at the candidate's microbatch.
        cut: Its stages.
        seconds: Forward seconds, [classes of devices, nodes].
        times: Seconds without offload and recompute.
        memory: Bytes with everything kept.
    """

    prepared: Prepared
    layout: Layout
    problem: CostGraph
    cut: CutResult
    seconds: FloatArray
    times: Times
    memory: Memory

    def best(self) -> Fitted:
        """The residency that adds the least time stage by stage, simulated as a whole.

        Raises:
            DoesNotFitError: A stage does not fit, whatever leaves or is computed again.
        """
        limits = np.array(self.layout.memory_bytes)
        home = [d[0] for d in self._schedule.placement.forward]
        bare = replace(self.memory, saved=[0.0] * self._schedule.stages)
        fixed = np.array(simulate(self.prepared, self.times, bare).peak_bytes)
        room = limits - fixed
        found = self._play(self._choices(home, room))
        for _ in range(ROUNDS):
            over = np.array(found.timeline.peak_bytes) - limits
            if (over <= 0).all():
                break
            room -= np.where(over > 0, over + limits * 1e-6, 0.0)
            found = self._play(self._choices(home, room))
        return found

    @property
    def _schedule(self) -> Schedule:
        return self.prepared.schedule

    def _choices(self, home: Sequence[int], room: FloatArray) -> list[tuple[Problem, Choice]]:
        """Every stage's problem and the optimiser's choice; stages share the room of a device."""
        turns = in_flight(self._schedule)
        wanted = np.array([t.most for t in turns]) * np.array(self.memory.saved)
        held = np.bincount(home, wanted, len(room))
        found = []
        for s, at in enumerate(home):
            sizes, again = self._values(s, at)
            problem = Problem(
                nbytes=sizes,
                recompute=again,
                forward=self.times.compute[ActionKind.F][s],
                backward=self.times.compute[ActionKind.B][s],
                cap=max(room[at] * wanted[s] / max(held[at], 1.0), 0.0),
                bandwidth=self.layout.devices[at].host_bandwidth / list(home).count(at),
                flight=max(turns[s].most, 1),
                alternates=turns[s].alternates,
            )
            found.append((problem, choose(problem, improve=False)))
        return found

    def _values(self, stage: int, at: int) -> tuple[FloatArray, FloatArray]:
        """Bytes of every value that a stage saves, and seconds to compute it again.

        A node's output is a value; computing it again takes its forward.
        """
        saved = self.problem.activation_bytes
        nodes = np.flatnonzero((self.cut.stage == stage) & (saved > 0))
        row = self.problem.classes.index(self.layout.devices[at].kind)
        return saved[nodes], self.seconds[row, nodes]

    def _play(self, choices: Sequence[tuple[Problem, Choice]]) -> Fitted:
        slots, again, kept, working = list[Channel](), [], [], []
        for s, (problem, choice) in enumerate(choices):
            sizes = problem.nbytes
            for slot in choice.slots:
                size = int(sizes[list(slot.values)].sum())
                name = f"s{s}.host{len(slots)}"
                slots.append(Channel(ChannelKind.H, s, s, name, size, slot.depth))
            redone = choice.decision == RECOMPUTE
            again.append(problem.again_seconds(choice.decision))
            kept.append(float(sizes[choice.decision == KEEP].sum()))
            working.append(float(sizes[redone].max(initial=0.0)))
        prepared = self.prepared
        if slots:
            prepared = Prepared.of(insert_offload(self._schedule, slots))
        memory = replace(
            self.memory, saved=kept, workspace={k: working for k in ("B", "I", "W") if any(working)}
        )
        timeline = simulate(prepared, self._times(prepared.schedule, again), memory)
        whole = max(sum(float(p.nbytes.sum()) for p, _ in choices), 1.0)
        shares = [
            sum(p.bytes_of(c.decision, kind) for p, c in choices) / whole
            for kind in (RECOMPUTE, OFFLOAD)
        ]
        return Fitted(timeline, *shares)

    def _times(self, schedule: Schedule, again: Sequence[float]) -> Times:
        """Longer backwards, and copies; transfers keep their channels."""
        compute = dict(self.times.compute)
        for kind in (ActionKind.B, ActionKind.I, ActionKind.W):
            compute[kind] = tuple(t + a for t, a in zip(compute[kind], again, strict=True))
        before = self._schedule.channels
        assert isinstance(self.times.transfer, tuple)
        known = {
            (c.kind, c.src, c.dst): row for c, row in zip(before, self.times.transfer, strict=True)
        }
        return replace(
            self.times,
            compute=compute,
            transfer=tuple(known.get((c.kind, c.src, c.dst), (0.0,)) for c in schedule.channels),
            host=copies(schedule, self.layout.devices),
        )
