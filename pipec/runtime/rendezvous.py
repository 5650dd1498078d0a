"""How ranks find each other afresh after some of them have died, and how strangers are kept out.

The store outlives the processes: addresses of ranks that died are still in it, and no count of
restarts is the same on all hosts. So the ranks of an attempt prove to each other that they are
alive, and go on under a prefix that no earlier attempt can have used:

```text
join/<rank>    a number that this process has just drawn, signed with the shared secret
world          all of these numbers as rank 0 last saw them
ack/<rank>     digest of the world that holds this process's number
go             digest of the world that every rank has acknowledged: the prefix
```

A dead rank cannot acknowledge a world with the fresh number of rank 0.
"""

import hmac
import json
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore, Store

from pipec.errors import BackendError
from pipec.files import text_digest
from pipec.runtime.waiting import CONSEQUENCE

VARIABLE = "PIPEC_SECRET"
"""Environment variable: a secret that all ranks share, or ``@`` and the file that holds it."""
_POLL_SECONDS = 0.02


def join(store: Store, rank: int, world: int, timeout: timedelta) -> Store:
    """Meet all ranks of this attempt.

    Returns:
        The store under a prefix that is new.

    Raises:
        BackendError: A rank did not come in time, or does not know the secret.
    """
    room = PrefixStore("pipec", store)
    own = _Member(room, rank, world)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        if rank == 0:
            own.lead()
        found = own.follow()
        if found:
            return PrefixStore(found, store)
        if time.monotonic() > deadline:
            own.check_signed()
            raise BackendError(
                CONSEQUENCE,
                where=f"rank {rank}",
                got=f"waiting for {own.name_missing()} to start",
                hint="start all ranks, within --timeout of each other",
            )
        time.sleep(_POLL_SECONDS)


class _Member:
    """One rank's side of the meeting."""

    def __init__(self, room: Store, rank: int, world: int) -> None:
        self._room, self._rank, self._world = room, rank, world
        self._secret = _secret()
        number = secrets.token_hex(16)
        self._ticket = f"{number}.{_sign(self._secret, rank, number)}"
        room.set(f"join/{rank}", self._ticket)

    def lead(self) -> None:
        """Publish who has come, and let them go once all of them have acknowledged it."""
        if len(self._tickets()) < self._world:
            return
        tickets = self._tickets()
        if self._find_unsigned(tickets):
            return
        text = json.dumps(tickets, sort_keys=True)
        self._room.set("world", text)
        digest = text_digest(text)
        if all(self._get(f"ack/{k}") == digest for k in range(1, self._world)):
            self._room.set("go", digest)

    def check_signed(self) -> None:
        """Refuse ranks whose tickets are not signed with the secret."""
        for rank in self._find_unsigned(self._tickets()):
            raise BackendError(
                "a rank does not know the shared secret",
                where=f"rank {rank}",
                hint=f"give all ranks the same {VARIABLE}",
            )

    def _find_unsigned(self, tickets: dict[int, str]) -> list[int]:
        parts = {rank: ticket.partition(".") for rank, ticket in tickets.items()}
        return [
            rank
            for rank, (number, _, signature) in parts.items()
            if not hmac.compare_digest(signature, _sign(self._secret, rank, number))
        ]

    def follow(self) -> str | None:
        """Acknowledge a world that this process is part of; the prefix once all may go."""
        text = self._get("world")
        if text is None or json.loads(text).get(str(self._rank)) != self._ticket:
            return None
        digest = text_digest(text)
        if self._rank:
            self._room.set(f"ack/{self._rank}", digest)
        return digest if self._get("go") == digest else None

    def name_missing(self) -> str:
        """Ranks that have not come, in words."""
        absent = [str(k) for k in range(self._world) if k not in self._tickets()]
        return f"ranks {', '.join(absent)}" if absent else "all ranks"

    def _tickets(self) -> dict[int, str]:
        found = {k: self._get(f"join/{k}") for k in range(self._world)}
        return {k: ticket for k, ticket in found.items() if ticket is not None}

    def _get(self, key: str) -> str | None:
        return self._room.get(key).decode() if self._room.check([key]) else None


def _secret() -> bytes:
    text = os.environ.get(VARIABLE, "")
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes().strip()
    except OSError as error:
        raise BackendError("the shared secret cannot be read", where=VARIABLE, got=error) from error


def _sign(secret: bytes, rank: int, number: str) -> str:
    return hmac.new(secret, f"{rank} {number}".encode(), "sha256").hexdigest()
