"""The communication ops: ``pipec::send``, ``recv``, ``offload``, ``fetch`` as real graph nodes.

They are what a saved and printed stage shows of its neighbours. Channel and slot are always
keyword arguments, so that equal stages are equal up to these names:

```text
recv_h = pipec.recv(channel='s0.s1.h', size=[4, 64], dtype=float32)      receives first
...
send_y = pipec.send(y, channel='s1.s2.y', nbytes=1024)                   sends last
```

Executors never run them in a compiled graph: `pipec.graph.lower.lower` peels them off. Run as
printed, they move data through the `Mailbox` of the current context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import fx

from pipec.errors import GraphError

_library = torch.library.Library("pipec", "DEF")
_library.define("send(Tensor x, *, str channel, int nbytes) -> ()")
_library.define("recv(*, str channel, int[] size, ScalarType dtype) -> Tensor")
_library.define("offload(Tensor x, *, str slot, int nbytes) -> ()")
_library.define("fetch(*, str slot, int[] size, int[] stride, ScalarType dtype) -> Tensor")

SEND, RECV = torch.ops.pipec.send.default, torch.ops.pipec.recv.default
OFFLOAD, FETCH = torch.ops.pipec.offload.default, torch.ops.pipec.fetch.default
NAMES_OF_COMM = frozenset({"channel", "slot"})
"""Keyword arguments that name a channel or slot (and say nothing about the computation)."""

Mailbox = dict[str, list[torch.Tensor]]
_mailbox: ContextVar[Mailbox] = ContextVar("mailbox")


def is_comm(node: fx.Node) -> bool:
    """Whether the node sends, receives, offloads or fetches."""
    return node.op == "call_function" and node.target in (SEND, RECV, OFFLOAD, FETCH)


@contextmanager
def mailbox(box: Mailbox) -> Iterator[Mailbox]:
    """Let communication nodes that run inside the block put into and take from ``box``."""
    token = _mailbox.set(box)
    try:
        yield box
    finally:
        _mailbox.reset(token)


def _put(name: str, x: torch.Tensor) -> None:
    _mailbox.get({}).setdefault(name, []).append(x.detach().clone())


def _take(name: str) -> torch.Tensor:
    waiting = _mailbox.get({}).get(name)
    if not waiting:
        raise GraphError("nothing was sent on the channel", where=name)
    return waiting.pop(0)


_library.impl("send", lambda x, *, channel, nbytes: _put(channel, x), "CompositeExplicitAutograd")
_library.impl("recv", lambda *, channel, size, dtype: _take(channel), "CompositeExplicitAutograd")
_library.impl("offload", lambda x, *, slot, nbytes: _put(slot, x), "CompositeExplicitAutograd")
_library.impl(
    "fetch", lambda *, slot, size, stride, dtype: _take(slot), "CompositeExplicitAutograd"
)
torch.library.register_fake(
    "pipec::recv",
    lambda *, channel, size, dtype: torch.empty(size, dtype=dtype),
    lib=_library,
)
torch.library.register_fake(
    "pipec::fetch",
    lambda *, slot, size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype),
    lib=_library,
)
for _op in (SEND, RECV, OFFLOAD, FETCH):
    fx.node.has_side_effect(_op)
