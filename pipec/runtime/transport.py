"""How a tensor gets from one device to another: what all do, and the one for a single process."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch

from pipec.runtime.tensors import TensorType


class Message(NamedTuple):
    """One tensor on its way.

    Attributes:
        channel: Name of the channel.
        number: Microbatch, or for weights the version.
        src: Sending device.
        dst: Receiving device.
        host: Whether it goes from host memory to host memory.
    """

    channel: str
    number: int
    src: int
    dst: int
    host: bool = False


class Incoming(NamedTuple):
    """A message that will be received.

    Attributes:
        message: The message.
        type: Type of its tensor.
        proves: Messages in the other direction that have arrived if this one has: its sender's row
            receives them before.
    """

    message: Message
    type: TensorType
    proves: tuple[Message, ...] = ()


class Meeting(NamedTuple):
    """Tensors of several devices that come together.

    Attributes:
        key: The same for all members, and no other meeting's.
        device: The device that calls.
        members: The devices that take part.
    """

    key: str
    device: int
    members: tuple[int, ...]


Tensors = Sequence[torch.Tensor]
Parts = list[torch.Tensor] | None


class Transport:
    """Moves tensors between devices. Sending never waits for the receiver.

    What gives None is not there yet, and is called again with the same arguments.

    Attributes:
        waits: Whether everything waits for what is not there yet.
    """

    waits = False

    def expect(self, messages: Iterable[Incoming]) -> None:
        """Tell which messages will be received, in which order, before they are."""

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor; it must not be written to until `finish`."""
        raise NotImplementedError

    def receive(self, message: Message) -> torch.Tensor | None:
        """The tensor that was sent."""
        raise NotImplementedError

    def reduce(self, at: Meeting, tensors: Tensors) -> Parts:
        """Elementwise sums over the members, in their order."""
        raise NotImplementedError

    def scatter(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """As `reduce`, of those tensors alone that this device owns; the same owners everywhere."""
        sums = self.reduce(at, tensors)
        return sums and [t for t, o in zip(sums, owners, strict=True) if o == at.device]

    def gather(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """Every tensor as its owner has it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until everything that was sent has left."""


class Loopback(Transport):
    """All devices in one process: messages are references, kept until they are received."""

    def __init__(self) -> None:
        self._waiting: dict[Message, torch.Tensor] = {}
        self._parts: dict[str, dict[int, Tensors]] = {}
        self._taken: dict[str, set[int]] = {}

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Keep the reference."""
        self._waiting[message] = tensor

    def receive(self, message: Message) -> torch.Tensor | None:
        """The very tensor that was sent."""
        return self._waiting.pop(message, None)

    def reduce(self, at: Meeting, tensors: Tensors) -> Parts:
        """Sums in the order of the members, so that every member gets the same bits."""
        parts = self._meet(at, tensors)
        if parts is None:
            return None
        result = [t.clone() for t in parts[at.members[0]]]
        for member in at.members[1:]:
            for total, t in zip(result, parts[member], strict=True):
                total.add_(t)
        return result

    def gather(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """The owners' very tensors."""
        parts = self._meet(at, tensors)
        return None if parts is None else [parts[o][k] for k, o in enumerate(owners)]

    def _meet(self, at: Meeting, tensors: Tensors) -> dict[int, Tensors] | None:
        """What every member has brought, once all of them have come."""
        parts = self._parts.setdefault(at.key, {})
        parts.setdefault(at.device, tensors)
        if len(parts) < len(at.members):
            return None
        taken = self._taken.setdefault(at.key, set())
        taken.add(at.device)
        if len(taken) == len(at.members):
            del self._parts[at.key], self._taken[at.key]
        return parts


Waits = Generator[bool, None, None]
"""What may wait for other devices: yields whether it has gone on since it was last resumed."""
_T = TypeVar("_T")


def poll(ask: Callable[[], _T | None]) -> Generator[bool, None, _T]:
    """Poll until the result is there, and return it."""
    while (found := ask()) is None:
        yield False
    yield True
    return found
