"""A device that is handed actions long before it is done with them, as a GPU is."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.runtime.device import Copied, Device, Fetched
from pipec.runtime.tensors import TensorType, buffer_bytes, pack, parts, places_of


@dataclass
class Behind:
    """Stands for an event that the device does not reach before it is waited for."""

    copy: Copied
    types: Sequence[TensorType]

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        """The copy ends: what it reads is read now."""
        if self.copy.read:
            pack(self.copy.read, self.types, self.copy.buffer)


class Lagging(Device):
    """A CPU whose copies to host memory read, and end, when something waits for them.

    Attributes:
        out: Copies to host memory, in the order in which they began.
        taken: Tensors that came back into the place of others, and all that came beside what left.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.out: list[Copied] = []
        self.taken = [0, 0]
        self.moments = itertools.count()

    def mark_moment(self) -> float:
        return float(next(self.moments))

    def to_host(self, tensors: Sequence[Tensor], types: Sequence[TensorType]) -> Copied:
        buffer = self.room(buffer_bytes(types))
        copy = Copied(buffer, read=list(tensors))
        self.out.append(Copied(buffer, Behind(copy, types), copy.read))  # type: ignore[arg-type]
        self.copied = -2.0, -1.0
        return self.out[-1]

    def from_host(
        self, copy: Copied, types: Sequence[TensorType], left: Copied | None = None
    ) -> Fetched:
        self.copied = -4.0, -3.0
        copy.wait()
        if left is None:
            return super().from_host(copy, types)
        left.wait()
        before = {t.data_ptr() for t in left.read}
        places = places_of(left.read, types, self.torch)
        self.taken[0] += sum(p.data_ptr() in before for p in places)
        self.taken[1] += len(places)
        for place, part in zip(places, parts(copy.buffer, types), strict=True):
            place.copy_(part)
        self.host.give(copy.buffer)
        return Fetched(places)

    def wait(self, copy: Copied | Fetched) -> None:
        if isinstance(copy, Copied):
            copy.wait()
            copy.read.clear()
