"""Random small placement problems."""

import numpy as np
from hypothesis import strategies as st

from pipec.partition.costgraph import CostGraph, Value, cost_graph

NUMBERS = st.integers(0, 8)


@st.composite
def graphs(
    draw: st.DrawFn,
    most: int = 6,
    classes: tuple[str, ...] = ("fast", "slow"),
    grouped: bool = True,
    training: bool = True,
    blocked: bool = False,
) -> CostGraph:
    """A DAG of up to ``most`` nodes with random hyperedges, groups and backward nodes."""
    n = draw(st.integers(1, most))
    ahead = draw(st.integers(1, n)) if training else n
    backward = [v >= ahead for v in range(n)]
    values = []
    for u in range(n - 1):
        readers = draw(st.sets(st.integers(u + 1, n - 1), max_size=3))
        if readers:
            a, b, c = (draw(NUMBERS) for _ in range(3))
            values.append(Value(u, sorted(readers), a / 4, b, c))
    work = {name: np.array([draw(NUMBERS) for _ in range(n)], float) for name in classes}
    if blocked and len(classes) > 1:
        for v in range(n):
            if draw(st.integers(0, 5)) == 0:
                work[classes[0]][v] = np.inf
    colours = st.integers(-1, 2 if grouped else -1)
    return cost_graph(
        [f"v{v}" for v in range(n)],
        work,
        values,
        weight_bytes=[draw(NUMBERS) for _ in range(n)],
        activation_bytes=[draw(NUMBERS) for _ in range(n)],
        group=[draw(colours) for _ in range(n)] if grouped else None,
        backward=backward,
    )
