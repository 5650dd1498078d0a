"""What the limits of searches are measured with: seconds on the wall, or checks of the clock.

A search looks at the clock once per block of bounded work. Counting these looks instead of seconds
makes its result the same on every machine, however loaded.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_clock: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.perf_counter)


def now() -> float:
    """The time, in seconds, or in looks at the clock within `counted`."""
    return _clock.get()()


@contextmanager
def counted() -> Iterator[None]:
    """Within, limits of time count looks at the clock."""
    looks = itertools.count()
    token = _clock.set(lambda: float(next(looks)))
    try:
        yield
    finally:
        _clock.reset(token)
