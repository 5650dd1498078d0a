"""Simulated annealing of chunks: one unit at a time moves between its producers and consumers.

The energy is a smooth largest load, log(sum of loads^16) / 16; the method is that of Kirkpatrick et
al., Science 1983. A move changes two devices, so a step costs as much as the unit has hyperedges.
"""

import random
from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from pipec.partition import clock
from pipec.partition.costgraph import IntArray
from pipec.partition.units import Units

SHARPNESS = 16
STEPS = 400_000  # of the first runs
BATCH = 2_048
NEAR = 0.7  # share of the moves that go to a neighbouring chunk
HOT, COLD = (0.03, 0.1, 0.003), 2e-5  # relative rise of the energy that is taken one time in e


@dataclass(eq=False)
class _Placement:
    """Chunk of every unit and what follows from it, as plain lists: single numbers change."""

    units: Units
    row: int
    devices: int
    chunks: int
    chunk: list[int]

    def __post_init__(self) -> None:
        units, k = self.units, self.devices
        self.work: list[float] = units.work[self.row].tolist()
        self.held: list[float] = (units.weight_bytes + units.activation_bytes).tolist()
        self.price: list[float] = units.cost[0].tolist()
        self.degree: list[int] = np.diff(units.pin_ptr).tolist()
        self.edges: list[list[int]] = [[] for _ in range(units.size)]
        self.count = [[0] * k for _ in self.degree]
        self.loads, self.memory = [0.0] * k, [0.0] * k
        for h, v in zip(units.pin_edge().tolist(), units.pin.tolist(), strict=True):
            self.edges[v].append(h)
            self.count[h][self.chunk[v] % k] += 1
        for v, p in enumerate(self.chunk):
            self.loads[p % k] += self.work[v]
            self.memory[p % k] += self.held[v]
        for h, degree in enumerate(self.degree):
            for d in range(k):
                if 0 < self.count[h][d] < degree:
                    self.loads[d] += self.price[h]

    def change(self, v: int, a: int, b: int) -> tuple[float, float]:
        """What moving a unit from device a to device b adds to their loads."""
        less, more = -self.work[v], self.work[v]
        for h in self.edges[v]:
            count, degree, price = self.count[h], self.degree[h], self.price[h]
            if count[a] == degree:
                less += price
            elif count[a] == 1:
                less -= price
            if count[b] == 0:
                more += price
            elif count[b] == degree - 1:
                more -= price
        return less, more

    def move(self, v: int, p: int, a: int, b: int) -> None:
        """Puts a unit of device a into chunk p of device b; the loads are the caller's."""
        self.chunk[v] = p
        for h in self.edges[v]:
            self.count[h][a] -= 1
            self.count[h][b] += 1
        self.memory[a] -= self.held[v]
        self.memory[b] += self.held[v]


def anneal(
    units: Units,
    row: int,
    devices: int,
    chunks: int,
    memory_bytes: float,
    starts: list[IntArray],
    moves: int,
    deadline: float = inf,
    seed: int = 0,
) -> IntArray | None:
    """The best placement found from any start, chunk of every unit.

    Args:
        units: What is placed.
        row: Their device class.
        devices: k.
        chunks: Chunks per device; chunk p runs on device p mod k.
        memory_bytes: Limit per device; a start must keep it.
        starts: Chunk of every unit each; chunks never fall along the precedence.
        moves: How many moves are tried in all. The same number finds the same placement.
        deadline: When to stop before that (`pipec.partition.clock.now`).
        seed: Of the moves; another one finds other placements.
    """
    best: tuple[float, IntArray | None] = inf, None
    turn = 0
    while starts and moves > 0 and clock.now() <= deadline:
        rng = random.Random(seed + turn)  # noqa: S311 - reproducible, nothing secret
        cycle, number = divmod(turn, len(starts))
        start = _Placement(units, row, devices, chunks, starts[number].tolist())
        # ever longer runs: most of the moves go to one that ends cold
        steps = min(STEPS << (cycle // len(HOT)), moves)
        cooling = _Cooling(start, memory_bytes, HOT[cycle % len(HOT)], steps, rng)
        value, found = cooling.run(deadline)
        if value < best[0]:
            best = value, np.array(found, np.int64)
        turn += 1
        moves -= steps
    return best[1]


class _Cooling:
    """One run from hot to cold."""

    def __init__(
        self, at: _Placement, memory_bytes: float, hot: float, steps: int, rng: random.Random
    ) -> None:
        self._at, self._limit, self._hot, self._steps, self._rng = at, memory_bytes, hot, steps, rng
        self._scale = max(at.loads) or 1.0
        self._parts = [(load / self._scale) ** SHARPNESS for load in at.loads]
        self._total = sum(self._parts)
        self._best = max(at.loads), list(at.chunk)
        self._floor = (self._best[0] / self._scale) ** SHARPNESS

    def run(self, deadline: float) -> tuple[float, list[int]]:
        """Least largest load on the way, and its chunks."""
        for step in range(0, self._steps, BATCH):
            heat = SHARPNESS * self._hot * (COLD / self._hot) ** (step / self._steps)
            self._total = sum(self._parts)  # free of what rounding has added up
            self._batch(heat)
            if clock.now() > deadline:
                break
        return self._best

    def _batch(self, heat: float) -> None:
        """Some steps at one temperature."""
        at, uniform, k = self._at, self._rng.random, self._at.devices
        size, last = at.units.size, at.devices * at.chunks - 1
        succ, pred, chunk = at.units.succ, at.units.pred, at.chunk
        for _ in range(BATCH):
            v = int(uniform() * size)
            here = chunk[v]
            if uniform() < NEAR:
                p = here + 1 if uniform() < 0.5 else here - 1
            else:
                p = int(uniform() * (last + 1))
            if p > here:
                if p > last or any(chunk[u] < p for u in succ[v]):
                    continue
            elif p < 0 or any(chunk[u] > p for u in pred[v]):
                continue
            a, b = here % k, p % k
            if a == b:
                chunk[v] = p
            elif at.memory[b] + at.held[v] <= self._limit:
                self._try(v, p, heat * -log(1.0 - uniform()))

    def _try(self, v: int, p: int, rise: float) -> None:
        """Moves a unit if the energy does not rise by more."""
        at, parts, scale = self._at, self._parts, self._scale
        a, b = at.chunk[v] % at.devices, p % at.devices
        less, more = at.change(v, a, b)
        one, two = (at.loads[a] + less) / scale, (at.loads[b] + more) / scale
        one, two = one**SHARPNESS if one > 0 else 0.0, two**SHARPNESS
        total = self._total - parts[a] - parts[b] + one + two
        if total > self._total * exp(rise):
            return
        at.move(v, p, a, b)
        at.loads[a] += less
        at.loads[b] += more
        parts[a], parts[b], self._total = one, two, total
        # only a move that takes the largest load away can make a new best
        if total < len(parts) * self._floor and max(at.loads) < self._best[0] * (1 - 1e-12):
            self._best = max(at.loads), list(at.chunk)
            self._floor = (self._best[0] / scale) ** SHARPNESS
