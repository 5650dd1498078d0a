"""Chunks as a 0/1 program: which place along the pipeline holds each unit, in an order encoding.

``y[v, p]`` says that unit v sits at place p or before. Place p runs on device p mod k, so device d
holds v if ``x[v, d] = sum over p = d mod k of (y[v, p] - y[v, p-1])``. OR-tools' CP-SAT solves it:
all rows of ``benchmarks.partition chunks``.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pipec.partition.costgraph import BoolArray, IntArray
from pipec.partition.units import Units

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SCALE = 2.0**30
"""Of whole numbers to the largest load: what is rounded off is less than counts as equal.

With 2**34 and more, CP-SAT 9.15 calls solutions optimal that are not (a test has one)."""
BYTES = 2.0**30
"""Of whole numbers to the bytes of the largest unit."""


def solve_model(
    units: Units,
    devices: int,
    chunks: int,
    memory_bytes: float,
    start: IntArray,
    together: BoolArray,
    upper: float,
    seconds: float,
) -> tuple[IntArray | None, float]:
    """Places of the units, and lower bound, of the best solution found in time.

    Args:
        units: What is placed, its work in row 0.
        devices: k.
        chunks: Chunks per device.
        memory_bytes: Limit per device.
        start: A placement to improve.
        together: Values that no load up to ``upper`` leaves room to cut, [hyperedges].
        upper: Its largest load; only loads up to it matter.
        seconds: Time limit.
    """
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    before, on = _place(program, units, devices, chunks)
    scale = SCALE / max(upper, 1e-300)
    slack = 1 + (units.size + len(units.pin_ptr)) / 2  # every number of a row is rounded
    load = program.new_int_var(0, int(upper * scale + slack), "")
    for d in range(devices):
        _bound_load(program, units, [row[d] for row in on], together.tolist(), load, scale)
        _bound_memory(program, units, [row[d] for row in on], memory_bytes)
    free = devices * chunks - 1
    for v, place in enumerate(start.tolist()):
        for p in range(free):
            program.add_hint(before[v][p], place <= p)
    program.minimize(load)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    lower = max(0.0, (solver.best_objective_bound - slack) / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, upper if status == cp_model.INFEASIBLE else lower
    return np.array(
        [free - sum(int(solver.value(x)) for x in row) for row in before], np.int64
    ), lower


def _place(
    program: "cp_model.CpModel", units: Units, devices: int, chunks: int
) -> "tuple[list[list[cp_model.IntVar]], list[list[cp_model.IntVar]]]":
    """The variables y and x, tied to each other and to the precedence."""
    free, n = devices * chunks - 1, range(units.size)  # at the last place all has been placed
    y = [[program.new_bool_var("") for _ in range(free)] for _ in n]
    x = [[program.new_bool_var("") for _ in range(devices)] for _ in n]
    for row in y:  # placed stays placed
        for before, after in pairwise(row):
            program.add_implication(before, after)
    for u, w in units.edges.tolist():  # a consumer is not placed before its producer
        for first, then in zip(y[u], y[w], strict=True):
            program.add_implication(then, first)
    for v in n:
        for d in range(devices):
            at = range(d, free + 1, devices)
            ends = [y[v][p] for p in at if p < free] + [y[v][p - 1] for p in at if p]
            signs = [1 for p in at if p < free] + [-1 for p in at if p]
            placed = free in at  # before its end everything has been placed
            program.add(_dot([x[v][d], *ends], [-1, *signs]) == -int(placed))
    return y, x


def _bound_load(
    program: "cp_model.CpModel",
    units: Units,
    here: "list[cp_model.IntVar]",
    together: list[bool],
    load: "cp_model.IntVar",
    scale: float,
) -> None:
    """Work and paid values of one device up to the largest load.

    On a ring of pins that are not all on the device, one is and the next is not.
    """
    cut = [program.new_bool_var("") for _ in together]
    for h, never in enumerate(together):
        pins = units.pin[units.pin_ptr[h] : units.pin_ptr[h + 1]].tolist()
        for a, b in zip(pins, pins[1:] + pins[:1], strict=True):
            program.add_bool_or([~here[a], here[b], *([] if never else [cut[h]])])
    seconds = np.concatenate([units.work[0], units.cost[0]]) * scale
    whole = np.round(seconds).astype(np.int64).tolist()
    program.add(_dot([*here, *cut], whole) <= load)


def _bound_memory(
    program: "cp_model.CpModel", units: Units, here: "list[cp_model.IntVar]", limit: float
) -> None:
    """What one device holds up to its memory."""
    held = units.held
    if limit < float(held.sum()):
        scale = BYTES / max(float(held.max()), 1.0)
        whole = np.round(held * scale).astype(np.int64).tolist()
        program.add(_dot(here, whole) <= round(limit * scale))


def _dot(columns: "list[cp_model.IntVar]", weights: list[int]) -> "cp_model.LinearExpr":
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum(columns, weights)
