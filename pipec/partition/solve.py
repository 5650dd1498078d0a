"""The best contiguous cut of a DAG, with a proof or a gap.

1. Contract what must stay together (``units``), merge what an optimum never parts (``reduce``).
2. Cut several linear orders optimally: the incumbent (``orders``, ``frontier``).
3. A load below the incumbent leaves each state a narrow window of work left of its cut
   (``bounds``). Enumerate all ideals in the windows and run the same program over them: nothing
   found means the incumbent is optimal. Too many ideals: prove from the bound upwards as far as
   time allows.

The dynamic program over ideals is that of Tarnawski et al. (NeurIPS'20), the windows are ours.
"""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError, list_lines
from pipec.partition.costgraph import CostGraph, FloatArray, IntArray, check_acyclic
from pipec.partition.devices import Device
from pipec.partition.fitting import check_runnable, fit_memory, nothing_fits
from pipec.partition.machine import Machine, make_machine
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.proof.prove import prove
from pipec.partition.result import CutResult, make_result, stage_loads
from pipec.partition.search.cutting import cut_orders
from pipec.partition.search.incumbent import Incumbent, name_devices
from pipec.partition.units import Units, make_units


def solve_contiguous(
    graph: CostGraph,
    devices: Sequence[Device],
    *,
    free_order: bool = False,
    exactly: bool = True,
    links: Link | Sequence[Link] | None = None,
    overlap: bool = False,
    time_limit: float = 10.0,
) -> CutResult:
    """Cuts a graph into one stretch per device so that the largest load is least.

    Args:
        graph: The problem.
        devices: One per stage, along the pipeline.
        free_order: The devices may stand in any order; the best one is chosen.
        exactly: Every device takes at least one placement unit; else some may stay empty.
        links: None: values are priced by ``graph.seconds``, once per device that they enter or
            leave. Else the link of all boundaries, or one per boundary: what crosses a boundary is
            ``graph.bytes`` forward and ``graph.gradient_bytes`` back; the stages between relay it.
        overlap: Load is the larger of compute and transfer; only with links.
        time_limit: Seconds for everything but the first cut, which is made however long it takes.

    Returns:
        The cut, its bound, and whether they meet.

    Raises:
        PartitionError: A cyclic graph, more devices than placement units, or limits nothing fits.

    Example:
        >>> from pipec.partition.costgraph import Value, cost_graph
        >>> chain = cost_graph("abc", {"gpu": [1, 2, 3]}, [Value(0, [1], 0.1), Value(1, [2], 0.2)])
        >>> cut = solve_contiguous(chain, [Device("gpu")] * 2)
        >>> cut.stage.tolist(), [round(load, 3) for load in cut.loads], cut.proven
        ([0, 0, 1], [3.2, 3.2], True)
    """
    started = perf_counter()
    machine = make_machine(
        graph, devices, free_order=free_order, exactly=exactly, links=links, overlap=overlap
    )
    units, best = _units(graph, machine), Incumbent()
    cut_orders(units, machine, best, time_limit)
    if best.stage is None:
        best = _fitting(graph, machine, links)
    lower, method = prove(units, machine, best, started + time_limit)
    if best.stage is None:
        raise nothing_fits(graph, machine, fit_memory(graph, machine))
    loads, place = _loads(graph, machine, links, best)
    order = name_devices(machine, best.steps)
    return make_result(graph, best.stage, order, loads[place], lower, method, started)


def _units(graph: CostGraph, machine: Machine) -> Units:
    """Placement units with what the links or the file make their values cost."""
    check_acyclic(graph)
    check_runnable(graph, machine)
    sized = np.stack([graph.bytes, graph.gradient_bytes])
    units = make_units(graph, graph.seconds[None] if machine.priced else sized)
    if machine.exactly and units.size < len(machine.devices):
        raise too_many_stages(len(machine.devices), units, graph)
    return units


def too_many_stages(stages: int, units: Units, graph: CostGraph, parts: int = 1) -> PartitionError:
    """Says how many stages there can be, each of so many units at least, and what makes units."""
    fewer = "fewer stages" + ", or fewer parts" * (parts > 1)
    return PartitionError(
        "more stages than placement units",
        where=list_lines(graph.reasons, 3) or None,
        got=f"{stages} stages" + f" of {parts} parts" * (parts > 1),
        want=f"at most {units.size}{' in all' * (parts > 1)}: {graph.size} nodes form {units.size} "
        "units that must not be parted",
        hint=fewer + ", or a schedule or target that keeps less together" * bool(graph.reasons),
    )


def _fitting(graph: CostGraph, machine: Machine, links: Link | Sequence[Link] | None) -> Incumbent:
    """A cut that fits the memory, if one is found; its loads are what they are.

    Raises:
        PartitionError: It is proven that none fits.
    """
    fit = fit_memory(graph, machine)
    if fit.least > 1 + TOLERANCE:
        raise nothing_fits(graph, machine, fit)
    if fit.best.stage is None or fit.enough > 1 + TOLERANCE:
        return Incumbent()
    loads, _ = _loads(graph, machine, links, fit.best)
    return Incumbent(float(loads.max()), fit.best.stage, fit.best.steps, "least memory")


def _loads(
    graph: CostGraph, machine: Machine, links: Link | Sequence[Link] | None, best: Incumbent
) -> tuple[FloatArray, IntArray]:
    """Load of every position, from the definition, and the position of each stage.

    An empty device between two stages has a load too where links carry the values: it relays them.
    """
    assert best.stage is not None
    place = np.array([int(machine.used[step.source].sum()) for step in best.steps])
    order = name_devices(machine, best.steps)
    idle = [d for d in range(len(machine.devices)) if d not in set(order)]
    at = dict(zip(place.tolist(), order, strict=True))
    devices = [
        machine.devices[at[p] if p in at else idle.pop(0)] for p in range(int(place[-1]) + 1)
    ]
    joints = [links] * (len(devices) - 1) if isinstance(links, Link) else links
    loads = stage_loads(graph, place[best.stage], devices, links=joints, overlap=machine.overlap)
    return loads, place
