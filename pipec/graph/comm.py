"""The communication ops: ``pipec::send``, ``recv``, ``offload``, ``fetch`` as real graph nodes.

They are what a saved and printed stage shows of its neighbours. Channel and slot are always
keyword arguments, so that equal stages are equal up to these names:

```text
recv_h = pipec.recv(channel='s0.s1.h', size=[4, 64], dtype=float32)      receives first
...
send_y = pipec.send(y, channel='s1.s2.y', nbytes=1024)                   sends last
```

They have types and no kernels: `pipec.graph.lower.lower` peels them off before anything runs.
"""

import torch
from torch import fx

_library = torch.library.Library("pipec", "DEF")
_library.define("send(Tensor x, *, str channel, int nbytes) -> ()")
_library.define("recv(*, str channel, int[] size, ScalarType dtype) -> Tensor")
_library.define("offload(Tensor x, *, str slot, int nbytes) -> ()")
_library.define("fetch(*, str slot, int[] size, int[] stride, ScalarType dtype) -> Tensor")

SEND, RECV = torch.ops.pipec.send.default, torch.ops.pipec.recv.default
OFFLOAD, FETCH = torch.ops.pipec.offload.default, torch.ops.pipec.fetch.default
NAMES_OF_COMM = frozenset({"channel", "slot"})
"""Keyword arguments that name a channel or slot (and say nothing about the computation)."""


def is_comm(node: fx.Node) -> bool:
    """Whether the node sends, receives, offloads or fetches."""
    return node.op == "call_function" and node.target in (SEND, RECV, OFFLOAD, FETCH)


for _name, _fake in (
    ("send", lambda x, *, channel, nbytes: None),
    ("recv", lambda *, channel, size, dtype: torch.empty(size, dtype=dtype)),
    ("offload", lambda x, *, slot, nbytes: None),
    ("fetch", lambda *, slot, size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)),
):
    torch.library.register_fake(f"pipec::{_name}", _fake, lib=_library)
for _op in (SEND, RECV, OFFLOAD, FETCH):
    fx.node.has_side_effect(_op)
