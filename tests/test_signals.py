"""A Ctrl-C at a moment when Python or torch would lose it comes a little later instead."""

import os
import signal
import time
import weakref
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipec.signals import interrupt_on


def strike() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    signal.getsignal(signal.SIGINT)  # Python runs the handler between two instructions


class Ends:
    """An object that is destroyed at once."""

    def __del__(self) -> None:
        strike()


def watched() -> None:
    """An object whose end calls a function of a file ``weak.py``."""
    space: dict[str, Callable[..., None]] = {"strike": strike}
    exec(compile("def remove(_): strike()", "torch/utils/weak.py", "exec"), space)
    it = TorchDispatchMode()
    gone = weakref.ref(it, space["remove"])
    del it
    assert gone() is None


def dispatched() -> None:
    class Strikes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            strike()
            return func(*args, **(kwargs or {}))

    with Strikes():  # type: ignore[no-untyped-call]
        torch.zeros(1)


@pytest.mark.parametrize("moment", [Ends, watched, dispatched])
def test_an_interrupt_is_late_but_not_lost(moment: Callable[[], object]) -> None:
    before, reached = signal.getsignal(signal.SIGALRM), list[str]()

    def run() -> None:
        with interrupt_on(signal.SIGINT):
            moment()
            reached.append("behind it")
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert reached
    signal.signal(signal.SIGALRM, before)
