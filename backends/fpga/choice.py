"""Whether a board holds a stage, and which layers then stream their weights.

A multiple-choice knapsack over five resources.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array, vstack

from pipec.backends.fpga.demand import (
    RESOURCES,
    STORES,
    Demand,
    Numbers,
    Option,
    Room,
)
from pipec.backends.fpga.memory import Item, place

_DDR = RESOURCES.index("ddr")
PRICES = (1.0, 0.1)
"""What all time slots of the memory ports may count beside all of one kind of memory."""
_TRAFFIC = 100.0
"""The same where slots are all that matters."""
_TRIES = ((1.0, False), (0.97, False), (1.0, True))
"""Shares of the board that are planned with, and whether choices are whole, until one fits."""
_NODES = 200
"""Nodes of the search, at most."""
_LARGE = 0.03
"""Memories below this share of every kind may be thought of as divisible."""


def choices(demand: Demand, room: Room, price: float = PRICES[0]) -> Iterator[dict[str, int]]:
    """Layers to stream such that a board holds the stage: none; then those that take little.

    Small buffers leave memory for what waits beside the layers, and read weights more often.
    Choices at the price that is asked for come first, behind each one of little traffic.

    Args:
        demand: What a stage takes at a target.
        room: What the board offers.
        price: What the time slots of memory ports count beside memories, as shares of the board.

    Yields:
        Layer name to vectors per pass over its weights.
    """
    demand = demand.on(room)
    if _holds([g.options[0] for g in demand.groups], room.most, room):
        yield {}
    if all(len(g.options) == 1 for g in demand.groups):
        return
    limit = room.most - room.shell
    for (margin, whole), weight in itertools.product(_TRIES, (price, _TRAFFIC)):
        share = dataclasses.replace(room, most=margin * limit, lut_memory=margin * room.lut_memory)
        chosen = _chosen(demand, share, weight, whole=whole)
        if chosen is None:
            return
        if _holds(chosen, limit, room):
            taken = zip(demand.groups, chosen, strict=True)
            yield {g.layer: option.block for g, option in taken if option.block}


def _holds(options: Sequence[Option], limit: Numbers, room: Room) -> bool:
    """Whether all of these fit a board together, memories whole."""
    left = limit - np.sum([o.fixed(room.period) for o in options], axis=0)
    if (left < 0).any():
        return False
    lut, *others = left[STORES]
    items = [item for o in options for item in o.items]
    return place(items, (min(lut, room.lut_memory), *others)) is not None


def _chosen(demand: Demand, room: Room, price: float, *, whole: bool) -> list[Option] | None:
    """The option of each group, cheapest in all; None if nothing fits.

    Not whole: options are split, and each group takes the one with the largest share.
    """
    options = [o for g in demand.groups for o in g.options]
    items = [(k, item) for k, o in enumerate(options) for item in o.items]
    fixed = np.array([o.fixed(room.period) for o in options])
    use = _use(fixed, items, np.maximum(np.append(room.most, room.lut_memory), 1e-6))
    count, rows = len(options), len(use)
    free = np.array([len(g.options) > 1 for g in demand.groups for _ in g.options])
    large = (use[STORES, count:] > _LARGE).reshape(-1, len(items), 3).any(axis=(0, 2))
    integral = np.concatenate([free, np.repeat(large, 3)]).astype(np.int64)
    sums, once = _once(demand, [k for k, _ in items])
    goal = use[STORES].sum(axis=0) + price * use[_DDR] + 1e-3 * use.sum(axis=0)
    # the stubs know no sparse matrices here
    found: OptimizeResult = milp(
        goal,
        integrality=integral if whole else None,
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(
            vstack([csr_array(use), sums]),
            np.concatenate([np.full(rows, -np.inf), once]),
            np.concatenate([np.ones(rows), once]),
        ),
        options={"node_limit": _NODES, "mip_rel_gap": 0.1} if whole else None,
    )
    if found.x is None:
        return None
    ends = np.cumsum([len(g.options) for g in demand.groups])[:-1]
    shares = zip(demand.groups, np.split(found.x[:count], ends), strict=True)
    return [g.options[int(share.argmax())] for g, share in shares]


def _use(fixed: Numbers, items: list[tuple[int, Item]], room: Numbers) -> Numbers:
    """Shares of a board that options, then items in each kind of memory, take; last LUT memory."""
    count, rows = len(fixed), len(room)
    use = np.zeros((rows, count + 3 * len(items)))
    use[: rows - 1, :count] = fixed.T
    costs = np.array([item.costs for _, item in items]).reshape(-1, 3)
    at = count + 3 * np.arange(len(items))
    for kind in range(3):
        use[STORES.start + kind, at + kind] = costs[:, kind]
    use[rows - 1, at] = costs[:, 0]
    return np.asarray(use / room[:, None])


def _once(demand: Demand, owner: list[int]) -> tuple[csr_array, Numbers]:
    """One option per group, one kind per memory of an option that is taken: matrix and sums."""
    sizes = [len(g.options) for g in demand.groups]
    groups, options, items = len(sizes), sum(sizes), len(owner)
    of_items = groups + np.arange(items)
    rows = np.concatenate([np.repeat(np.arange(groups), sizes), np.repeat(of_items, 3), of_items])
    columns = np.concatenate([np.arange(options + 3 * items), np.array(owner, dtype=np.int64)])
    values = np.concatenate([np.ones(options + 3 * items), -np.ones(items)])
    shape = (groups + items, options + 3 * items)
    matrix = csr_array((values, (rows, columns)), shape=shape)
    return matrix, np.concatenate([np.ones(groups), np.zeros(items)])
