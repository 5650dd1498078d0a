"""The cuts that are enumerated are all there are: every way to give units to stages is tried."""

import random
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipec.compiler.cut_search import _chains


def random_units(seed: int, size: int) -> Any:
    """Units with random edges, whose numbers are in no order of theirs."""
    draw = random.Random(seed)
    name = draw.sample(range(size), size)
    edges = [(name[a], name[b]) for a, b in combinations(range(size), 2) if draw.random() < 0.35]
    return SimpleNamespace(
        size=size,
        succ=[[b for a, b in edges if a == u] for u in range(size)],
        pred=[[a for a, b in edges if b == u] for u in range(size)],
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_cut_is_left_out(seed: int, stages: int) -> None:
    units = random_units(seed, 5 + seed % 3)
    want = {
        cut
        for cut in product(range(stages), repeat=units.size)
        if len(set(cut)) == stages
        and all(cut[u] <= cut[v] for u in range(units.size) for v in units.succ[u])
    }
    found = _chains(units, stages, len(want))
    assert found is not None
    assert len(found) == len(want)
    assert set(map(tuple, np.asarray(found).tolist())) == want
    if want:
        assert _chains(units, stages, len(want) - 1) is None
