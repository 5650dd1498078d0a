"""A first cut of one order: give every device as much as a trial limit allows, bisect the limit."""

from math import inf

import numpy as np

from pipec.partition.machine import Machine, Step
from pipec.partition.search.family import PrefixFamily
from pipec.partition.search.frontier import Path, allowed, loads, relay_seconds

STRIP = 256
ROUNDS = 26


def scan(family: PrefixFamily, machine: Machine, lower: float, highest: float) -> Path | None:
    """A cut of this order whose loads stay within its ``value``; None if none is found.

    Args:
        family: The prefixes of the order.
        machine: The devices, taken in the given order.
        lower: A load below which there is no cut.
        highest: A load that no stage exceeds.
    """
    steps = _given_order(machine)
    low, best = lower, None
    trial = max(lower * 1.02, 1e-12 * highest)
    for _ in range(ROUNDS):
        rows = _rows(family, machine, steps, trial)
        if rows is None:
            low = trial
        else:
            taken = [(row, step) for row, step in zip(rows, steps, strict=False) if row > 0]
            used = [pair for n, pair in enumerate(taken) if not n or pair[0] > taken[n - 1][0]]
            best = Path(trial, tuple(r for r, _ in used), tuple(s for _, s in used))
        high = inf if best is None else best.value
        trial = (low + high) / 2 if high < inf else max(low * 2, 1e-3 * highest)
        if high - low <= 1e-6 * low or low >= highest:
            break
    return best


def _given_order(machine: Machine) -> list[Step]:
    """The steps that take the devices as listed."""
    state, path = 0, []
    outgoing: dict[tuple[int, int], Step] = {
        (s.source, s.kind): s for steps in machine.steps for s in steps
    }
    for device in machine.devices:
        step = outgoing[state, machine.kinds.index(device)]
        path.append(step)
        state = step.target
    return path


def _rows(
    family: PrefixFamily, machine: Machine, steps: list[Step], limit: float
) -> list[int] | None:
    """End of every stage if the greedy scan covers the whole order within the limit."""
    at, last = 0, len(family.ref) - 1
    rows: list[int] = []
    for number, step in enumerate(steps):
        left = len(steps) - number - 1
        most = last - left if machine.exactly else last
        ahead = _farthest(family, machine, step, at, most, limit)
        idle = ahead == at
        if idle and machine.exactly:
            return None
        if idle and relay_seconds(family, machine, step, np.array([at]))[0] > limit:
            return None
        at = ahead
        rows.append(at)
    return rows if at == last else None


def _farthest(
    family: PrefixFamily, machine: Machine, step: Step, at: int, most: int, limit: float
) -> int:
    """The last prefix that the device reaches from ``at``; ``at`` if none."""
    work = family.work[machine.rows[step.kind]]
    end = min(most, int(np.searchsorted(work, work[at] + limit, "right")) - 1)
    source = np.array([[at]])
    while end > at:
        strip = np.arange(max(at + 1, end - STRIP + 1), end + 1)
        good = loads(family, machine, step, source, strip, rough=True)[0] <= limit
        good &= allowed(family, machine, step, source, strip)[0]
        hits = np.flatnonzero(good)
        if len(hits):
            return int(strip[hits[-1]])
        end = int(strip[0]) - 1
    return at
