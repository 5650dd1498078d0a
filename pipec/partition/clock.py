"""What the limits of searches are measured with: seconds of work, or checks of the clock.

A second is one that this thread works: on a machine that others load, a search takes longer but
finds the same. A search looks at the clock once per block of bounded work. Counting these looks
instead of seconds makes its result the same on every machine too.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_clock: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.thread_time)


def now() -> float:
    """The time, in seconds of work of this thread, or in looks at the clock within `counted`."""
    return _clock.get()()


def real() -> bool:
    """Whether `now` is in seconds."""
    return _clock.get() is time.thread_time


@contextmanager
def counted() -> Iterator[None]:
    """Within, limits of time count looks at the clock."""
    looks = itertools.count()
    token = _clock.set(lambda: float(next(looks)))
    try:
        yield
    finally:
        _clock.reset(token)
