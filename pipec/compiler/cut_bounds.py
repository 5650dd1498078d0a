"""A bound on the time of many cuts at once, and how many bytes each needs at least.

The schedule's compute actions are played for all cuts together, one array per action. Left out is
what can only add time: links that are busy, channels that are full, and reductions. So no
cut of a schedule is faster than its bound, and where links are not crowded the two are equal.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.schedule.action import ActionKind
from pipec.schedule.dependencies import dependencies
from pipec.schedule.lanes import assign_lanes, previous_in_lane
from pipec.schedule.schedule import Schedule
from pipec.schedule.tables import Tables
from pipec.simulate.simulate import simulate
from pipec.simulate.times import Times

_K = ActionKind
CELLS = 2_000_000
"""Actions times cuts that are played at a time."""


@dataclass(frozen=True, eq=False)
class Work:
    """Seconds of the stages of many cuts, [cuts, stages] each.

    Attributes:
        forward: Seconds of F.
        backward: Seconds of B, the first of its update; I and W take half of it each.
        added: What B or W takes longer on average, as it adds to gradients that are there.
        step: Seconds of a step.
    """

    forward: FloatArray
    backward: FloatArray
    added: FloatArray
    step: FloatArray


@dataclass(frozen=True, eq=False)
class Crossing:
    """What it takes to hand one microbatch from a stage to another, per cut.

    Attributes:
        seconds: Seconds of all its messages, one after the other, [cuts].
        there: Whether there is any, [cuts].
    """

    seconds: FloatArray
    there: npt.NDArray[np.bool_]


Ways = Mapping[tuple[int, int], Crossing]
"""From a stage to one behind it activations, to one before it gradients, to itself what it saves;
nothing where no cut has any."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A schedule of compute actions, ready to be played on many cuts.

    Where it has no steps, each comes behind all else of its stage if there is a flush.
    """

    schedule: Schedule

    def seconds(self, work: Work, ways: Ways) -> FloatArray:
        """A time that no step of these cuts is faster than, [cuts], from what their stages take."""
        rows = (work.forward, work.backward, work.added, work.step)
        found, size = np.zeros(len(rows[0])), max(1, CELLS // max(1, len(self.schedule)))
        for k in range(0, len(found), size):
            part = slice(k, k + size)
            each = {ends: Crossing(c.seconds[part], c.there[part]) for ends, c in ways.items()}
            found[part] = self._play(Work(*(row[part].T for row in rows)), each)
        return found

    def _play(self, work: Work, ways: Ways) -> FloatArray:
        """`seconds`, with the cuts along the last axis."""
        s, half = self.schedule, work.backward / 2
        full = work.backward + work.added
        took = {_K.F: work.forward, _K.B: full, _K.I: half, _K.W: half + work.added}
        if s.lanes.compute == "split":
            took = dict.fromkeys(took, work.forward + full)
        took[_K.STEP] = work.step
        behind = work.step if s.rule.flush and s.training else np.zeros_like(half)
        kinds, stage = s.kind.tolist(), s.stage.tolist()
        ends: list[FloatArray] = [half[0]] * len(s)
        last = np.zeros(half.shape[1])
        waits = self._waits(frozenset(ways))
        for index in self._order:
            begin = np.zeros_like(last)
            for awaited in waits[index]:
                end, ends_at = ends[awaited], (stage[awaited], stage[index])
                if kinds[awaited] == _K.F or ends_at[0] != ends_at[1]:
                    if (way := ways.get(ends_at)) is None:
                        continue
                    end = np.where(way.there, end + way.seconds, 0.0)
                begin = np.maximum(begin, end)
            if self._before[index] < len(s):
                begin = np.maximum(begin, ends[self._before[index]])
            ends[index] = begin + took[_K(kinds[index])][stage[index]]
            last = np.maximum(last, ends[index] + behind[stage[index]])
        return last

    @cached_property
    def _order(self) -> list[int]:
        """The actions, each behind all that it waits for."""
        end = simulate(self.schedule, Times.uniform(self.schedule.stages)).end
        return np.argsort(end, kind="stable").tolist()  # type: ignore[no-any-return]

    def _waits(self, ways: Collection[tuple[int, int]]) -> list[list[int]]:
        """What each action waits for on its own stage and on those that send it something."""
        s, n, at = self.schedule, len(self.schedule), Tables(self.schedule)
        columns = dependencies(s).columns
        rows = np.stack(columns, axis=1).tolist() if columns else [[]] * n
        stage, kinds, found = s.stage.tolist(), s.kind.tolist(), []
        tables = {_K.F: at.forward, _K.B: at.backward, _K.I: at.backward}
        for k, row in enumerate(rows):
            waits = {a for a in row if a < n and abs(stage[a] - stage[k]) <= 1}
            table, b, ahead = tables.get(kinds[k]), stage[k], kinds[k] == _K.F
            if table is not None:
                senders = [a for a, end in ways if end == b and (a < b if ahead else a > b)]
                waits.update(table[senders, s.microbatch[k]].tolist())
            found.append(sorted(waits - {n, n + 1}))
        return found

    @cached_property
    def _before(self) -> list[int]:
        """The action before each one on its lane; the number of actions where there is none."""
        return previous_in_lane(assign_lanes(self.schedule)).tolist()  # type: ignore[no-any-return]


def stage_sums(cuts: IntArray, rows: FloatArray) -> FloatArray:
    """Every stage's part of something that units have, [cuts, stages].

    Args:
        cuts: Stage of every unit, [cuts, units].
        rows: What a unit has on the device of each stage, [stages, units].
    """
    found = np.zeros((len(cuts), len(rows)))
    for s, row in enumerate(rows):
        found[:, s] = (cuts == s) @ row
    return found
