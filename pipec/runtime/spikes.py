"""A gradient norm, or a loss, far above those before it: its update may undo thousands of others.

The rule is a robust one: of a window of the last values the median is not moved by the spikes among
them, and where all values have really become larger it follows within half a window.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median

_WINDOW, _FIRST = 64, 16
"""Values that the median is of, at most and at least."""


@dataclass
class Spikes:
    """Judges one value per update.

    Attributes:
        bound: A value is a spike that is above so many times the median; None for none.
        seen: The last values, spikes included.
        limit: The largest that the last one could be.

    Example:
        >>> spikes = Spikes(10.0)
        >>> [spikes.judge(norm) for norm in [1.0, 2.0] * 8 + [14.0, 30.0]][-2:]
        [False, True]
    """

    bound: float | None
    seen: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    limit: float = inf

    def judge(self, value: float) -> bool:
        """Note a value; whether it is a spike. What is not finite is none, and not noted."""
        if self.bound is None or not isfinite(value):
            return False
        usual = median(self.seen) if len(self.seen) >= _FIRST else 0.0
        self.limit = usual + (self.bound - 1) * abs(usual) if usual else inf
        self.seen.append(value)
        return value > self.limit
