"""What a rank says of its waiting for others: when it was in vain, and which of them stands still.

In a pipeline one rank that stands still lets all others wait, most of them for ranks that wait
themselves. So whoever waits for long writes into the store where it is and for what; when a wait
was in vain, those that have written nothing, or do not write again, are those that stand still.

```text
waits/0    4 round 3, at 0RECV_B2:x.grad, after 1SEND_B2:x.grad: waiting for x.grad, ... from rank 1
waits/1    5 round 3, at 1RECV_B2:y.grad, after 2SEND_B2:y.grad: waiting for y.grad, ... from rank 2
           how often it was written                                       rank 2 has been stopped
```
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Self, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pipec.errors import BackendError

PATIENCE = timedelta(minutes=5)
"""How long a rank waits for another by default."""
_LONG_SECONDS = 2.0
"""A wait after which a rank reports it to the others."""
_RESERVE_SECONDS = 3.0
"""What is left of a timeout to name who stands still, and to end."""
_STORE_SECONDS = 2.0
"""How long the store may take to tell what others wait for: it may be what stands still."""
_LAST = "-"
STANDS_STILL = "no sign of life"
CONSEQUENCE = "another rank did not answer"
_T = TypeVar("_T")


class _Waiting:
    """What this process waits for: at most one thing, since only its main thread waits."""

    what: str | None = None
    since = 0.0
    where: Callable[[], str] | None = None
    watch: "Watch | None" = None


class Watch:
    """Tells the other ranks what this one waits for, from a thread of its own."""

    def __init__(self, store: Store, rank: int, world: int, timeout: timedelta) -> None:
        self._store, self._rank, self._world = PrefixStore("waits", store), rank, world
        self._long = min(_LONG_SECONDS, timeout.total_seconds() / 4)
        self._ended, self._count = threading.Event(), 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        _Waiting.watch = self
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        _Waiting.watch = None
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._long / 8):
            try:
                self._tell()
            except RuntimeError:
                return  # the store is gone, and the group with it

    def _tell(self) -> None:
        """Write what is waited for; nothing of it is held until the next time."""
        what, where = _Waiting.what, _Waiting.where
        waits = what is not None and time.monotonic() - _Waiting.since > self._long
        if waits:
            place = where() if where else "outside the rounds"
            self._store.set(str(self._rank), f"{self._count} {place}: waiting for {what}")
        elif self._count:
            self._store.delete_key(str(self._rank))
        self._count = self._count + 1 if waits else 0

    def find_stuck(self, place: str) -> str | None:
        """The ranks that do not say that they wait, and who waits for them; None if all do.

        Args:
            place: What this one waited for: its last word.
        """
        self._ended.set()
        self._thread.join()
        self._store.set(str(self._rank), f"{_LAST} {place}")
        before = self._read_others()
        time.sleep(self._long / 4)
        others = {
            k: text.partition(" ")[2]
            for k, text in self._read_others().items()
            if text != before.get(k) or text.startswith(_LAST)
        }
        silent = [k for k in range(self._world) if k not in others and k != self._rank]
        if not silent:
            return None
        named = re.compile(rf"\brank ({'|'.join(map(str, silent))})\b")
        waiting = [f"rank {k} is in {text}" for k, text in others.items() if named.search(text)]
        waiting = waiting or [f"rank {k} is in {text}" for k, text in list(others.items())[:1]]
        ranks = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
        return "; ".join([f"{ranks}: {STANDS_STILL}", *waiting])

    def _read_others(self) -> dict[int, str]:
        others = [k for k in range(self._world) if k != self._rank]
        return {k: self._store.get(str(k)).decode() for k in others if self._store.check([str(k)])}


def within(timeout: timedelta) -> timedelta:
    """How long one wait may be for a rank that stands still to be named within the timeout."""
    return timeout - min(timedelta(seconds=_RESERVE_SECONDS), timeout / 4)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Turn the failure of another rank into words.

    Raises:
        BackendError: The other rank is gone, or was too slow.
    """
    _Waiting.since, _Waiting.what = time.monotonic(), what
    try:
        yield
    except RuntimeError as error:
        got = f"waiting for {what}: {_reason(str(error))}"
        raise BackendError(CONSEQUENCE, got=got) from error
    finally:
        _Waiting.what = None


@contextmanager
def locate_failure(where: Callable[[], str]) -> Iterator[None]:
    """Add to a failure of another rank where this one was, and who stands still.

    ``where`` is called when it fails: the round, and what this rank was doing.

    Raises:
        BackendError: The other rank is gone, or was too slow.
    """
    before, _Waiting.where = _Waiting.where, where
    try:
        yield
    except BackendError as error:
        if error.where is not None:
            raise
        place, hint = f"rank {dist.get_rank()}, {where()}", None
        if _Waiting.watch is not None and "imed out" in str(error.got):
            text = f"{where()}: {error.got}"
            hint = call_within(partial(_Waiting.watch.find_stuck, text), _STORE_SECONDS)
        raise BackendError(error.what, where=place, got=error.got, hint=hint) from error
    finally:
        _Waiting.where = before


def call_within(do: Callable[[], _T], seconds: float) -> _T | None:
    """What a call gives that may never come back, such as one to a store; None if it does not.

    Raises:
        Exception: What the call raised.
    """
    found: list[_T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            found.append(do())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return found[0] if found else None


def _reason(text: str) -> str:
    """The first sentence of torch's message, without the place in gloo's sources."""
    line = next(iter(text.splitlines()), "")
    return re.sub(r"^\[/[^]]*\] *", "", line).split(". ")[0]
