"""A signal that ends a block as Ctrl-C does, so that what the block has made or started goes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwound_by(number: signal.Signals) -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block when the signal comes; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, end)
    try:
        yield
    finally:
        signal.signal(number, before)
