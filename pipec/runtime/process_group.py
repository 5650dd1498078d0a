"""The transport between processes: torch.distributed, one rank per device.

```text
gloo    one group for all links; tags tell channels apart; waiting has a timeout
NCCL    one group per direction of a link: within a group messages arrive in the order of the
        posts, and a receive that is posted early holds up no send; waiting is the stream's
```
"""

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from pipec.runtime.transport import Incoming, Meeting, Message, Parts, Tensors, Transport
from pipec.runtime.waiting import PATIENCE, waiting_for
from pipec.simulate.memory import SLOTS

_TAGS = 1 << 20

Link = tuple[int, int]
"""Sending and receiving rank."""


class ProcessGroupTransport(Transport):
    """Sends without waiting, receives into buffers that are posted ahead.

    Receives are posted in the order of the row, which over each link is the order of the sends,
    so transports that ignore tags match them too.
    """

    waits = True

    def __init__(
        self, device: torch.device, groups: Iterable[tuple[int, ...]], timeout: timedelta = PATIENCE
    ) -> None:
        self._device, self._timeout = device, timeout
        self._staged = device.type != "cpu" and "nccl" not in dist.get_backend_config()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._links: dict[Link, dist.ProcessGroup] = {}
        self.connect(groups, ())
        self._coming: deque[Incoming] = deque()
        self._posted: dict[Message, tuple[torch.Tensor, dist.Work | None]] = {}
        self._taken: Counter[str] = Counter()
        self._proves: dict[Message, tuple[Message, ...]] = {}
        self._sent: dict[Message, tuple[dist.Work | None, torch.Tensor]] = {}

    @property
    def slots(self) -> int:
        """Receives of a channel whose buffers wait on the device; 0 if in host memory."""
        return 0 if self._staged else SLOTS

    def connect(self, groups: Iterable[tuple[int, ...]], links: Iterable[Link]) -> None:
        """Make the groups that are not there yet; all ranks must call with the same.

        Args:
            groups: Sets of ranks that reduce together.
            links: Links that get a group of their own; all ranks must name the same.
        """
        world = tuple(range(dist.get_world_size()))
        for members in sorted(set(groups) - self._groups.keys()):
            if members == world:
                self._groups[members] = None
            elif len(members) > 1:
                self._groups[members] = new_group(members, self._timeout)
        for link in sorted(set(links) - self._links.keys()):
            self._links[link] = new_group(link, self._timeout)

    def expect(self, messages: Iterable[Incoming]) -> None:
        """Post the first receives."""
        self._coming.extend(messages)
        self._post_ahead()

    def _post_ahead(self) -> None:
        """Post in the order of the row, up to the first whose channel has no free slot."""
        while self._coming and self._taken[self._coming[0].message.channel] < SLOTS:
            self._post()

    def _post(self) -> None:
        message, kind, proves = self._coming.popleft()
        buffer = kind.empty("cpu" if message.host or self._staged else self._device)
        group = self._links.get((message.src, message.dst))
        with waiting_for(_describe(message)):
            work = dist.irecv(buffer, message.src, group=group, tag=_tag(message))
        self._posted[message] = buffer, work
        self._taken[message.channel] += 1
        self._proves[message] = proves

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start sending; the tensor is held until a reply proves that it has left.

        Gloo says so only to those who wait.
        """
        tensor = tensor.cpu() if self._staged else tensor
        tensor = tensor.contiguous()
        group = self._links.get((message.src, message.dst))
        with waiting_for(f"rank {message.dst} to take {message.channel}, number {message.number}"):
            work = dist.isend(tensor, message.dst, group=group, tag=_tag(message))
        self._sent[message] = work, tensor

    def receive(self, message: Message) -> torch.Tensor:
        """Wait for a message.

        Raises:
            BackendError: It did not come in time, or the other rank is gone.
        """
        while message not in self._posted:
            self._post()
        buffer, work = self._posted.pop(message)
        self._taken[message.channel] -= 1
        self._post_ahead()
        self._wait(work, _describe(message), buffer)
        for sent in self._proves.pop(message):
            self._drop(sent)
        return buffer if message.host else buffer.to(self._device)

    def reduce(self, at: Meeting, tensors: Tensors) -> Parts:
        """All-reduce of the tensors, one message per dtype."""
        if len(at.members) == 1:
            return list(tensors)
        found: dict[int, torch.Tensor] = {}
        for places in _by_dtype(tensors):
            (flat,) = self._flat(tensors, [places])
            self._run_collective(dist.all_reduce, f"the sum {at.key}", at.members, flat)
            found |= _cut(flat, places, tensors)
        return [found[k] for k in range(len(tensors))]

    def scatter(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """Reduce-scatter of the tensors, one message per dtype."""
        found: dict[int, torch.Tensor] = {}
        for places in _by_dtype(tensors):
            shares = [[k for k in places if owners[k] == m] for m in at.members]
            flat = self._flat(tensors, shares)
            total = torch.empty_like(flat[0])
            self._run_collective(dist.reduce_scatter, f"the sum {at.key}", at.members, total, flat)
            found |= _cut(total, shares[at.members.index(at.device)], tensors)
        return [found[k] for k in sorted(found)]

    def gather(self, at: Meeting, tensors: Tensors, owners: Sequence[int]) -> Parts:
        """All-gather of the tensors, one message per dtype."""
        found: dict[int, torch.Tensor] = {}
        for places in _by_dtype(tensors):
            shares = [[k for k in places if owners[k] == m] for m in at.members]
            flat = self._flat(tensors, shares)
            own = flat[at.members.index(at.device)].clone()
            self._run_collective(dist.all_gather, f"the weights {at.key}", at.members, flat, own)
            for part, share in zip(flat, shares, strict=True):
                found |= _cut(part, share, tensors)
        return [found[k] for k in range(len(tensors))]

    def _flat(self, tensors: Tensors, shares: Sequence[list[int]]) -> list[torch.Tensor]:
        """The tensors of every share one behind the other, all of the longest one's length."""
        lengths = [sum(tensors[k].numel() for k in share) for share in shares]
        like = tensors[next(k for share in shares for k in share)]
        rests = (like.new_zeros(max(lengths) - n) for n in lengths)
        parts = ([tensors[k].reshape(-1) for k in share] for share in shares)
        found = [torch.cat([*p, rest]) for p, rest in zip(parts, rests, strict=True)]
        return [flat.cpu() for flat in found] if self._staged else found

    def _run_collective(
        self,
        do: Callable[..., dist.Work | None],
        what: str,
        members: tuple[int, ...],
        out: torch.Tensor | list[torch.Tensor],
        *given: torch.Tensor | list[torch.Tensor],
    ) -> None:
        """A collective operation of some ranks."""
        label = f"{what} over ranks {', '.join(map(str, members))}"
        with waiting_for(label):
            work = do(out, *given, group=self._groups[members], async_op=True)
        self._wait(work, label, out[0] if isinstance(out, list) else out)

    def finish(self) -> None:
        """Wait until everything has left."""
        for message in list(self._sent):
            self._drop(message)

    def _drop(self, message: Message) -> None:
        work, tensor = self._sent.pop(message)
        self._wait(work, "a send to leave", tensor)

    def _wait(self, work: dist.Work | None, what: str, tensor: torch.Tensor) -> None:
        if work is None:
            return
        with waiting_for(what):
            if tensor.is_cuda:
                work.wait()  # the stream waits; the group's watchdog has the timeout
            else:
                work.wait(self._timeout)


def _by_dtype(tensors: Tensors) -> list[list[int]]:
    """Places of the tensors, those of a dtype together."""
    dtypes = dict.fromkeys(t.dtype for t in tensors)
    return [[k for k, t in enumerate(tensors) if t.dtype == dtype] for dtype in dtypes]


def _cut(flat: torch.Tensor, places: list[int], tensors: Tensors) -> dict[int, torch.Tensor]:
    """What lies one behind the other in ``flat``, by place and of the types of ``tensors``."""
    sizes = [tensors[k].numel() for k in places]
    parts = flat.to(tensors[0].device)[: sum(sizes)].split(sizes) if places else ()
    return {k: p.view(tensors[k].shape) for k, p in zip(places, parts, strict=True)}


def new_group(members: Iterable[int] | None, timeout: timedelta) -> dist.ProcessGroup:
    """A group of some ranks, or of all of them (None); all ranks must call.

    Raises:
        BackendError: Another rank did not answer.
    """
    with waiting_for("all ranks to make a group"):
        ranks = None if members is None else sorted(members)
        group: dist.ProcessGroup = dist.new_group(ranks, timeout=timeout)
        return group


def _describe(message: Message) -> str:
    return f"{message.channel}, number {message.number}, from rank {message.src}"


def _tag(message: Message) -> int:
    return zlib.crc32(message.channel.encode()) % _TAGS
