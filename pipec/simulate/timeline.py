"""What a simulation says: times, bubble, use of every lane, memory over time, critical path."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipec.registry import load_view
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.lanes import Lanes, previous_in_lane
from pipec.schedule.schedule import Int32, Schedule
from pipec.simulate.engine import Prepared, run
from pipec.simulate.memory import Curve, Memory, Spans, curves, peaks
from pipec.simulate.spans import HeldMemory
from pipec.simulate.times import Float, Times


@dataclass(frozen=True, eq=False)
class Timeline:
    """A schedule with the time of every action.

    Attributes:
        prepared: What ran, with its lanes and dependencies.
        times: Seconds of every kind of action.
        memory: Bytes per stage.
        end: When each action ends, in the schedule's order.
    """

    prepared: Prepared
    times: Times
    memory: Memory
    end: Float

    def __repr__(self) -> str:
        return f"Timeline({self.schedule!r}: {self.seconds:.6g} long, bubble {self.bubble:.1%})"

    def __str__(self) -> str:
        """Drawn as text."""
        return str(load_view("timeline.text")(self))

    def _repr_svg_(self) -> str:
        return str(load_view("timeline.svg")(self))

    @property
    def seconds(self) -> float:
        """From the first start to the last end (the makespan)."""
        return float(self.end.max(initial=0.0))

    @property
    def schedule(self) -> Schedule:
        """What ran."""
        return self.prepared.schedule

    @property
    def lanes(self) -> Lanes:
        """The lanes of the schedule."""
        return self.prepared.queue

    @cached_property
    def _awaited(self) -> tuple[Int32, ...]:
        """What each action waits for, the one before it on its lane included."""
        latest = np.full(len(self.end), len(self.end), dtype=np.int32)
        for steps, awaited in self.prepared.waits.joint:
            latest[steps] = awaited[self.end[awaited].argmax()]
        return (latest, *self.prepared.waits.columns, previous_in_lane(self.prepared.queue))

    @cached_property
    def begin(self) -> Float:
        """When each action starts: exactly, not as end less duration."""
        ends = np.append(self.end, [0.0, np.inf])
        begin = np.zeros(len(self.end))
        for column in self._awaited:
            np.maximum(begin, ends[column], out=begin)
        return begin

    @cached_property
    def busy(self) -> Float:
        """Seconds of compute and steps of each device (of the whole device, where it is split)."""
        s = self.schedule
        compute = (s.kind <= ActionKind.W) | (s.kind == ActionKind.STEP)
        work = self.times.of_whole_device(s)[s.kind[compute], s.stage[compute]]
        return np.bincount(s.device[compute], work, minlength=s.devices).astype(np.float64)

    @property
    def bubble(self) -> float:
        """The share of device time without compute or a step: 1 - busy / (devices x seconds)."""
        whole = self.seconds * self.schedule.devices
        return 1.0 - float(self.busy.sum()) / whole if whole else 0.0

    @cached_property
    def lane_use(self) -> dict[str, float]:
        """Lane to the share of the time in which it is taken."""
        took = np.bincount(self.lanes.of, self.end - self.begin, minlength=len(self.lanes.names))
        share = took / self.seconds if self.seconds else took
        return {str(lane): float(u) for lane, u in zip(self.lanes.names, share, strict=True)}

    @cached_property
    def held(self) -> HeldMemory:
        """What is held from when to when."""
        return HeldMemory(self.schedule, self.prepared.at, self.begin, self.end)

    @cached_property
    def _counted(self) -> HeldMemory:
        """What is held where compute of no time takes a little: it holds things all the same."""
        s, little = self.schedule, self.seconds * 1e-9 or 1.0
        compute = s.kind <= ActionKind.W
        if (self.end > self.begin)[compute].all():
            return self.held
        work = {k: tuple(t or little for t in seconds) for k, seconds in self.times.compute.items()}
        times = replace(self.times, compute=work)
        end = run(self.prepared, times.durations(s)).end[:-2]
        return Timeline(self.prepared, times, self.memory, end).held

    @cached_property
    def peak_in_flight(self) -> tuple[float, ...]:
        """Most microbatches whose saved values a device holds at a time (`HeldMemory`)."""
        s = self.schedule
        if not s.training:
            return (1.0,) * s.devices
        return tuple(round(most, 9) for most in peaks(self._counted.in_flight(), s.devices))

    @cached_property
    def weight_versions(self) -> tuple[int, ...]:
        """Most weight versions of one stage that are alive at a time, per device."""
        s = self.schedule
        spans = self._counted.weights(Memory(weights=range(s.stages)))
        stage = spans.size.astype(np.int64)
        place = spans.device.astype(np.int64) * s.stages + stage  # one curve per stage and device
        found, where = np.unique(place, return_inverse=True)
        every = Spans("weights", where, spans.begin, spans.end, np.ones(len(place)))
        most = [0] * s.devices
        for place_, alive in zip(found.tolist(), peaks([every], len(found)), strict=True):
            device = place_ // s.stages
            most[device] = max(most[device], round(alive))
        return tuple(most)

    @cached_property
    def memory_curves(self) -> list[Curve]:
        """Bytes over time of every device, by category."""
        return curves(self.held.all(self.memory), self.schedule.devices)

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Most bytes held at a time, per device."""
        return tuple(c.peak for c in self.memory_curves)

    @cached_property
    def critical_path(self) -> list[int]:
        """Positions of the actions that the makespan consists of, first to last.

        Each starts the moment the one before it ends; the dependency is preferred to the order
        of the lane where both would do.
        """
        if not len(self.schedule):
            return []
        ends, before = np.append(self.end, [np.inf, np.inf]), np.full(len(self.end), -1)
        for column in reversed(self._awaited):
            last = ends[column] == self.begin
            before[last] = column[last]
        path = [int(self.end.argmax())]
        while self.begin[path[-1]] > 0:
            path.append(int(before[path[-1]]))
        return path[::-1]

    def action(self, index: int) -> tuple[Action, float, float]:
        """One action with its start and end."""
        return self.schedule[index], float(self.begin[index]), float(self.end[index])

    def to_json(self) -> dict[str, Any]:
        """What people and plans read; `pipec.simulate.simulate.from_json` reads it back."""
        curve = self.memory_curves
        return {
            "seconds": self.seconds,
            "bubble": self.bubble,
            "busy_seconds": self.busy.tolist(),
            "peak_in_flight": list(self.peak_in_flight),
            "weight_versions": list(self.weight_versions),
            "lane_use": self.lane_use,
            "peak_bytes": [c.peak for c in curve],
            "bytes_at_peak": [c.at_peak for c in curve],
            "critical_path": [str(self.schedule[k]) for k in self.critical_path],
            "times": self.times.to_json(),
            "memory": self.memory.to_json(),
        }
