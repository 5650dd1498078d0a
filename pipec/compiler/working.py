"""What recomputing takes of a stage: seconds of every value, and the bytes that B then holds."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from torch import fx

from pipec.autodiff.model import Training
from pipec.autodiff.rewrite import Replay, Replays
from pipec.compiler.residency import StageWork, saved_in_order
from pipec.compiler.stage_timing import holder, own_bytes, peak_of
from pipec.graph.comm import is_comm
from pipec.graph.ir import nbytes
from pipec.residency.problem import RECOMPUTE, FloatArray, IntArray, Working


def values_of(work: StageWork, *, recompute: bool) -> tuple[FloatArray, FloatArray]:
    """Bytes of every saved value, in the order of `saved_in_order`, and seconds to redo it."""
    names = saved_in_order(work.training)
    sizes = {v.name: float(v.nbytes) for v in work.training.saved}
    again = [work.recompute(n) if recompute else inf for n in names]
    return np.array([sizes[n] for n in names]), np.array(again)


def together(training: Training) -> list[dict[int, float]]:
    """Values that are alive while each saved value is computed again: itself and what it reads."""
    names = saved_in_order(training)
    at, nodes = {n: v for v, n in enumerate(names)}, training.F.nodes
    found = []
    for v, name in enumerate(names):
        alive = {v: float(own_bytes(nodes[name]))}
        for read in {holder(n) for n in nodes[name].all_input_nodes} - {holder(nodes[name])}:
            if read.name in at:
                alive[at[read.name]] = float(own_bytes(read))
            elif read.op == "call_function":
                alive[v] += own_bytes(read)
        found.append(alive)
    return found


@dataclass(frozen=True)
class WorkingBytes:
    """Bytes that recomputing costs: values alive in B, and inputs that are saved in their place."""

    training: Training
    flight: int
    known: dict[frozenset[str], Working] = field(default_factory=dict)

    def __call__(self, decision: IntArray) -> Working:
        """See `Problem.working`; decisions that were asked for are remembered."""
        again = frozenset(self._names[v] for v in np.flatnonzero(decision == RECOMPUTE).tolist())
        if again not in self.known:
            self.known[again] = self._working(again)
        return self.known[again]

    def _working(self, again: frozenset[str]) -> Working:
        """As of `recomputed`, from the order of its nodes alone."""
        replays = Replays(self.training, again)
        new, old = self._bytes(replays.read), self._bytes({*self._names} - again)
        each = (replays.B, replays.I, replays.W)
        alive, nodes = max(map(self._peak, each), key=lambda p: p[0])
        values = tuple(v for v, name in enumerate(self._names) if name in again & nodes)
        return Working(alive + self.flight * (new - old), alive, values)

    def _peak(self, replay: Replay) -> tuple[int, frozenset[str]]:
        results = [o.node for o in replay.outputs]
        return peak_of(replay.nodes, results, replay.computed & self._calls)

    def _bytes(self, names: Collection[str]) -> float:
        """Bytes that these values of F take if they are saved."""
        return float(sum(nbytes(n) for name, n in self._nodes.items() if name in names))

    @cached_property
    def _names(self) -> list[str]:
        return saved_in_order(self.training)

    @cached_property
    def _nodes(self) -> dict[str, fx.Node]:
        return self.training.F.nodes

    @cached_property
    def _calls(self) -> set[str]:
        return {n.name for n in self.training.F.calls if not is_comm(n)}
