"""The transport between processes: torch.distributed, one rank per device."""

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from pipec.errors import BackendError
from pipec.runtime.tensors import TensorType
from pipec.runtime.transport import Message

LOOKAHEAD = 8
"""Receives that are posted before they are needed, so that a sender is never held up."""
_TAGS = 1 << 20


class ProcessGroupTransport:
    """Sends without waiting, receives into buffers that are posted ahead.

    Receives are posted in the order of the row, which over each link is the order of the sends,
    so transports that ignore tags match them too.

    Args:
        device: Where received tensors lie.
        groups: Sets of ranks that reduce together.
        timeout: How long to wait for another rank.
    """

    def __init__(
        self,
        device: torch.device,
        groups: Iterable[tuple[int, ...]],
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        self._device, self._timeout = device, timeout
        world = tuple(range(dist.get_world_size()))
        self._groups = {
            members: None if members == world else dist.new_group(list(members))
            for members in sorted(set(groups))
            if len(members) > 1
        }
        self._coming: deque[tuple[Message, TensorType]] = deque()
        self._posted: dict[Message, tuple[torch.Tensor, dist.Work | None]] = {}
        self._sent: deque[tuple[dist.Work | None, torch.Tensor]] = deque()

    def expect(self, messages: Iterable[tuple[Message, TensorType]]) -> None:
        """Post the first receives."""
        self._coming.extend(messages)
        while self._coming and len(self._posted) < LOOKAHEAD:
            self._post()

    def _post(self) -> None:
        message, kind = self._coming.popleft()
        buffer = kind.empty(self._device)
        work = dist.irecv(buffer, message.src, tag=_tag(message))
        self._posted[message] = buffer, work

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start sending; the tensor is held until it has left."""
        tensor = tensor.contiguous()
        self._sent.append((dist.isend(tensor, message.dst, tag=_tag(message)), tensor))
        while self._sent and _done(self._sent[0][0]):
            self._sent.popleft()

    def ready(self, message: Message) -> bool:
        """Always: `receive` waits."""
        del message
        return True

    def receive(self, message: Message) -> torch.Tensor:
        """Wait for a message.

        Raises:
            BackendError: It did not come in time, or the other rank is gone.
        """
        while message not in self._posted:
            self._post()
        buffer, work = self._posted.pop(message)
        if self._coming:
            self._post()
        self._wait(work, f"{message.channel}, number {message.number}, from rank {message.src}")
        return buffer

    def reduce(
        self, key: str, tensors: Sequence[torch.Tensor], device: int, members: tuple[int, ...]
    ) -> list[torch.Tensor] | None:
        """All-reduce of the tensors, one message per dtype."""
        del device
        if len(members) == 1:
            return list(tensors)
        result: list[torch.Tensor | None] = [None] * len(tensors)
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            mine = [k for k, t in enumerate(tensors) if t.dtype == dtype]
            flat = torch.cat([tensors[k].reshape(-1) for k in mine])
            work = dist.all_reduce(flat, group=self._groups[members], async_op=True)
            self._wait(work, f"sum {key} over ranks {', '.join(map(str, members))}")
            parts = flat.split([tensors[k].numel() for k in mine])
            for k, part in zip(mine, parts, strict=True):
                result[k] = part.view(tensors[k].shape)
        return [t for t in result if t is not None]

    def finish(self) -> None:
        """Wait until everything has left."""
        while self._sent:
            work, _ = self._sent.popleft()
            self._wait(work, "a send to leave")

    def _wait(self, work: dist.Work | None, what: str) -> None:
        try:
            if work is not None:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise BackendError(
                "another rank did not answer",
                where=f"rank {dist.get_rank()}, waiting for {what}",
                got=str(error).splitlines()[0],
            ) from error


def _tag(message: Message) -> int:
    return zlib.crc32(message.channel.encode()) % _TAGS


def _done(work: dist.Work | None) -> bool:
    return work is None or work.is_completed()
