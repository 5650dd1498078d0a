"""Several contiguous chunks per device: the cut of an interleaved pipeline.

The graph is cut into v * k chunks in pipeline order; chunk p runs on device p mod k. A device pays
for the *union* of its chunks: a value that only travels between two of them is free. v = 1 is the
contiguous problem, whose best cut is where the 0/1 program (``model``) starts; v = 2 takes nearly
all that giving up contiguity can give.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from time import perf_counter

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.chunks.model import solve_model
from pipec.partition.costgraph import CostGraph, IntArray, check_acyclic
from pipec.partition.devices import Device
from pipec.partition.fitting import NOTHING, check_runnable, fit_memory
from pipec.partition.machine import make_machine
from pipec.partition.proof.bounds import TOLERANCE, highest_load, make_bounds
from pipec.partition.proof.reduce import find_never_cut, reduce_units
from pipec.partition.result import NO_GAP, CutResult, make_result, stage_loads
from pipec.partition.solve import solve_contiguous
from pipec.partition.units import make_units

CONTIGUOUS = 0.1
"""Most of the time limit that the first cut takes."""
MODEL_LIMIT = 100_000
"""Variables up to which the program is solved; a larger graph keeps its contiguous cut."""


def solve_chunks(
    graph: CostGraph, devices: Sequence[Device], chunks: int, *, time_limit: float = 20.0
) -> CutResult:
    """Cuts a graph into ``chunks`` stretches per device so that the largest load is least.

    Args:
        graph: The problem; values are priced in seconds.
        devices: Equal devices that pay for communication.
        chunks: Chunks per device, in cyclic order along the pipeline; some may be empty.
        time_limit: Seconds.

    Returns:
        The cut; ``stage`` is the chunk, ``assignment`` the device, ``loads`` are per device.

    Raises:
        PartitionError: A cyclic graph, unlike devices, a memory limit that none keeps, or OR-tools
            is not installed.
    """
    began = perf_counter()
    check_acyclic(graph)
    if chunks < 1 or len(set(devices)) != 1 or not devices[0].pays:
        raise PartitionError(
            "chunks need at least one chunk and equal devices that pay communication",
            got=f"{chunks} chunks, {len(devices)} devices of {len(set(devices))} kinds",
            hint="leave out the CPUs: --cpus 0",
        )
    if find_spec("ortools") is None:
        raise PartitionError(
            "chunks need OR-tools", got="not installed", hint="pip install 'pipec[chunks]'"
        )
    machine, k = make_machine(graph, devices, exactly=False), len(devices)
    row, limit = machine.rows[0], devices[0].memory_bytes
    check_runnable(graph, machine)
    units = reduce_units(make_units(graph, graph.seconds[None]), machine, inf)
    units.work[0] = units.work[row]
    best, largest = _contiguous(graph, devices, CONTIGUOUS * time_limit)
    start = np.zeros(units.size, np.int64) if best is None else units.stages(best)
    upper = min(largest, highest_load(units, machine))
    left = max(time_limit - (perf_counter() - began), 0.1)
    lower, placed = make_bounds(units, machine).lower, None
    if lower < largest * (1 - NO_GAP) and units.size * k * chunks <= MODEL_LIMIT:
        together = find_never_cut(units, machine, upper * (1 + TOLERANCE))
        placed, bound = solve_model(units, k, chunks, limit, start, together, upper, left)
        lower = max(lower, bound)
    if placed is not None:
        value = float(stage_loads(graph, placed[units.of_node] % k, devices).max())
        best = placed[units.of_node] if value < largest else best
    if best is None:
        held = units.held
        enough = fit_memory(graph, machine).enough * max(limit, NOTHING)
        raise PartitionError(
            "no cut into chunks was found that fits the memory",
            got=f"{limit:.10g} bytes on each of {k} devices for {held.sum():.6g} bytes in all",
            want=f"{enough:.10g} bytes on each: with that one chunk "
            f"per device fits; with less than {max(held.sum() / k, held.max()):.10g} nothing does",
            hint="use more devices, or larger ones",
        )
    loads = stage_loads(graph, best % k, devices)
    return make_result(graph, best, range(k), loads, lower, "CP-SAT", began)


def _contiguous(
    graph: CostGraph, devices: Sequence[Device], seconds: float
) -> tuple[IntArray | None, float]:
    """The best contiguous cut and its largest load: chunks beyond the first round stay empty."""
    try:
        cut = solve_contiguous(graph, devices, exactly=False, time_limit=seconds)
    except PartitionError:  # nothing contiguous fits the memory; chunks may
        return None, inf
    return cut.assignment, cut.max_load
