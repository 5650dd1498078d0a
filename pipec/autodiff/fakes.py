"""Fake tensors for tracing: the shapes and strides of a graph's placeholders, and no data."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipec.graph.ir import Graph, InputKind, tensor
from pipec.graph.torch_private import FakeTensorMode, quick_tracing, swapped


def fake_like(t: torch.Tensor, mode: FakeTensorMode, *, contiguous: bool = False) -> torch.Tensor:
    """A fake tensor of the type of ``t``.

    It has the stride of ``t``, or of a fresh tensor if ``contiguous``.
    """
    with mode:
        if contiguous:
            return torch.empty(t.shape, dtype=t.dtype, device=t.device)
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def fake_inputs(graph: Graph, mode: FakeTensorMode) -> list[torch.Tensor]:
    """One fake tensor per placeholder; values that cross a cut are contiguous."""
    nodes = graph.nodes
    return [
        fake_like(tensor(nodes[i.node]), mode, contiguous=i.kind is InputKind.VALUE)
        for i in graph.inputs
    ]


@contextmanager
def tracing() -> Iterator[FakeTensorMode]:
    """A fresh fake mode, in a setting where every op has a backward that can be traced.

    Recurrent layers otherwise become a fused CPU kernel whose backward cannot run outside autograd.
    """
    with quick_tracing(), swapped(torch.backends.mkldnn, enabled=False):
        yield FakeTensorMode(allow_non_fake_inputs=True)
