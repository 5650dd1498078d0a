"""BaPipe's intra-layer step: the best pipeline again, with a layer of its slowest stage split."""

from collections.abc import Iterator
from dataclasses import replace

from pipec.errors import PipecError
from pipec.explore.candidate import Candidate
from pipec.explore.make import Maker, passes_of
from pipec.graph.split_node import is_splittable

LEAST = 0.05
"""Smallest part of a layer that is worth a cut of its own."""


def split_candidates(maker: Maker, base: Candidate) -> Iterator[Candidate]:
    """A candidate with the layers split that lie next to a neighbour of its slowest stage.

    Each is split into two equal parts, and so that the two stages get even. None where there is
    no boundary or nothing to split.
    """
    passes = passes_of(base)
    names = [p.name for p in passes]
    try:
        whole = maker.make(base, passes=passes[: names.index("partition") + 1])
    except PipecError:  # the candidate itself reports that it cannot be cut
        return
    assert whole.partition is not None
    assert whole.costs is not None
    loads, of = whole.partition.seconds, whole.partition.stage_of
    slow = max(range(len(loads)), key=lambda k: loads[k])
    layers = [
        n.name for n in whole.graph.calls if of[n.name] == slow and is_splittable(whole.graph, n)
    ]
    kind = whole.cluster.devices[slow % whole.cluster.size].kind
    back = whole.costs.backward_of(kind) if maker.trains else {}
    for neighbour in (slow - 1, slow + 1):
        if not layers or not 0 <= neighbour < len(loads):
            continue
        layer = layers[0] if neighbour < slow else layers[-1]
        seconds = whole.costs.of(kind)[layer] + back.get(layer, 0.0)
        part = (loads[slow] - loads[neighbour]) / 2 / seconds if seconds else 0.0
        if LEAST <= part <= 1 - LEAST:
            share = round(part if neighbour < slow else 1 - part, 3)
            yield replace(base, split=layer, share=share)
        yield replace(base, split=layer, share=0.5)
