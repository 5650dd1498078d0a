"""Mixed integer programs, solved by HiGHS."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from pipec.residency.problem import FloatArray, IntArray

WHOLE_UP_TO = 96
"""Values up to which decisions are whole; beyond, fractions of them bound nearly as well."""
NODES = 400
"""Most branch-and-bound nodes: a limit of work, so that results do not depend on the machine."""
GAP = 1e-3
"""Relative distance from the bound at which the search for whole decisions stops."""
NODES_REACHED = 1  # scipy's status


def solve(
    cost: FloatArray, integral: IntArray, bounds: Bounds, rows: LinearConstraint
) -> OptimizeResult:
    """The least cost, with whole values where ``integral`` is 1; see `scipy.optimize.milp`.

    Args:
        cost: Cost of each variable, [variables].
        integral: 1 for whole variables, [variables].
        bounds: Bounds of the variables.
        rows: What must hold of their sums.
    """
    # without presolve HiGHS calls a worse decision the optimum, once in a while
    whole = bool(integral.any())
    with _silent():
        return milp(
            cost,
            integrality=integral,
            bounds=bounds,
            constraints=rows,
            options={"node_limit": NODES, "mip_rel_gap": GAP, "presolve": whole},
        )


@cache
def _c() -> Any:
    return ctypes.CDLL(None)


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS prints from C++ now and then, whatever its options say: among a command's JSON."""
    _c().fflush(None)
    try:
        kept = os.dup(1)
    except OSError:  # closed: nothing can be printed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        _c().fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
