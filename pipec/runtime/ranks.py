"""Starting one process per device on this host, and ending all of them together.

```text
pipec run out ─┬─ store for the rendezvous, on 127.0.0.1 alone
               ├─ rank 0 ─ pipec run out      its standard error is kept until it is known
               ├─ rank 1 ─ pipec run out      whether the run failed, and which rank was first
               └─ ...
```

Several hosts are started by torchrun, which also restarts ranks that have died.
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import IO

from pipec.errors import PipecError
from pipec.runtime.waiting import CONSEQUENCE, STANDS_STILL
from pipec.signals import interrupt_on

_GRACE_SECONDS = 10.0
"""How long ranks may take to end by themselves once another one has failed."""
_POLL_SECONDS = 0.05
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def start_ranks(devices: int) -> None:
    """This command again, once per device; returns when all of them have ended well.

    Raises:
        SystemExit: A rank failed; the error of the first one is printed, and its status is ours.
        KeyboardInterrupt: Somebody interrupted this process; no rank is left.
    """
    sys.stdout.flush()
    ranks: list[_Rank] = []
    store, port = _store()
    try:
        with interrupt_on(signal.SIGTERM):
            ranks.extend(_Rank(k, devices, port) for k in range(devices))
            failed = _wait(ranks)
    finally:
        for rank in ranks:
            rank.kill()
        del store
    if failed:
        cause = next((r for r in failed if CONSEQUENCE not in r.read_error()), failed[0])
        raise SystemExit(_report(cause, failed))
    sys.stderr.write(ranks[0].read_error())


class _Rank:
    """One process; it dies when this one does."""

    def __init__(self, number: int, world: int, port: int) -> None:
        self.number = number
        self._error: IO[bytes] = TemporaryFile()  # noqa: SIM115
        extra = {
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {k: str(v) for k, v in extra.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipec", *sys.argv[1:]],
            env=environment,
            stderr=self._error,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # it calls one C function
        )

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def names_another(self) -> bool:
        """Whether it has reported which rank stands still, and is about to end."""
        return STANDS_STILL in self.read_error()

    def read_error(self) -> str:
        """All of its standard error."""
        self._error.seek(0)
        return self._error.read().decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _wait(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Those that failed, the first one first; the others are given time to notice.

    No time once one of them has reported which rank will not end by itself.
    """
    failed: list[_Rank] = []
    deadline = float("inf")
    while any(r.status is None for r in ranks) and time.monotonic() < deadline:
        new = [r for r in ranks if r not in failed and (r.status or r.names_another)]
        if new:
            grace = 0.0 if any(r.names_another for r in new) else _GRACE_SECONDS
            deadline = min(deadline, time.monotonic() + grace)
        failed += new
        time.sleep(_POLL_SECONDS)
    return failed + [r for r in ranks if r.status and r not in failed]


def _report(cause: _Rank, failed: Sequence[_Rank]) -> int:
    """Print the error of the failing rank, once; the exit status of the whole."""
    status = 1 if cause.names_another else cause.status or 1
    text = cause.read_error().strip()
    if not text:
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        error = PipecError("a rank ended without a word", where=f"rank {cause.number}", got=name)
        text = f"error: {error}"
    others = ", ".join(str(r.number) for r in failed if r is not cause)
    first = "" if re.search(r"\brank \d", text) else f" (rank {cause.number} failed first)"
    sys.stderr.write(f"{text}\n")
    if first or others:
        also = f"; then ranks {others}" if others else ""
        sys.stderr.write(f"rank {cause.number} failed{also}\n")
    return status if status > 0 else 128 - status


def _store() -> tuple[object, int]:
    """A key-value store that only processes of this host reach, and its port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    return store, port


def _die_with_parent() -> None:
    """In the child: SIGTERM when the parent is gone. Linux only; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
