"""Ranks that were told different things say so before the first round; nobody unpickles a peer."""

import ast
import hashlib
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

import pipec
from pipec.errors import BackendError
from pipec.runtime import distributed
from pipec.runtime.rendezvous import VARIABLE, join
from tests.runtime import disagreeing
from tests.runtime.processes import elastic

PATIENCE = timedelta(seconds=20)


def test_every_disagreement_is_named_with_its_ranks() -> None:
    found = elastic(disagreeing.refused, ranks=2)
    for messages in found.values():
        assert messages.pop("nothing") == ""
        for name, want in {n: w for n, (_, w) in disagreeing.KINDS.items()}.items():
            assert want in messages[name], (name, messages[name])
        for name, message in messages.items():
            assert "rank 0: " in message, (name, message)
            assert "rank 1: " in message, (name, message)
    assert len(found[0]) >= 25


def _meet(store: Store, world: int) -> list[bool]:
    """Whether each of the threads, one per rank, went on."""
    found = [False] * world

    def meet(rank: int) -> None:
        join(store, rank, world, PATIENCE).set("probe", "here")
        found[rank] = True

    threads = [threading.Thread(target=meet, args=(k,)) for k in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def test_ranks_meet_whatever_earlier_attempts_left() -> None:
    store = HashStore()
    for _ in range(3):  # the store outlives three attempts
        assert _meet(store, 3) == [True] * 3
    room = PrefixStore("pipec", store)
    room.set("join/1", "0123.stale")
    text = room.get("world").decode()
    room.set("ack/1", hashlib.sha256(text.encode()).hexdigest())
    assert _meet(store, 3) == [True] * 3


def test_a_rank_without_the_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "key")
    found: list[str] = []
    store = HashStore()
    PrefixStore("pipec", store).set("join/1", "feed.beef")
    try:
        join(store, 0, 2, timedelta(seconds=0.5))
    except BackendError as error:
        found.append(str(error))
    assert "does not know the shared secret" in found[0]


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(BackendError, match="ranks 1"):
        join(HashStore(), 0, 2, timedelta(seconds=0.2))


def test_a_master_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": mute.getsockname()[1], "RANK": 1}
        told |= {"WORLD_SIZE": 2, "GLOO_SOCKET_IFNAME": "lo"}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(distributed, "keep_freed_memory", lambda: None)
        with (
            pytest.raises(BackendError, match=r"does not answer(.|\n)*127.0.0.1:\d+"),
            distributed.process_group(timedelta(seconds=1), "cpu"),
        ):
            pass


PICKLING = {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
            "send_object_list", "recv_object_list", "pickle"}  # fmt: skip


def test_no_module_knows_pickles() -> None:
    """Nothing that comes from another rank or file is unpickled."""
    root = Path(pipec.__file__).parent.parent
    found = set()
    for path in (
        p for part in ("pipec", "backends", "passes") for p in (root / part).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, "id", ""), getattr(node, "attr", "")}
            names |= {a.name for a in getattr(node, "names", []) if isinstance(a, ast.alias)}
            if names & PICKLING:
                found.add(str(path.relative_to(root)))
    assert not found
