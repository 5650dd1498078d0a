"""A signal that ends a block as Ctrl-C does, so that what the block has made or started goes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_WEAK = ("weak.py", "weakref.py", "_weakrefset.py")
"""Files of torch and Python whose functions are called when an object that they watch goes."""
_CALLED_BACK = ("__torch_dispatch__", "__del__")
"""Functions that torch's C++ calls, or the end of an object."""
AGAIN = 0.005
"""Seconds after which a signal is tried again that came at a wrong moment."""


@contextmanager
def interrupt_on(number: signal.Signals) -> Iterator[None]:
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
    """Raise `KeyboardInterrupt`; a little later where nobody would get it.

    Some callers in torch's C++ let no exception pass: the process would abort, and leave what it
    has made. What is raised while an object is destroyed, Python prints and forgets.
    """
    del number
    at = frame
    while at is not None and at.f_code.co_name not in _CALLED_BACK:
        if Path(at.f_code.co_filename).name in _WEAK:
            break
        at = at.f_back
    if at is not None and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, interrupt):
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        return
    raise KeyboardInterrupt
