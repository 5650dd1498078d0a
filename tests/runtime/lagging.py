"""A device that is handed actions long before it is done with them, as a GPU is."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from pipec.runtime.device import Copied, Device
from pipec.runtime.tensors import TensorType


class Behind:
    """Stands for an event that the device does not reach before it is waited for."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        """Nothing is under way."""


class Lagging(Device):
    """A CPU whose copies end when something waits for them.

    Attributes:
        out: Copies to host memory, in the order in which they began.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.out: list[Copied] = []
        self.moments = itertools.count()

    def moment(self) -> float:
        return float(next(self.moments))

    def to_host(self, tensors: Sequence[Tensor], types: Sequence[TensorType]) -> Copied:
        buffer = super().to_host(tensors, types).buffer
        self.out.append(Copied(buffer, Behind(), list(tensors)))  # type: ignore[arg-type]
        self.copied = -2.0, -1.0
        return self.out[-1]

    def from_host(self, copy: Copied) -> Copied:
        self.copied = -4.0, -3.0
        return super().from_host(copy)

    def wait(self, arriving: Copied) -> Tensor:
        arriving.read.clear()
        return arriving.buffer
