"""Writing one device's row action by action; microbatches count up by themselves."""

from collections import Counter, deque

from pipec.schedule.action import ActionKind

F, B, I, W = ActionKind.F, ActionKind.B, ActionKind.I, ActionKind.W  # noqa: E741


class Program:
    """The row of one device under construction.

    Each F, and each B or I, of a stage takes the next microbatch; W takes the oldest I whose
    weight gradients are still due, on whatever stage.

    Example:
        >>> program = Program()
        >>> program.put(F, 0).put(F, 0).put(B, 0).row
        [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    """

    def __init__(self) -> None:
        self.row: list[tuple[int, int, int]] = []
        self.done: Counter[tuple[ActionKind, int]] = Counter()
        self.due: deque[tuple[int, int]] = deque()

    def put(self, kind: ActionKind, stage: int) -> "Program":
        """Append F, B or I of the next microbatch of a stage."""
        key = F if kind is F else B
        microbatch = self.done[key, stage]
        self.done[key, stage] += 1
        self.row.append((stage, int(kind), microbatch))
        if kind is I:
            self.due.append((stage, microbatch))
        return self

    def put_w(self, stage: int | None = None) -> "Program":
        """Append the oldest W that is due (of one stage, if given); nothing if none is."""
        for waiting in self.due:
            if stage is None or waiting[0] == stage:
                self.due.remove(waiting)
                self.row.append((waiting[0], int(W), waiting[1]))
                break
        return self


def alternate(
    forward: list[int], backward: list[int], ahead: int, delay: int | None
) -> list[tuple[int, int, int]]:
    """``ahead`` forwards, then one forward and one backward, then the rest.

    With ``delay`` the backward is split, and each W runs ``delay`` backwards behind its I.
    """
    program = Program()
    for stage in forward[:ahead]:
        program.put(F, stage)
    for turn, stage in enumerate(backward):
        if ahead + turn < len(forward):
            program.put(F, forward[ahead + turn])
        program.put(B if delay is None else I, stage)
        if delay is not None and turn >= delay:
            program.put_w()
    while program.due:
        program.put_w()
    return program.row
