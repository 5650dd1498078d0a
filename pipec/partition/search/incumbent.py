"""The best cut found so far, and how to offer it a better one."""

from dataclasses import dataclass
from math import inf

import numpy as np

from pipec.partition.costgraph import IntArray
from pipec.partition.machine import Machine, Step
from pipec.partition.search.family import Family
from pipec.partition.search.frontier import Path
from pipec.partition.units import Units


@dataclass(eq=False)
class Incumbent:
    """The best cut so far.

    Attributes:
        value: Objective of the path.
        stage: Stage of every node.
        steps: Device step of every stage.
        found: The method that found it.
    """

    value: float = inf
    stage: IntArray | None = None
    steps: tuple[Step, ...] = ()
    found: str = ""

    def offer(self, units: Units, family: Family, path: Path | None, found: str) -> bool:
        """Takes a path if it is better."""
        if path is None or path.value >= self.value:
            return False
        stage = np.zeros(units.size, np.int64)
        for place in reversed(range(len(path.rows))):
            stage[family.members(path.rows[place])] = place
        assert (stage[units.edges[:, 0]] <= stage[units.edges[:, 1]]).all(), found
        self.value, self.steps, self.found = path.value, path.steps, found
        self.stage = stage[units.of_node]
        return True


def name_devices(machine: Machine, steps: tuple[Step, ...]) -> list[int]:
    """Device of each stage: the one of the step, or the next unused one of its kind."""
    left = {
        kind: [d for d, device in enumerate(machine.devices) if device == machine.kinds[kind]]
        for kind in range(len(machine.kinds))
    }
    return [left[s.kind].pop(0) if s.device < 0 else s.device for s in steps]
