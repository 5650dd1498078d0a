"""What the limits of searches are measured with: seconds of work, or checks of the clock.

A second is one that this process works: on a machine that others load, a search takes longer but
finds the same. A search looks at the clock once per block of bounded work. Counting these looks
instead of seconds makes its result the same on every machine too.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_clock: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.process_time)


def now() -> float:
    """The time, in seconds of work of this process, or in looks at the clock within `counted`."""
    return _clock.get()()


def real() -> bool:
    """Whether `now` is in seconds."""
    return _clock.get() is time.process_time


class Pace:
    """How much longer than its work a search takes on this machine, since this was made.

    Solvers know no clock but the one on the wall; on a machine that others load they are given as
    much more of its time as the search needed so far.
    """

    def __init__(self) -> None:
        self._wall, self._work = time.perf_counter(), time.process_time()

    def wall(self, seconds: float) -> float:
        """Time on the wall for so much work."""
        wall, work = time.perf_counter() - self._wall, time.process_time() - self._work
        return seconds * max(1.0, wall / work if work > 0 else 1.0)


@contextmanager
def counted() -> Iterator[None]:
    """Within, limits of time count looks at the clock."""
    looks = itertools.count()
    token = _clock.set(lambda: float(next(looks)))
    try:
        yield
    finally:
        _clock.reset(token)
