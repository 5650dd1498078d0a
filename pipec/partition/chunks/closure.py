"""What holding a unit costs at least, by a minimum cut: a bound on the chunks of op_bert_l-3.

A device that holds unit v has as much load as the cheapest set around it, with the values that
enter and leave,

    min over sets J with v in J of  work(J) + cut(J),

a minimum cut (Picard, Management Science 1976) in a network whose source side is J. A unit of J
cuts its arc to the sink; a value that is partly in J cuts the arc between its two nodes.
"""

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.partition.units import Units

SCALE = 2.0**30
HEAVY = 12


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
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, values = units.size, len(units.pin_ptr) - 1
    source, sink = n + 2 * values, n + 2 * values + 1
    pin, edge = units.pin, units.pin_edge()
    total = float(work.sum()) + float(units.cost[0].sum())
    if not total > 0:
        return np.zeros(len(which))
    scale = SCALE / total
    endless = np.int64(2**30)
    value = np.arange(values)
    tails = [np.arange(n), pin, n + value, n + values + edge, np.full(n, source)]
    heads = [np.full(n, sink), n + edge, n + values + value, pin, np.arange(n)]
    limits: list[FloatArray | IntArray] = [
        np.floor(work * scale),
        np.full(len(pin), endless),
        np.floor(units.cost[0] * scale),
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
