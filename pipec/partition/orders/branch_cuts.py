"""A linear order with cheap cuts at given places, from the tree of a series-parallel graph.

To leave a branch after one of its units keeps few values open. Two branches beside each other, one
left after 30 seconds of work and the other after 70, are a cut at 100 that costs two values; of all
pairs of places some come close to any goal. A beam search looks for the cheapest cut near a goal,
from the whole tree down::

    in a row of items, the place with so much work in front of it; if that is within parallel
    branches, some of them are done, one is left at any place, and in another one the search
    goes on with what work is left

What lies in front of a cut and what lies behind it are trees again: the cut in the middle comes
first, the others are looked for in the two parts, so they lie in each other. A part does not know
what values of the other one cost, which are few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from math import inf, log1p
from operator import itemgetter
from typing import cast

import numpy as np

from pipec.partition.costgraph import BoolArray, FloatArray, IntArray
from pipec.partition.orders.branch_tree import NOTHING, TINY, BranchRule, BranchTree

BEAM = 16  # states that are kept from level to level
LEVELS = 150  # of branches within branches, at most
WIDE = 6  # branches beside each other that may be left anywhere: those with most work
FILLINGS, WAYS = 3, 4  # of one choice of such branches: what else is done; places
FIRST = (0.5, 0.3, 0.6, 0.75)  # which of the cuts comes first, as a share of their number
OFF = 0.15  # what a second more or less than the goal is like, in seconds of values
ALL = -1  # a branch is done

Trail = tuple["Trail | None", tuple[tuple[int, int], ...]]
"""Where branches are left, (branch, items before), innermost first in a linked list."""


@dataclass(frozen=True, eq=False)
class _Row:
    """Units and parallel branches in a row, and the stops before, between and behind them.

    Attributes:
        items: First to last.
        work: Before each stop, [items + 1].
        price: Of the values that are open at each stop, [items + 1].
        wide: Whether parallel branches follow, [items + 1].
    """

    items: list[int]
    work: FloatArray
    price: FloatArray
    wide: BoolArray


@dataclass(frozen=True, eq=False)
class _State:
    """A cut that is decided but in one branch.

    Attributes:
        cost: Of the values that it cuts elsewhere.
        branch: The one.
        left: Work of it that lies in front of the cut.
        begin: Cost of the values that all of it wait for and nothing else does.
        trail: What is decided.
    """

    cost: float
    branch: int
    left: float
    begin: float
    trail: Trail | None


def order_for_cuts(
    tree: BranchTree, root: int, goals: Sequence[float], rule: BranchRule
) -> IntArray:
    """Units in an order that can be cut cheaply near each goal.

    Args:
        tree: Of the graph; prices are in seconds.
        root: The node that holds all units.
        goals: Work in front of each cut, ascending.
        rule: Order of branches between the cuts.
    """
    search = _Search(tree)
    _, parts = min((search.parts(root, list(goals), first) for first in FIRST), key=itemgetter(0))
    return np.array([unit for part in parts for unit in tree.units(part, rule)], np.int64)


class _Search:
    def __init__(self, tree: BranchTree) -> None:
        self._tree = tree
        self._rows: dict[int, _Row] = {}
        # what a level of branches within branches is expected to cost, and how many there are
        count = max(len(tree.price), 1)
        self._level, self._unit = sum(tree.price) / count, sum(tree.weight) / count or 1.0

    def parts(self, root: int, goals: list[float], first: float) -> tuple[float, list[int]]:
        """Cost of the cuts, and the trees between them."""
        if root == NOTHING or not goals:
            return 0.0, [] if root == NOTHING else [root]
        middle = int(len(goals) * first)
        cost, stops = self._cut(root, goals[middle])
        before, behind = self._split(root, stops)
        done = 0.0 if before == NOTHING else self._tree.work_of(before)
        goals_behind = [goal - done for goal in goals[middle + 1 :]]
        cost_before, parts_before = self.parts(before, goals[:middle], first)
        cost_behind, parts_behind = self.parts(behind, goals_behind, first)
        return cost + cost_before + cost_behind, parts_before + parts_behind

    def _row(self, branch: int) -> _Row:
        found = self._rows.get(branch)
        if found is None:
            items = self._tree.items(branch)
            work = np.cumsum([0.0, *map(self._tree.work_of, items)])
            price = np.array([0.0, *map(self._tree.cost_of, items)])
            wide = np.array([*(item > NOTHING for item in items), False])
            found = self._rows[branch] = _Row(items, work, price, wide)
        return found

    def _cut(self, root: int, goal: float) -> tuple[float, dict[int, int]]:
        """Cost of the best cut, and how many items of a branch lie in front of it, if any do."""
        best, found = inf, cast("Trail | None", None)
        beam = [_State(0.0, root, goal, 0.0, None)]
        for _ in range(LEVELS):
            ways: list[_State] = []
            for state in beam:
                row = self._row(state.branch)
                at = max(int(np.searchsorted(row.work, state.left, "right")) - 1, 0)
                for stop in range(at, min(at + 2, len(row.work))):
                    off = OFF * abs(float(row.work[stop]) - state.left)
                    value = state.cost + float(row.price[stop]) + off
                    value += state.begin * (stop == 0)
                    if value < best:
                        best, found = value, (state.trail, ((state.branch, stop),))
                if row.wide[at] and row.work[at] < state.left:
                    ways += self._within(state, at)
            beam = nsmallest(BEAM, (way for way in ways if way.cost < best), key=self._promise)
            if not beam:
                break
        stops: dict[int, int] = {}
        while found is not None:
            stops.update(found[1])
            found = found[0]
        return best, stops

    def _promise(self, state: _State) -> float:
        return state.cost + self._level * log1p(state.left / self._unit)

    def _within(self, state: _State, at: int) -> Iterator[_State]:
        """Ways to go on in the parallel branches behind a stop."""
        tree, row = self._tree, self._row(state.branch)
        branches, left = tree.branches(row.items[at]), state.left - float(row.work[at])
        trail = (state.trail, ((state.branch, at),))
        open_ = float(row.price[at])  # as long as a branch is untouched
        if len(branches) == 1:
            yield _State(state.cost, branches[0], left, open_, trail)
            return
        large = nlargest(WIDE, branches, key=tree.work_of)
        by_worth = sorted(branches, key=lambda b: tree.work_of(b) / (tree.cost_of(b) + TINY))
        for last in large:
            for other in large:
                if last == other:
                    continue
                rest = [b for b in reversed(by_worth) if b not in (last, other)]
                for count, work, price in self._fillings(rest, left, last, other):
                    done = tuple((b, ALL) for b in rest[:count])
                    cost = state.cost + price + open_ * (count < len(rest))
                    begin = open_ * (count == len(rest))
                    start = _State(cost, last, left - work, begin, (trail, done))
                    yield from self._left_at(start, other)

    def _fillings(
        self, rest: list[int], left: float, last: int, other: int
    ) -> list[tuple[int, float, float]]:
        """How many of the rest are done, their work and cost: as many as may be, or fewer."""
        tree = self._tree
        work = np.cumsum([0.0, *map(tree.work_of, rest)])
        cost = np.cumsum([0.0, *map(tree.cost_of, rest)])
        least = left - tree.work_of(last) - tree.work_of(other)
        fits = np.flatnonzero((work < left) & (work > least))[-FILLINGS:]
        return [(n, float(work[n]), float(cost[n])) for n in fits.tolist()]

    def _left_at(self, start: _State, other: int) -> Iterator[_State]:
        """The other branch is left at one of its stops, those with the best prospect."""
        first, second = self._row(start.branch), self._row(other)
        left = start.left - second.work
        stops = np.flatnonzero((left > 0) & (left < first.work[-1]))
        left = left[stops]
        cost = start.cost + second.price[stops] + start.begin * (stops == 0)
        begin = start.begin * (stops > 0)
        # the branch that is searched on may be left right there, or between the two stops around
        at = np.searchsorted(first.work, left, "right") - 1
        before = first.price[at] + begin * (at == 0) + OFF * (left - first.work[at])
        behind = first.price[at + 1] + OFF * (first.work[at + 1] - left)
        ahead = np.minimum(before, behind)
        ahead = np.where(first.wide[at], np.minimum(ahead, self._level), ahead)
        for n in np.argsort(cost + ahead, kind="stable")[:WAYS].tolist():
            trail = (start.trail, ((other, int(stops[n])),))
            yield _State(float(cost[n]), start.branch, float(left[n]), float(begin[n]), trail)

    def _split(self, branch: int, stops: dict[int, int]) -> tuple[int, int]:
        """What is in front of a cut, and what is behind it."""
        if branch not in stops:
            return NOTHING, branch
        at = stops[branch]
        if at == ALL:
            return branch, NOTHING
        items = self._row(branch).items
        before, behind = items[:at], items[at:]
        if behind and behind[0] > NOTHING:
            parts = [self._split(b, stops) for b in self._tree.branches(behind[0])]
            front = [a for a, _ in parts if a != NOTHING]
            if front:
                rest = [b for _, b in parts if b != NOTHING]
                before = [*before, self._tree.beside(front)]
                behind = [self._tree.beside(rest), *behind[1:]] if rest else behind[1:]
        return self._tree.row(before), self._tree.row(behind)
