"""The search around known cuts looks at nothing but ideals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipec.partition.costgraph import CostGraph
from pipec.partition.proof.ideals import closures
from pipec.partition.search.improve import _neighbours
from pipec.partition.units import make_units
from tests.partition.strategies import graphs


@given(graphs(most=8), st.data())
def test_neighbours_of_a_cut_are_ideals(graph: CostGraph, data: st.DataObject) -> None:
    units = make_units(graph, graph.seconds[None])
    above, below = closures(units)
    wanted = data.draw(st.sets(st.integers(0, units.size - 1)))
    cut = np.array(above[list(wanted)].any(axis=0))
    near = _neighbours(cut, above, below, units.work[0], most=200)
    source, target = units.edges.T
    assert (near[:, source] >= near[:, target]).all()
    known = {row.tobytes() for row in near}
    assert cut.tobytes() in known
    for v in range(units.size):
        assert (cut | above[v]).tobytes() in known
        assert (cut & ~below[v]).tobytes() in known
        for u in range(units.size):
            if not (above[u] & below[v]).any():
                assert ((cut & ~below[v]) | above[u]).tobytes() in known


@given(graphs(most=8), st.data())
def test_stages_of_units_suit_all_their_nodes(graph: CostGraph, data: st.DataObject) -> None:
    units = make_units(graph, graph.seconds[None])
    of_nodes = np.array([data.draw(st.integers(0, 3)) for _ in graph.names])
    stage = units.stages(of_nodes)
    assert (stage[units.of_node] >= of_nodes).all()
    source, target = units.edges.T
    assert (stage[source] <= stage[target]).all()
