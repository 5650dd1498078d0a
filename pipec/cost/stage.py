"""What was measured of whole stages and of messages; and what an update takes where it was not.

A stage's graphs F, B, I and W are run as the executor runs them, so that the interpreter, the
allocator and the caches are in the figures. A message costs three things (LogGP: Alexandrov et al.,
"LogGP: incorporating long messages into the LogP model", SPAA'95): the time of the sending and of
the receiving processor, which these cannot compute in, and the time on the way between them.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from pipec.cluster.device import Device
from pipec.errors import CostError

Figure = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Size = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class StageCost:
    """Seconds of one stage and one microbatch on one kind of device.

    Attributes:
        F: Forward.
        B: Full backward, its gradients the first of their update; 0 in inference, as all below.
        I: Gradients of the received values.
        W: Gradients of the weights, the first of their update.
        accumulate: What B or W takes longer where it adds to gradients that are there.
        step: One step of the optimizer, in place.
        step_copied: One step that leaves the version before as it is.
        optimizer_bytes: What the optimizer keeps between steps.
        workspace: Kind of action (``F``, ``B``, ``I``, ``W``, ``STEP``) to the most bytes that it
            allocates while it runs, without what lives on; ``first B`` and ``first W`` where no
            gradients of the update are there yet.
        kernels: `kernel_key` to the most bytes that an op allocates, where its kernel takes more
            than it makes.
    """

    F: Figure
    B: Figure = 0.0
    I: Figure = 0.0  # noqa: E741
    W: Figure = 0.0
    accumulate: Figure = 0.0
    step: Figure = 0.0
    step_copied: Figure = 0.0
    optimizer_bytes: Size = 0
    workspace: Mapping[str, Size] = field(default_factory=dict)
    kernels: Mapping[str, Size] = field(default_factory=dict)


@dataclass(frozen=True)
class MessageCost:
    """Seconds of a message by its size; between two sizes a straight line, beyond them its slope.

    Attributes:
        nbytes: Sizes that were measured, ascending.
        one_way: From the call that sends until the receiver has it, nothing else going on.
        send: Seconds of the sender's processor.
        receive: Seconds of the receiver's processor.
        sums: Seconds of the all-reduce of such a tensor between two devices; empty if that was
            not measured.
        slots: Receives of a channel that wait on the device, posted ahead; 0 if in host memory.

    Raises:
        CostError: The lists are empty or of unlike lengths, or the sizes do not ascend.
    """

    nbytes: tuple[Size, ...]
    one_way: tuple[Figure, ...]
    send: tuple[Figure, ...]
    receive: tuple[Figure, ...]
    sums: tuple[Figure, ...] = ()
    slots: Size = 0

    def __post_init__(self) -> None:
        rows = (self.nbytes, self.one_way, self.send, self.receive, self.sums or self.nbytes)
        ascending = sorted({*self.nbytes}) == [*self.nbytes]
        if not self.nbytes or len({len(row) for row in rows}) != 1 or not ascending:
            raise CostError("a record of message costs is malformed", got=self)

    def sending(self, nbytes: int) -> float:
        """Seconds of the sender's processor."""
        return self._at(self.send, nbytes)

    def receiving(self, nbytes: int) -> float:
        """Seconds of the receiver's processor."""
        return self._at(self.receive, nbytes)

    def on_the_way(self, nbytes: int) -> float:
        """Seconds between the two: the rest of `one_way`.

        Example:
            >>> cost = MessageCost((0, 1000), (5e-5, 9e-5), (1e-5, 2e-5), (1e-5, 2e-5))
            >>> round(cost.on_the_way(500) * 1e6)
            40
        """
        ends = self.sending(nbytes) + self.receiving(nbytes)
        return max(0.0, self._at(self.one_way, nbytes) - ends)

    def all_reduce(self, nbytes: float, members: int) -> float | None:
        """Seconds in which ``members`` devices add up their tensors; None if not measured.

        A ring of k devices passes 2 (k - 1) parts of n / k bytes on, one after the other (Patarasuk
        and Yuan, JPDC 2009). A ring of two that adds 2 n / k bytes passes two such parts on.

        Example:
            >>> cost = MessageCost((0, 1000), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 3.0))
            >>> cost.all_reduce(1000, 2), cost.all_reduce(1000, 4)
            (3.0, 6.0)
        """
        if members < 2:
            return 0.0
        return (members - 1) * self._at(self.sums, 2 * nbytes / members) if self.sums else None

    def _at(self, seconds: tuple[float, ...], nbytes: float) -> float:
        if nbytes <= self.nbytes[-1] or len(self.nbytes) == 1:
            return float(np.interp(nbytes, self.nbytes, seconds))
        slope = (seconds[-1] - seconds[-2]) / (self.nbytes[-1] - self.nbytes[-2])
        return seconds[-1] + max(0.0, slope) * (nbytes - self.nbytes[-1])


OPTIMIZER_COPIES = 2
"""Weight-sized tensors of the optimizer's state: Adam's two moments."""
STEPPING = 3 + 2 * OPTIMIZER_COPIES
"""Weight-sized tensors that a step reads and writes: weights and state both ways, gradients."""
ADDING = 3
"""Gradient-sized tensors of a sum: two are read, one is written."""


def update_cost(device: Device, nbytes: float) -> StageCost:
    """What trained weights of ``nbytes`` bytes take on a device, at the rate of its memory.

    It is a step of Adam in one pass over its tensors, and adding the gradients of one microbatch to
    those that are there. Nothing where the device streams: there the backend's engines say it.
    Where tables time its kernels, adding up is one for each weight, and in its node's backward.
    """
    if device.streams:
        return StageCost(0.0)
    once = nbytes / device.memory_rate
    added = 0.0 if device.tables else ADDING * once
    return StageCost(0.0, step=STEPPING * once, accumulate=added)
