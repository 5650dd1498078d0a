"""What a device has seen in a round, and when its actions ran."""

from dataclasses import dataclass, field

import torch

from pipec.schedule.action import Action

Recorded = list[tuple[int, float, float, int]]
"""When the actions of the last round began and ended, by ``time.perf_counter``: (place in the
device's row, begin, end, bytes saved after it), in order."""


@dataclass
class Result:
    """What a device has seen in one round.

    Attributes:
        losses: Microbatch to loss, on the device that computes it.
        outputs: (microbatch, name) to an output of the model.
        versions: Every action with the updates that were in the weights it really used, or made.
        busy: Seconds spent computing, over all devices that this result is of.
        norm: Norm of all gradients together, before clipping; None where it is not needed.
        skipped: Whether the update was left out, its gradients not being finite, or a spike.
        rescaled: Whether that made the scale of the loss smaller, which may help.
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    versions: list[tuple[Action, int]] = field(default_factory=list)
    busy: float = 0.0
    norm: float | None = None
    skipped: bool = False
    rescaled: bool = False

    def add(self, other: "Result") -> None:
        """Take in what another device has seen in the same round."""
        self.losses |= other.losses
        self.outputs |= other.outputs
        self.versions += other.versions
        self.busy += other.busy
        self.norm = other.norm if self.norm is None else self.norm
        self.skipped |= other.skipped
        self.rescaled |= other.rescaled
