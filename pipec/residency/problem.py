"""What a stage saves for its backward, when, and what keeping, moving or recomputing it costs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipec.errors import PartitionError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KEEP, OFFLOAD, RECOMPUTE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Problem:
    """One forward and one backward over the same slots, in opposite order.

    Forward slot e takes ``forward[e]`` seconds and produces some values; backward slot e takes
    ``backward[e]`` seconds and is the last to read values whose ``used`` is e.

    Attributes:
        nbytes: Bytes per value, [values].
        recompute: Seconds to compute a value again; infinite where that is not allowed, [values].
        produced: Forward slot of each value, ascending, [values].
        used: Backward slot that reads a value first and frees it after, [values].
        forward: Seconds per slot, [slots].
        backward: Seconds per slot, [slots].
        cap: Bytes that saved values may take on the device.
        bandwidth: Bytes per second to the host, and back.

    Raises:
        PartitionError: Lengths that differ, or numbers that are negative or out of range.
    """

    nbytes: FloatArray
    recompute: FloatArray
    produced: IntArray
    used: IntArray
    forward: FloatArray
    backward: FloatArray
    cap: float
    bandwidth: float

    def __post_init__(self) -> None:
        values, slots = len(self.nbytes), len(self.forward)
        lengths = [len(self.recompute), len(self.produced), len(self.used)]
        if lengths != [values] * 3 or len(self.backward) != slots:
            raise PartitionError("residency: arrays of unlike lengths", got=lengths, want=values)
        numbers = (self.nbytes, self.recompute, self.forward, self.backward)
        if any((a < 0).any() for a in numbers) or self.cap < 0 or self.bandwidth < 0:
            raise PartitionError("residency: a size or a time is negative")
        for name, index in (("produced", self.produced), ("used", self.used)):
            if values and not (index.min() >= 0 and index.max() < slots):
                raise PartitionError(f"residency: {name} is no slot", want=f"0 to {slots - 1}")
        if (np.diff(self.produced) < 0).any():
            raise PartitionError("residency: values must be in the order of production")

    @property
    def values(self) -> int:
        """Number of saved values."""
        return len(self.nbytes)

    @property
    def slots(self) -> int:
        """Number of forward (and of backward) slots."""
        return len(self.forward)

    @property
    def step_seconds(self) -> float:
        """Forward and backward with everything kept."""
        return float(self.forward.sum() + self.backward.sum())

    def per_slot(self, of: IntArray, weights: FloatArray) -> FloatArray:
        """Sum of ``weights`` over the values of each slot, by ``produced`` or ``used``."""
        return np.bincount(of, weights, self.slots).astype(np.float64)
