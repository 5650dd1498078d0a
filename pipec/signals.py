"""A signal that ends a block as Ctrl-C does, so that what the block has made or started goes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.005
"""Seconds after which a signal is tried again that came at a wrong moment."""


@contextmanager
def unwound_by(number: signal.Signals) -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block when the signal comes; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; a little later where torch's C++ has called Python.

    Some of its callers let no exception pass: the process would abort, and leave what it has made.
    """
    del number
    at = frame
    while at is not None and at.f_code.co_name != "__torch_dispatch__":
        at = at.f_back
    if at is not None and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, interrupt):
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        return
    raise KeyboardInterrupt
