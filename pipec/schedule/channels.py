"""What flows between actions: one channel per value and hop, with its bytes and depth.

```text
kind  carries                  from            to               sent / received by
F     activations              F of src        F of dst         SEND_F / RECV_F
B     their gradients          B or I of src   B or I of dst    SEND_B / RECV_B
S     saved values, direct     F of src        B or I of dst    SEND_S / RECV_S
H     saved values, via host   F of src        B or I of dst    OFFLOAD / FETCH
W     weights                  STEP of src     F of dst         SEND_W / RECV_W
```

A channel whose two ends lie on one device needs no send and receive; ``H`` always has its copies.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind


class ChannelKind(IntEnum):
    """What a channel carries (the table above)."""

    F = 0
    B = 1
    S = 2
    H = 3
    W = 4

    @property
    def send(self) -> ActionKind:
        """The action that puts a value in."""
        return _ENDS[self][0]

    @property
    def receive(self) -> ActionKind:
        """The action that takes it out."""
        return _ENDS[self][1]


_ENDS = {
    ChannelKind.F: (ActionKind.SEND_F, ActionKind.RECV_F),
    ChannelKind.B: (ActionKind.SEND_B, ActionKind.RECV_B),
    ChannelKind.S: (ActionKind.SEND_S, ActionKind.RECV_S),
    ChannelKind.H: (ActionKind.OFFLOAD, ActionKind.FETCH),
    ChannelKind.W: (ActionKind.SEND_W, ActionKind.RECV_W),
}

KIND_OF = {end: kind for kind, ends in _ENDS.items() for end in ends}
"""Sending or receiving action to the kind of channel."""
FROM_FORWARD = (ChannelKind.F, ChannelKind.S, ChannelKind.H)
TO_FORWARD = (ChannelKind.F, ChannelKind.W)
"""Channels whose messages leave, and arrive, where forwards run; others where backwards do."""


@dataclass(frozen=True)
class Channel:
    """One value's way from one stage to another (or, for ``H``, to the host and back).

    Attributes:
        kind: What it carries.
        src: Stage that produces.
        dst: Stage that consumes; for B channels it lies before ``src``.
        name: Name, unique among named channels; empty for the plain chain of a generator.
        nbytes: Bytes per microbatch (per update for W).
        depth: Slots: 0 is a rendezvous (send and receive start together), n holds n values that
            were sent and not yet consumed, None has no limit. For H: sets of saved values that
            may be on the device on either side of the copy, and how many compute actions before
            its backward a set begins to come back; 0: one set in all. At depths 0 and 2 it comes
            back once the one that was made last has left, and into its memory.
    """

    kind: ChannelKind
    src: int
    dst: int
    name: str = ""
    nbytes: int = 0
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise ScheduleError(
                "channel depth out of range",
                where=f"{self.kind.name} from stage {self.src} to {self.dst} {self.name}".rstrip(),
                got=self.depth,
                want="0 or more",
            )
        if self.nbytes < 0:
            raise ScheduleError("a channel cannot carry negative bytes", where=self)
        if set(self.name) & set(", \t\n"):
            raise ScheduleError("a channel name has no commas or blanks", got=repr(self.name))

    @property
    def in_place(self) -> bool:
        """Whether what comes back waits for what left last, and takes its memory."""
        return self.kind is ChannelKind.H and self.depth in (0, 2)

    def to_json(self) -> list[object]:
        """As a JSON list: kind, src, dst, name, bytes, depth."""
        return [self.kind.name, self.src, self.dst, self.name, self.nbytes, self.depth]


def chain(forward: int, backward: int) -> tuple[Channel, ...]:
    """The channels of a plain pipeline: stage to next stage, gradients back, saved values stay.

    Args:
        forward: Number of stages that run forward.
        backward: Number of stages that run backward: 0 (inference) or as many as forward.
    """
    f = [Channel(ChannelKind.F, s, s + 1) for s in range(forward - 1)]
    b = [Channel(ChannelKind.B, s, s - 1) for s in range(1, backward)]
    s_ = [Channel(ChannelKind.S, s, s) for s in range(backward)]
    w = [Channel(ChannelKind.W, s, s) for s in range(backward)]
    return (*f, *b, *s_, *w)


def slots_of(src: int, dst: int, depth: int = 2) -> int:
    """Slots of a value's channel, so that a value that skips stages does not stop those between.

    Args:
        src: Stage that computes the value.
        dst: Stage that reads it.
        depth: Slots to the next stage. Every stage that is skipped holds a microbatch meanwhile,
            which adds one; a rendezvous (0) stays one.
    """
    return depth + abs(dst - src) - 1 if depth else 0


def value(
    name: str, src: int, dst: int, nbytes: int, *, depth: int | None = 2, gradient: bool = True
) -> tuple[Channel, ...]:
    """A value that stage ``src`` sends to ``dst``, and its gradient on the way back.

    Args:
        name: Name of the value's channel; the gradient's is ``<name>.grad``.
        src: Stage that computes the value.
        dst: Stage that reads it; any later stage.
        nbytes: Bytes of one microbatch, the same for the gradient.
        depth: Slots of each of the two channels.
        gradient: Whether a gradient flows back (not for integers, masks, inference).
    """
    there = Channel(ChannelKind.F, src, dst, name, nbytes, depth)
    back = Channel(ChannelKind.B, dst, src, f"{name}.grad" if name else "", nbytes, depth)
    return (there, back) if gradient else (there,)


def check_channels(channels: Iterable[Channel], forward: int, backward: int) -> None:
    """Refuse channels that name stages which do not exist, or one name twice.

    Raises:
        ScheduleError: With the channel at fault.
    """
    seen: set[str] = set()
    for c in channels:
        sources = forward if c.kind in FROM_FORWARD else backward
        targets = forward if c.kind in TO_FORWARD else backward
        if not (0 <= c.src < sources and 0 <= c.dst < targets):
            raise ScheduleError(
                f"channel {c.name or c.kind.name} runs from stage {c.src} to {c.dst}",
                want=f"a source below {sources} and a target below {targets}",
            )
        if c.name and c.name in seen:
            raise ScheduleError("two channels have one name", got=c.name)
        seen.add(c.name)
