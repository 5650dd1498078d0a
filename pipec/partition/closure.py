"""What a unit drags along: the cheapest ideal around it, by minimum cuts.

Whatever lies left of a cut is an ideal; if it holds unit v, it is at least as much work, with the
values that cross, as

    min over ideals J with v in J of  work(J) + price * cut(J),

a closure problem (Picard, Management Science 1976): a minimum cut in a network whose source side is
J. A unit of J cuts its arc to the sink; arcs without limit lead from a unit to its producers; a
value that is partly in J cuts the arc between its two nodes. Without the arcs between units it is
the cheapest set of any kind around v: no device that holds v has less load.
"""

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.partition.units import Units

SCALE = 2.0**30
HEAVY = 12


def cheapest_ideals(units: Units, ref: FloatArray, price: float, *, right: bool) -> FloatArray:
    """Least work and price of the values that cross, for an ideal with each unit in it, [units].

    Args:
        units: The DAG; values are priced in seconds.
        ref: Work measure, [units].
        price: Factor of the seconds.
        right: Look at what lies right of a cut instead.
    """
    tail, head = units.edges.T if right else units.edges.T[::-1]
    return _cheapest(units, ref, price, tail, head, np.arange(units.size))


def heaviest(work: FloatArray) -> IntArray:
    """The few units with most work, for which ``least_loads`` is worth its time.

    Args:
        work: Seconds of every unit where it is fastest, [units].
    """
    return np.argsort(-work, kind="stable")[:HEAVY]


def least_loads(units: Units, work: FloatArray, which: IntArray) -> FloatArray:
    """Least load of a device that holds a unit, whatever else it holds, [which].

    Args:
        units: The DAG; values are priced in seconds.
        work: Seconds of every unit on the device, which pays for values, [units].
        which: Units to look at.
    """
    none = np.zeros(0, np.int64)
    return _cheapest(units, work, 1.0, none, none, which)


def _cheapest(
    units: Units, ref: FloatArray, price: float, tail: IntArray, head: IntArray, which: IntArray
) -> FloatArray:
    """Minimum cut per unit; whoever has the tail of an arc has its head."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, values = units.size, len(units.pin_ptr) - 1
    source, sink = n + 2 * values, n + 2 * values + 1
    pin, edge = units.pin, units.pin_edge()
    total = float(ref.sum()) + price * float(units.cost[0].sum())
    if not total > 0:
        return np.zeros(len(which))
    scale = SCALE / total
    endless = np.int64(2**30)
    value = np.arange(values)
    tails = [np.arange(n), tail, pin, n + value, n + values + edge, np.full(n, source)]
    heads = [np.full(n, sink), head, n + edge, n + values + value, pin, np.arange(n)]
    limits: list[FloatArray | IntArray] = [
        np.floor(ref * scale),
        np.full(len(tail), endless),
        np.full(len(pin), endless),
        np.floor(units.cost[0] * price * scale),
        np.full(len(pin), endless),
        np.zeros(n),
    ]
    data = np.concatenate(limits).astype(np.int32)
    shape = (sink + 1, sink + 1)
    place = np.arange(1, len(data) + 1)
    entries = csr_array((place, (np.concatenate(tails), np.concatenate(heads))), shape=shape)
    limits_in_order = data[entries.data - 1]
    network = csr_array((limits_in_order, entries.indices, entries.indptr), shape=shape)
    found = np.empty(len(which))
    first = network.indptr[source]
    for number, v in enumerate(which.tolist()):
        network.data[first + v] = endless
        found[number] = maximum_flow(network, source, sink).flow_value / scale
        network.data[first + v] = 0
    return found
