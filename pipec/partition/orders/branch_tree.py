"""The tree of a series-parallel DAG: what is beside each other, and what is in a row.

An *item* is a node of the tree (>= 0) or a unit; ``unit_item`` and ``unit_of`` convert.
"""

from collections.abc import Callable, Sequence

NOTHING = -1
_BESIDE, _ROW = -1, -2  # kinds of nodes; the others are the unit between two children
TINY = 1e-300

BranchRule = Callable[[float, float], float]
"""(work, cost of the result) -> priority of a branch; the highest comes first."""

BRANCH_RULES: tuple[BranchRule, ...] = (
    lambda work, cost: work / (cost + TINY),
    lambda work, cost: work,
    lambda work, cost: work**0.5 / (cost + TINY),
)


def unit_item(unit: int) -> int:
    """The item that is a unit."""
    return -2 - unit


unit_of = unit_item  # its own inverse


class BranchTree:
    """Nodes are only added, so trees may share parts.

    Args:
        weight: Work of each unit, [units].
        price: Cost of the values that each unit produces, [units].

    Attributes:
        work: Of all units inside, by node.
        cost: Of the values that end there, by node.
    """

    def __init__(self, weight: list[float], price: list[float]) -> None:
        self.weight, self.price = weight, price
        self.work: list[float] = []
        self.cost: list[float] = []
        self._kind: list[int] = []
        self._children: list[list[int]] = []

    def series(self, first: int, unit: int, last: int) -> int:
        """A unit between two nodes, either of which may be nothing."""
        work, cost = self.weight[unit], self.price[unit]
        if first != NOTHING:
            work += self.work[first]
        if last != NOTHING:
            work += self.work[last]
            cost = self.cost[last]
        return self._new(work, cost, unit, [first, last])

    def row(self, items: Sequence[int]) -> int:
        """Items one after the other; nothing if there are none."""
        if not items:
            return NOTHING
        work = sum(map(self.work_of, items))
        return self._new(work, self.cost_of(items[-1]), _ROW, list(items))

    def beside(self, nodes: Sequence[int]) -> int:
        """Parallel branches."""
        work, cost = sum(map(self.work_of, nodes)), sum(map(self.cost_of, nodes))
        return self._new(work, cost, _BESIDE, list(nodes))

    def widen(self, old: int, branch: int) -> int:
        """One more branch beside a node."""
        if self._kind[old] != _BESIDE:
            return self.beside([old, branch])
        self._children[old].append(branch)
        self.work[old] += self.work[branch]
        self.cost[old] += self.cost[branch]
        return old

    def _new(self, work: float, cost: float, kind: int, children: list[int]) -> int:
        self.work.append(work)
        self.cost.append(cost)
        self._kind.append(kind)
        self._children.append(children)
        return len(self._kind) - 1

    def work_of(self, item: int) -> float:
        """Work of a unit or of all units inside a node."""
        return self.work[item] if item >= 0 else self.weight[unit_of(item)]

    def cost_of(self, item: int) -> float:
        """Cost of what a unit produces, or of the values that end in a node."""
        return self.cost[item] if item >= 0 else self.price[unit_of(item)]

    def branches(self, node: int) -> list[int]:
        """Of parallel branches, each."""
        return self._children[node]

    def items(self, node: int) -> list[int]:
        """Units and parallel branches in a row, first to last."""
        found: list[int] = []
        stack = [node]
        while stack:
            item = stack.pop()
            if item < NOTHING or self._kind[item] == _BESIDE:
                found.append(item)
            else:
                stack += self._in_row(item)
        return found

    def _in_row(self, node: int) -> list[int]:
        """Items of a row, last to first."""
        unit = self._kind[node]
        if unit == _ROW:
            return self._children[node][::-1]
        first, last = self._children[node]
        return [item for item in (last, unit_item(unit), first) if item != NOTHING]

    def units(self, root: int, rule: BranchRule) -> list[int]:
        """Units inside one node, producers first, one branch after the other by a rule."""
        found: list[int] = []
        stack = [root]
        while stack:
            item = stack.pop()
            if item < NOTHING:
                found.append(unit_of(item))
            elif self._kind[item] == _BESIDE:
                stack += sorted(
                    self._children[item], key=lambda c: rule(self.work[c], self.cost[c])
                )
            else:
                stack += self._in_row(item)
        return found
