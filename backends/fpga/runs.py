"""Run tables: the firings of an engine for one frame, exactly.

A `Run` is a number of equal firings; a `Loop` repeats runs. Times follow from one rule, the same
in the simulator, in the C++ built with timestamps and in hardware:

```text
t[i]    = max(t[i-1] + delta, vis(token) of every port read, free(slot) of every port written)
vis     = t + D of the writer's firing;   free = t + 1 of the reader's firing
a stream of depth N has N + D slots (tokens in flight own theirs); the first firing is at 0
```

This is a free-running pipeline; of rigid ones see `simulator.native.simulate`.

``delta`` is the initiation interval times the firings without input or output in between. The
cycles of a table, ``sum(count * delta)``, are the engine's busy cycles per frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Equal firings.

    Attributes:
        count: Number of firings.
        delta: Cycles from the firing before to each of them, at least.
        reads: Bit k: each reads a token of input k.
        writes: Bit k: each writes a token of output k.
    """

    count: int
    delta: int
    reads: int = 0
    writes: int = 0


@dataclass(frozen=True)
class Loop:
    """``times`` repetitions of a body."""

    times: int
    body: "Runs"


Runs = tuple[Run | Loop, ...]
"""The runs and loops of one frame, in order."""


def cycles(table: Runs) -> int:
    """Busy cycles: ``sum(count * delta)``.

    Example:
        >>> cycles((Loop(10, (Run(7, 1, 1), Run(1, 1, 1, 1), Run(7, 8, 0, 1))),))
        640
    """
    return sum(
        item.count * item.delta if isinstance(item, Run) else item.times * cycles(item.body)
        for item in table
    )


def tokens(table: Runs, port: int, *, written: bool) -> int:
    """Tokens that a table reads from an input or writes to an output."""
    total = 0
    for item in table:
        if isinstance(item, Loop):
            total += item.times * tokens(item.body, port, written=written)
        elif (item.writes if written else item.reads) >> port & 1:
            total += item.count
    return total


def clean(table: Sequence[Run | Loop]) -> Runs:
    """Without empty runs and loops, and loops of one repetition opened."""
    found: list[Run | Loop] = []
    for item in table:
        if isinstance(item, Run):
            found.extend([item] if item.count else [])
        elif item.times:
            body = clean(item.body)
            found.extend(body if item.times == 1 else ([Loop(item.times, body)] if body else []))
    return tuple(found)
