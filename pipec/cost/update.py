"""What changing weights takes where it was not measured: the bytes that it moves, and when."""

from dataclasses import dataclass

from pipec.cluster.device import Device

OPTIMIZER_COPIES = 2
"""Weight-sized tensors of the optimizer's state: Adam's two moments."""
STEPPING = 3 + 2 * OPTIMIZER_COPIES
"""Weight-sized tensors that a step reads and writes: weights and state both ways, gradients."""
ADDING = 3
"""Gradient-sized tensors of a sum: two are read, one is written."""


@dataclass(frozen=True)
class UpdateCost:
    """Seconds of what changes the weights of one stage.

    Attributes:
        step: One step of Adam in one pass over its tensors.
        accumulate: Adding the gradients of one microbatch to those that are there.
    """

    step: float = 0.0
    accumulate: float = 0.0


def update_cost(device: Device, nbytes: float) -> UpdateCost:
    """What trained weights of ``nbytes`` bytes take on a device, at the rate of its memory.

    Nothing where the device streams: there the backend's engines say it. Where tables time its
    kernels, adding up is one for each weight, and in its node's backward already.
    """
    if device.streams:
        return UpdateCost()
    once = nbytes / device.memory_rate
    return UpdateCost(STEPPING * once, 0.0 if device.tables else ADDING * once)
