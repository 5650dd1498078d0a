"""Chunks as a 0/1 program: which place along the pipeline holds each unit, in an order encoding.

``y[v, p]`` says that unit v sits at place p or before. Place p runs on device p mod k, so device d
holds v if ``x[v, d] = sum over p = d mod k of (y[v, p] - y[v, p-1])``. One program for two solvers:
HiGHS, which scipy brings, and OR-tools' CP-SAT, which is better and used where it is installed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from pipec.partition.costgraph import FloatArray, IntArray
from pipec.partition.proof.bounds import TOLERANCE
from pipec.partition.units import Units

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SCALE = 2.0**40
"""Of whole numbers to the largest load: what is rounded off is less than counts as equal."""


@dataclass(eq=False)
class ChunkModel:
    """Rows ``sum of coefficient * variable <= bound``; the last variable is the largest load.

    Attributes:
        units: What is placed.
        devices: k.
        chunks: Chunks per device.
        memory_bytes: Limit per device.
        upper: Only largest loads below it matter.
        columns: Number of variables.
        rows: Coefficients by variable.
        bounds: Right-hand sides.
    """

    units: Units
    devices: int
    chunks: int
    memory_bytes: float
    upper: float
    columns: int = 0
    rows: list[dict[int, float]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        edges = len(self.units.pin_ptr) - 1
        places = self.devices * self.chunks
        self._free = places - 1  # at the last place everything has been placed
        self._first_on = self.units.size * self._free
        self._first_cut = self._first_on + self.units.size * self.devices
        self.columns = self._first_cut + edges * self.devices + 1
        self._order_rows()
        self._device_rows()
        self._cut_rows()
        self._load_rows()

    def _order_rows(self) -> None:
        """Placed stays placed; a consumer is not placed before its producer."""
        for v in range(self.units.size):
            for p in range(self._free - 1):
                self._row([(self._before(v, p), 1.0), (self._before(v, p + 1), -1.0)], 0.0)
        for u, w in self.units.edges.tolist():
            for p in range(self._free):
                self._row([(self._before(w, p), 1.0), (self._before(u, p), -1.0)], 0.0)

    def _device_rows(self) -> None:
        """x[v, d], as two inequalities."""
        for v in range(self.units.size):
            for d in range(self.devices):
                terms, constant = self._placed(v, d)
                minus = [(column, -x) for column, x in terms]
                self._row([(self._on(v, d), 1.0), *minus], constant)
                self._row([(self._on(v, d), -1.0), *terms], -constant)

    def _cut_rows(self) -> None:
        """On a ring of pins that are not all on a device, one is and the next is not.

        A value that is cut is paid for twice at least; where the loads below ``upper`` leave no
        room for that, or it alone costs more, it is not cut.
        """
        units = self.units
        spare = self.devices * self.upper - float(units.work[0].sum())
        whole = 2 * units.cost[0] > spare * (1 + TOLERANCE)
        whole |= units.cost[0] > self.upper * (1 + TOLERANCE)
        for h in range(len(units.pin_ptr) - 1):
            pins = units.pin[units.pin_ptr[h] : units.pin_ptr[h + 1]].tolist()
            for a, b in zip(pins, pins[1:] + pins[:1], strict=True):
                for d in range(self.devices):
                    ends = [(self._on(a, d), 1.0), (self._on(b, d), -1.0)]
                    self._row(ends if whole[h] else [*ends, (self._cut(h, d), -1.0)], 0.0)

    def _load_rows(self) -> None:
        """Work and paid values up to the largest load; memory up to the limit."""
        units, cost = self.units, self.units.cost[0].tolist()
        for d in range(self.devices):
            here = [self._on(v, d) for v in range(units.size)]
            work = zip(here, units.work[0].tolist(), strict=True)
            paid = ((self._cut(h, d), price) for h, price in enumerate(cost))
            self._row([*work, *paid, (self.columns - 1, -1.0)], 0.0)
            held = units.weight_bytes + units.activation_bytes
            if self.memory_bytes < float(held.sum()):
                self._row(zip(here, held.tolist(), strict=True), self.memory_bytes)

    def _before(self, v: int, p: int) -> int:
        return v * self._free + p

    def _on(self, v: int, d: int) -> int:
        return self._first_on + v * self.devices + d

    def _cut(self, h: int, d: int) -> int:
        return self._first_cut + h * self.devices + d

    def _placed(self, v: int, d: int) -> tuple[list[tuple[int, float]], float]:
        """x[v, d] as terms and a constant."""
        terms, constant = [], 0.0
        for p in range(d, self._free + 1, self.devices):
            if p < self._free:
                terms.append((self._before(v, p), 1.0))
            else:
                constant += 1.0
            if p:
                terms.append((self._before(v, p - 1), -1.0))
        return terms, constant

    def _row(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        row: dict[int, float] = {}
        for column, x in terms:
            row[column] = row.get(column, 0.0) + x
        self.rows.append(row)
        self.bounds.append(bound)

    def places(self, values: FloatArray) -> IntArray:
        """Place of every unit from the variables."""
        before = values[: self._first_on].reshape(self.units.size, self._free) > 0.5
        return np.asarray(self._free - before.sum(axis=1), np.int64)

    def variables(self, places: IntArray) -> list[int]:
        """The order variables of a placement, for a hint."""
        at: list[int] = (places[:, None] <= np.arange(self._free)).astype(int).ravel().tolist()
        return at


def has_ortools() -> bool:
    """Whether the better solver is installed."""
    return find_spec("ortools") is not None


def solve_model(
    model: ChunkModel, start: IntArray, upper: float, seconds: float
) -> tuple[IntArray | None, float, str]:
    """Places and lower bound of the best solution found in time, and by which solver.

    Args:
        model: The program.
        start: A placement to improve.
        upper: Its largest load.
        seconds: Time limit.
    """
    if has_ortools():
        return _cp_sat(model, start, upper, seconds)
    return _highs(model, upper, seconds)


def _cp_sat(
    model: ChunkModel, start: IntArray, upper: float, seconds: float
) -> tuple[IntArray | None, float, str]:
    from ortools.sat.python import cp_model

    scale = SCALE / max(upper, 1e-300)
    program = cp_model.CpModel()
    slack = 1 + max(map(len, model.rows)) / 2  # every number of a row is rounded
    load = program.new_int_var(0, int(upper * scale + slack), "")
    x = [program.new_bool_var("") for _ in range(model.columns - 1)]
    for row, bound in zip(model.rows, model.bounds, strict=True):
        _add(program, x, load, row, bound, scale)
    for column, value in enumerate(model.variables(start)):
        program.add_hint(x[column], value)
    program.minimize(load)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    lower = max(0.0, (solver.best_objective_bound - slack) / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, upper if status == cp_model.INFEASIBLE else lower, "CP-SAT"
    values = np.array([float(solver.value(v)) for v in x])
    return model.places(values), lower, "CP-SAT"


def _add(
    program: "cp_model.CpModel",
    x: "list[cp_model.IntVar]",
    load: "cp_model.IntVar",
    row: dict[int, float],
    bound: float,
    scale: float,
) -> None:
    """Adds one row: as a clause if it forbids a single assignment, else in whole numbers."""
    ups = [column for column, c in row.items() if c == 1.0]
    downs = [column for column, c in row.items() if c == -1.0]
    if len(x) not in row and len(ups) + len(downs) == len(row) and bound == len(ups) - 1:
        program.add_bool_or([*(~x[column] for column in ups), *(x[column] for column in downs)])
        return
    largest = max(map(abs, row.values()), default=1.0)
    whole = largest < 2**20 and all(float(c).is_integer() for c in row.values())
    by = scale if len(x) in row else 1.0 if whole else 2**30 / largest
    terms = [round(c * by) * x[column] for column, c in row.items() if column < len(x)]
    program.add(sum(terms) - (load if len(x) in row else 0) <= round(bound * by))


def _highs(model: ChunkModel, upper: float, seconds: float) -> tuple[IntArray | None, float, str]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    data = [x for row in model.rows for x in row.values()]
    column = [c for row in model.rows for c in row]
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in model.rows])])
    matrix = csr_array((data, column, ptr), shape=(len(model.rows), model.columns))
    cost = np.zeros(model.columns)
    cost[-1] = 1.0
    high = np.ones(model.columns)
    high[-1] = upper
    whole = np.ones(model.columns, np.int64)
    whole[-1] = 0
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, ub=np.array(model.bounds)),
        bounds=Bounds(np.zeros(model.columns), high),
        integrality=whole,
        options={"time_limit": seconds},
    )
    lower = 0.0 if found.mip_dual_bound is None else float(found.mip_dual_bound)
    return (None if found.x is None else model.places(found.x)), lower, "HiGHS"
