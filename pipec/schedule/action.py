"""The words of a schedule: the kinds of actions of a device, and their text form ``2F0``.

```text
2F0          forward of microbatch 0 on stage 2
1SEND_F3     stage 1 sends the activations of microbatch 3 onwards
0B4.1@3      backward of microbatch 4 on replica 1 of stage 0, with weight version 3
0STEP@5      the optimizer step that makes version 5 of stage 0
```

Stage, kind and microbatch are written as torch.distributed.pipelining writes them.
"""

import re
from enum import IntEnum
from typing import NamedTuple

from pipec.errors import ScheduleError


class ActionKind(IntEnum):
    """What an action does. The names are those of torch.distributed.pipelining where it has one.

    ``S`` in ``SEND_S`` are the *saved* values of a forward pass and ``W`` in ``SEND_W`` the
    *weights* after a step; both travel only where the forward and the backward pass of a stage
    run on different devices (PipeFB).
    """

    F = 0  # forward
    B = 1  # full backward: gradients of inputs and of weights
    I = 2  # backward, gradients of inputs only  # noqa: E741
    W = 3  # backward, gradients of weights only
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    SEND_S = 8
    RECV_S = 9
    SEND_W = 10
    RECV_W = 11
    OFFLOAD = 12  # saved values: device to host memory
    FETCH = 13  # saved values: host to device memory
    REDUCE_GRAD = 14  # all-reduce of gradients over the replicas of a stage
    STEP = 15  # optimizer step: makes the next weight version
    OFFLOAD_O = 16  # the optimizer's state: device to host memory
    FETCH_O = 17  # the optimizer's state: host to device memory

    @property
    def is_compute(self) -> bool:
        """Whether it is one of F, B, I, W."""
        return self <= ActionKind.W


COMPUTE = (ActionKind.F, ActionKind.B, ActionKind.I, ActionKind.W)
TO_HOST = (ActionKind.OFFLOAD, ActionKind.OFFLOAD_O)
FROM_HOST = (ActionKind.FETCH, ActionKind.FETCH_O)
OF_UPDATES = (ActionKind.STEP, ActionKind.REDUCE_GRAD, ActionKind.SEND_W, ActionKind.RECV_W,
              ActionKind.OFFLOAD_O, ActionKind.FETCH_O)  # fmt: skip
"""Kinds that belong to an update of a stage's weights, and to no microbatch."""

_TEXT = re.compile(
    r"(?P<stage>\d+)(?P<kind>[A-Z][A-Z_]*)(?P<microbatch>\d+)?"
    r"(?:\.(?P<replica>\d+))?(?:@(?P<version>\d+))?(?::(?P<channel>[^,\s]+))?"
)


class Action(NamedTuple):
    """One thing that one device does.

    Attributes:
        stage: Pipeline stage, 0-based.
        kind: What is done.
        microbatch: Its microbatch, or None for steps, reductions and weights.
        replica: The replica of the stage that does it.
        version: Weight version that is used (F, B, I, W), made (STEP), reduced towards
            (REDUCE_GRAD), carried (SEND_W, RECV_W) or made next (OFFLOAD_O, FETCH_O). Version 0
            is what training starts with.
        channel: Name of the channel or host slot, where it has one.

    Example:
        >>> action = Action.parse("1SEND_F3")
        >>> action.stage, action.kind.name, action.microbatch
        (1, 'SEND_F', 3)
        >>> str(Action(0, ActionKind.B, 4, replica=1, version=3))
        '0B4.1@3'
    """

    stage: int
    kind: ActionKind
    microbatch: int | None = None
    replica: int = 0
    version: int = 0
    channel: str = ""

    def __str__(self) -> str:
        return (
            self.plain
            + (f".{self.replica}" if self.replica else "")
            + (f"@{self.version}" if self.version else "")
            + (f":{self.channel}" if self.channel else "")
        )

    @property
    def plain(self) -> str:
        """The part that torch.distributed.pipelining knows: stage, kind, microbatch."""
        return f"{self.stage}{self.kind.name}{'' if self.microbatch is None else self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read what ``str`` wrote.

        Raises:
            ScheduleError: The text is no action, or names an unknown kind.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(
                "not an action", got=repr(text), want="<stage><kind><microbatch>, such as 2F0"
            )
        kind = match["kind"]
        if kind not in ActionKind.__members__:
            known = ", ".join(ActionKind.__members__)
            raise ScheduleError(f"unknown action kind {kind!r}", got=repr(text), want=known)
        microbatch = match["microbatch"]
        return cls(
            int(match["stage"]),
            ActionKind[kind],
            None if microbatch is None else int(microbatch),
            int(match["replica"] or 0),
            int(match["version"] or 0),
            match["channel"] or "",
        )
