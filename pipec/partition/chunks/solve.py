"""Several contiguous chunks per device: the cut of an interleaved pipeline.

The graph is cut into v * k chunks in pipeline order; chunk p runs on device p mod k. A device pays
for the *union* of its chunks: a value that only travels between two of them is free. v = 1 is the
contiguous problem; v = 2 takes nearly all that giving up contiguity can give.

A search among ideals moves all cuts of k chunks at once (``lattice``); where there are too many
ideals for that, prefixes of several orders stand for them. Where OR-tools is installed, a 0/1
program (``model``) proves a bound as far as time allows, and may find better chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from pipec.errors import PartitionError
from pipec.partition.chunks.closure import heaviest, least_loads
from pipec.partition.chunks.lattice import Lattice
from pipec.partition.chunks.model import has_ortools, solve_model
from pipec.partition.costgraph import (
    CostGraph,
    FloatArray,
    IntArray,
    check_acyclic,
    sums,
)
from pipec.partition.devices import Device
from pipec.partition.fitting import NOTHING, fit_memory
from pipec.partition.machine import Machine, make_machine
from pipec.partition.proof.bounds import highest_load, make_bounds
from pipec.partition.proof.grain import least_share
from pipec.partition.proof.reduce import reduce_units
from pipec.partition.result import NO_GAP, CutResult, stage_loads
from pipec.partition.solve import solve_contiguous
from pipec.partition.units import Units, make_units

MODEL_LIMIT, MODEL_RATE = 40_000, 2_000  # variables, in all and per second of the limit
PAIRS = 150_000_000
"""Pairs of ideals per second of the time limit, so that the same limit finds the same cut on any
machine that is not much slower."""
LISTED_UNTIL, SEARCH_UNTIL, MODEL_UNTIL = 0.2, 0.3, 0.8
"""Shares of the limit that stop the list of ideals, the first search, and the program."""


def solve_chunks(
    graph: CostGraph, devices: Sequence[Device], chunks: int, *, time_limit: float = 20.0
) -> CutResult:
    """Cuts a graph into ``chunks`` stretches per device so that the largest load is least.

    Args:
        graph: The problem; values are priced in seconds.
        devices: Equal devices that pay for communication, at most 62.
        chunks: Chunks per device, in cyclic order along the pipeline; some may be empty.
        time_limit: Seconds.

    Returns:
        The cut; ``stage`` is the chunk, ``assignment`` the device, ``loads`` are per device.

    Raises:
        PartitionError: A cyclic graph, unlike devices, or a memory limit that nothing met.
    """
    began = perf_counter()
    check_acyclic(graph)
    if chunks < 1 or len(set(devices)) != 1 or not devices[0].pays or len(devices) > 62:
        raise PartitionError(
            "chunks need at least one chunk and up to 62 equal devices that pay communication",
            got=f"{chunks} chunks, {len(devices)} devices of {len(set(devices))} kinds",
            hint="leave out the CPUs: --cpus 0",
        )
    machine = make_machine(graph, devices, exactly=False)
    row = machine.rows[0]
    units = reduce_units(make_units(graph, graph.seconds[None]), machine, inf)
    if np.isinf(units.work[row]).any():
        raise PartitionError("some nodes cannot run on these devices", got=devices[0].kind)
    units.work[0] = units.work[row]
    problem = _Problem(graph, units, machine, chunks, time_limit)
    best, lower, method = problem.solve()
    if best is None:
        raise _too_small(graph, units, machine)
    return _result(graph, devices, best, lower, method, began)


def _too_small(graph: CostGraph, units: Units, machine: Machine) -> PartitionError:
    """Says what there is, what surely does not do, and what does: the best contiguous cut."""
    limit, count = machine.devices[0].memory_bytes, len(machine.devices)
    held = units.weight_bytes + units.activation_bytes
    least = max(least_share(held, count), float(held.max()))
    enough = fit_memory(graph, machine).enough * max(limit, NOTHING)
    return PartitionError(
        "no cut into chunks was found that fits the memory",
        got=f"{limit:.10g} bytes on each of {count} devices for {held.sum():.6g} bytes in all",
        want=f"{enough:.10g} bytes on each: with that one chunk per device fits; "
        f"with less than {least:.10g} nothing does",
        hint="use more devices, or larger ones",
    )


@dataclass(eq=False)
class _Problem:
    """The phases of ``solve_chunks`` and what they share."""

    graph: CostGraph
    units: Units
    machine: Machine
    chunks: int
    time_limit: float

    def __post_init__(self) -> None:
        self._began = perf_counter()
        self.devices = self.machine.devices
        self.memory_bytes = self.devices[0].memory_bytes
        self.best: IntArray | None = None
        self.largest = inf

    def solve(self) -> tuple[IntArray | None, float, str]:
        """Chunk of every node, bound, and method."""
        units, k = self.units, len(self.devices)
        alone = least_loads(units, units.work[0], heaviest(units.work[0])).max()
        lower = max(make_bounds(units, self.machine).lower, float(alone))
        self._offer(_contiguous(self.graph, self.devices))
        method = "contiguous"
        if self._proven(lower):
            return self.best, lower, method
        limits = self.memory_bytes, self.time_limit, self._until(LISTED_UNTIL)
        lattice = Lattice(units, units.work[0], k, self.chunks, *limits)
        first = SEARCH_UNTIL if has_ortools() else 1.0
        self._search(lattice, 0.0, first)
        method = "search among ideals"
        if has_ortools() and not self._proven(lower):
            most = min(MODEL_LIMIT, MODEL_RATE * self.time_limit)
            if units.size * k * self.chunks <= most:
                first = MODEL_UNTIL
                upper = min(self.largest, highest_load(units, self.machine))
                left = max(self._until(MODEL_UNTIL) - perf_counter(), 1.0)
                better, bound = solve_model(
                    units, k, self.chunks, self.memory_bytes, self._start(), upper, left
                )
                lower, method = max(lower, bound), f"{method}, CP-SAT"
                self._offer_units(better)
            if not self._proven(lower):
                self._search(lattice, first, 1.0)
        return self.best, lower, method

    def _search(self, lattice: Lattice, since: float, until: float) -> None:
        pairs, seed = int(PAIRS * (until - since) * self.time_limit), round(100 * since)
        self._offer_units(lattice.search(pairs, self._until(until), seed))

    def _until(self, share: float) -> float:
        return self._began + share * self.time_limit

    def _proven(self, lower: float) -> bool:
        return self.largest - lower <= NO_GAP * self.largest

    def _offer_units(self, chunk: IntArray | None) -> None:
        self._offer(None if chunk is None else chunk[self.units.of_node])

    def _offer(self, chunk: IntArray | None) -> None:
        """Takes a chunk of every node if its largest load is less."""
        if chunk is None:
            return
        value = float(stage_loads(self.graph, chunk % len(self.devices), self.devices).max())
        if value < self.largest:
            self.best, self.largest = chunk, value

    def _start(self) -> IntArray:
        """The best placement on units."""
        if self.best is None:
            return np.zeros(self.units.size, np.int64)
        return self.units.stages(self.best)


def _contiguous(graph: CostGraph, devices: Sequence[Device]) -> IntArray | None:
    """The best contiguous cut: chunks beyond the first round stay empty."""
    try:
        return solve_contiguous(graph, devices, exactly=False, time_limit=1.0).assignment
    except PartitionError:  # nothing contiguous fits the memory; chunks may
        return None


def _result(
    graph: CostGraph,
    devices: Sequence[Device],
    stage: IntArray,
    lower: float,
    method: str,
    began: float,
) -> CutResult:
    count = len(devices)
    assignment = stage % count
    loads: FloatArray = stage_loads(graph, assignment, devices)
    held = sums(assignment, graph.weight_bytes + graph.activation_bytes, count)
    largest = float(loads.max())
    return CutResult(
        assignment=assignment,
        stage=stage,
        device_order=tuple(range(count)),
        loads=tuple(loads.tolist()),
        memory_bytes=tuple(held.tolist()),
        max_load=largest,
        lower_bound=min(lower, largest),
        contiguous=False,
        method=method,
        seconds=perf_counter() - began,
    )
