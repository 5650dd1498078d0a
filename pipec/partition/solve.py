"""The best contiguous cut of a DAG, with a proof or a gap.

1. Contract what must stay together (``units``), merge what an optimum never parts (``reduce``).
2. Cut several linear orders optimally: the incumbent (``orders``, ``scan``, ``frontier``).
3. A load below the incumbent leaves each state a narrow window of work left of its cut
   (``bounds``). Enumerate all ideals in the windows and run the same program over them: nothing
   found means the incumbent is optimal. Too many ideals: prove from the bound upwards as far as
   time allows.

The dynamic program over ideals is that of Tarnawski et al. (NeurIPS'20), the windows are ours.
"""

import time
from collections.abc import Sequence
from math import inf

import numpy as np

from pipec.errors import PartitionError
from pipec.partition import clock
from pipec.partition.bounds import TOLERANCE, highest_load, make_bounds
from pipec.partition.costgraph import CostGraph, check_acyclic
from pipec.partition.devices import Device, Link, StageMemory, one_of_each
from pipec.partition.family import PrefixFamily
from pipec.partition.fill import Objective, cut_for_fill
from pipec.partition.fitting import nothing_fits
from pipec.partition.frontier import search
from pipec.partition.incumbent import Incumbent, name_devices
from pipec.partition.large import cut_large, rows_for
from pipec.partition.machine import Machine, make_machine
from pipec.partition.orders import linear_orders
from pipec.partition.prove import Proof, prove
from pipec.partition.reduce import reduce_units
from pipec.partition.result import CutResult, stage_loads, stage_memory
from pipec.partition.scan import scan
from pipec.partition.units import Units, make_units

LARGE = 800
SMALL = 800


def solve_contiguous(
    graph: CostGraph,
    devices: Sequence[Device],
    *,
    free_order: bool = False,
    exactly: bool = True,
    links: Link | Sequence[Link] | None = None,
    overlap: bool = False,
    memory: StageMemory = one_of_each,
    microbatches: int | None = None,
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
        memory: Weight versions and microbatches in flight per stage, for memory limits.
        microbatches: If given, minimise the time of one pipeline flush instead,
            (microbatches - 1) * largest load + sum of loads.
        time_limit: Seconds for the proof (within `pipec.partition.clock.counted`: looks at the
            clock); the cut itself is not interrupted.

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
    began, started = clock.now(), time.perf_counter()
    check_acyclic(graph)
    machine = make_machine(
        graph,
        devices,
        free_order=free_order,
        exactly=exactly,
        links=links,
        overlap=overlap and links is not None,
        memory=memory,
    )
    cost = graph.seconds[None] if links is None else np.stack([graph.bytes, graph.gradient_bytes])
    units = make_units(graph, cost)
    if exactly and units.size < len(devices):
        raise PartitionError(
            "more stages than placement units",
            got=f"{len(devices)} stages",
            want=f"at most {units.size}: {graph.size} nodes form {units.size} units that must not "
            "be parted",
        )
    if microbatches is not None:
        if microbatches < 1:
            raise PartitionError("a flush needs at least one microbatch", got=microbatches)
        best, proof = cut_for_fill(units, machine, Objective(microbatches), began + time_limit)
    else:
        best = Incumbent()
        _cut_orders(units, machine, best, began, time_limit)
        proof = prove(units, machine, best, began + time_limit)
    if best.stage is None:
        raise nothing_fits(graph, machine, memory)
    return _result(graph, machine, links, memory, microbatches, best, proof, started)


def _cut_orders(
    units: Units, machine: Machine, best: Incumbent, began: float, time_limit: float
) -> None:
    """Step 2: optimal cuts of several linear orders."""
    large = units.size > LARGE
    small = units if large else reduce_units(units, machine, inf)
    if machine.exactly and small.size < len(machine.devices):
        small = units
    if large:
        cut_large(small, machine, best, began + time_limit)
        return
    bounds, highest = make_bounds(small, machine), highest_load(small, machine)
    most = rows_for(machine) if small.size > SMALL else None
    for number, order in enumerate(linear_orders(small, bounds.ref)):
        if clock.now() > began + time_limit / 4 and best.stage is not None:
            return
        if best.value <= bounds.lower * (1 + TOLERANCE):
            return
        family = PrefixFamily(small, bounds.ref, order)
        first = scan(family, machine, bounds.lower, highest)
        start = highest if first is None else first.value + TOLERANCE * highest
        start = min(start, best.value, highest)
        path = search(family, machine, bounds, start, most_rows=most)
        best.offer(small, family, path, f"order {number + 1}")


def _result(
    graph: CostGraph,
    machine: Machine,
    links: Link | Sequence[Link] | None,
    memory: StageMemory,
    microbatches: int | None,
    best: Incumbent,
    proof: Proof,
    started: float,
) -> CutResult:
    """Names the devices and evaluates the cut from the definition."""
    assert best.stage is not None
    order = name_devices(machine, best.steps)
    used = [machine.devices[d] for d in order]
    joints = [links] * (len(order) - 1) if isinstance(links, Link) else links
    loads = stage_loads(graph, best.stage, used, links=joints, overlap=machine.overlap)
    largest = float(loads.max())
    objective = largest if microbatches is None else Objective(microbatches).of(loads)
    return CutResult(
        assignment=np.array(order)[best.stage],
        stage=best.stage,
        device_order=tuple(order),
        loads=tuple(loads.tolist()),
        memory_bytes=tuple(stage_memory(graph, best.stage, len(order), memory).tolist()),
        max_load=largest,
        objective=objective,
        lower_bound=min(proof.lower, objective),
        contiguous=True,
        method=proof.method,
        seconds=time.perf_counter() - started,
    )
