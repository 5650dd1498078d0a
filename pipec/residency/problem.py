"""What a stage saves for its backward, and what keeping, moving or recomputing it costs."""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipec.errors import PartitionError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KEEP, OFFLOAD, RECOMPUTE = 0, 1, 2


@dataclass(frozen=True)
class Working:
    """What a backward holds because it computes values again.

    Attributes:
        nbytes: Bytes.
        alive: Those of values alive at the fullest moment.
        values: The recomputed values without which they would not be.
    """

    nbytes: float
    alive: float
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """One stage that runs forwards and backwards by turns, ``flight`` microbatches in flight.

    ```text
    F4 B0 F5 B1 F6 B2 ...        flight 5: at the end of F4, microbatches 0 to 4 wait
    ```

    Or one whose forward and backward run on two devices (PipeFB): then every value leaves, or is
    computed again, and ``flight`` means nothing.

    Copies run behind whole actions: a value can leave when its forward has ended, and must be
    back before its backward begins. Memory counts a microbatch's values from the begin of its
    forward to the end of its backward, less while they are on the host.

    Attributes:
        nbytes: Bytes per value, [values].
        recompute: Seconds to compute a value again; infinite where that is not allowed, [values].
        forward: Seconds of one forward.
        backward: Seconds of one backward that recomputes nothing.
        cap: Bytes that saved values may take on the device, those of all microbatches in flight.
        bandwidth: Bytes per second to the host, and at the same time back; 0: nothing leaves.
        flight: Most microbatches between begin of forward and end of backward.
        alternates: Whether forwards and backwards take turns at the fullest (1F1B); else all
            ``flight`` forwards come first, then all backwards (GPipe).
        together: Sets of values that are alive at one moment of the backward if they are computed
            again, with their bytes; each value alone if absent.
        working: What a backward holds because a decision computes values again; the most of
            ``together`` if absent. It may be slow to compute.
        learnt: What `working` has returned that was not known, the most bytes first.
        behind: Bytes that saved values, and those computed again, may take on the device of the
            backward, where that is another one; ``cap`` is then that of the forward's.
        parts: Whether, there, a part may leave and come while nothing is computed (depth 1).

    Raises:
        PartitionError: Lengths that differ, or numbers that are negative or out of range.
    """

    nbytes: FloatArray
    recompute: FloatArray
    forward: float
    backward: float
    cap: float
    bandwidth: float
    flight: int = 1
    alternates: bool = True
    together: Sequence[Mapping[int, float]] = ()
    working: Callable[[IntArray], Working] | None = None
    learnt: list[Working] = field(default_factory=list)
    behind: float | None = None
    parts: bool = True

    def __post_init__(self) -> None:
        if len(self.recompute) != len(self.nbytes):
            got = [len(self.nbytes), len(self.recompute)]
            raise PartitionError("residency: arrays of unlike lengths", got=got)
        numbers = (self.forward, self.backward, self.cap, self.bandwidth)
        if min(*numbers, self.nbytes.min(initial=0), self.recompute.min(initial=0)) < 0:
            raise PartitionError("residency: a size or a time is negative")
        if self.flight < 1:
            raise PartitionError("residency: no microbatch in flight", got=self.flight, want="1")

    @property
    def values(self) -> int:
        """Number of saved values."""
        return len(self.nbytes)

    @property
    def full(self) -> float:
        """Bytes with which the cap is just kept, as sums are rounded."""
        return self.cap * (1 + 1e-12)

    @property
    def step_seconds(self) -> float:
        """One forward and one backward with everything kept; of two devices the slower one's."""
        if self.behind is not None:
            return max(self.forward, self.backward)
        return self.forward + self.backward

    @property
    def moves(self) -> bool:
        """Whether copies can save anything: between a forward and its own backward they do not."""
        return self.bandwidth > 0 and (self.flight > 1 or self.behind is not None)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths of slots that values may leave in."""
        if not self.moves:
            return ()
        return (1, 2, 0) if self.behind is None else (1, 2) if self.parts else (2,)

    def allows(self, value: int, kind: int) -> bool:
        """Whether a value can be kept, offloaded or recomputed."""
        if kind == RECOMPUTE:
            return bool(np.isfinite(self.recompute[value]))
        return self.moves if kind == OFFLOAD else self.behind is None

    def bytes_of(self, decision: IntArray, kind: int) -> float:
        """Bytes of one microbatch's values with this decision."""
        return float(self.nbytes[decision == kind].sum())

    def again_seconds(self, decision: IntArray) -> float:
        """Seconds that one backward computes again."""
        return float(self.recompute[decision == RECOMPUTE].sum())

    @cached_property
    def alive(self) -> FloatArray:
        """Bytes of each value by the moment at which it is alive, (moments, values)."""
        sets = self.together or [{v: float(b)} for v, b in enumerate(self.nbytes)]
        table = np.zeros((len(sets), self.values))
        for row, found in zip(table, sets, strict=True):
            row[list(found)] = list(found.values())
        return table

    def least_working(self, decision: IntArray) -> float:
        """Bytes that a backward holds at least because it computes values again."""
        again = decision == RECOMPUTE
        those = set(np.flatnonzero(again).tolist())
        known = next((w.alive for w in self.learnt if those.issuperset(w.values)), 0.0)
        return max(float((self.alive @ again).max(initial=0.0)), known)

    def working_bytes(self, decision: IntArray) -> float:
        """Bytes that a backward holds because it computes values again."""
        least = self.least_working(decision)
        if self.working is None:
            return least
        found = self.working(decision)
        if found.alive > least * (1 + 1e-9):
            insort(self.learnt, found, key=lambda w: -w.alive)
        return max(least, found.nbytes)

    def room(self, working: float) -> float:
        """Bytes for saved values on the fuller of two devices, if a backward holds so many more."""
        return self.cap if self.behind is None else min(self.cap, self.behind - working)

    def keep_all(self) -> IntArray:
        """The decision to keep everything."""
        return np.full(self.values, KEEP, np.int64)
