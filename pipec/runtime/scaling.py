"""A scale on the loss, so that small gradients do not vanish in float16, and that follows them.

The rule of `torch.amp.GradScaler` (Micikevicius et al., Mixed Precision Training, ICLR'18): an
update whose gradients overflow is left out and halves the scale; 2,000 good ones in a row double
it. All devices know the same norm, so they scale alike without asking each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch

from pipec.errors import PlanError

_GROWTH, _BACKOFF, _INTERVAL = 2.0, 0.5, 2000


@dataclass
class LossScale:
    """The scale of one device.

    Attributes:
        scale: What the gradient of the loss is multiplied with.
        adapts: Whether it follows the gradients; a scale of 1 does not.
        good: Updates since it last changed.
    """

    scale: float = 1.0
    adapts: bool = False
    good: int = 0

    @property
    def recovers(self) -> bool:
        """Whether an overflow may be the scale's own, and a smaller one can help."""
        return self.adapts and self.scale > 1

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Refuse to scale for trained weights in float16: their own updates would vanish.

        Raises:
            PlanError: There are some.
        """
        for name, w in weights.items():
            if self.adapts and w.dtype == torch.float16:
                raise PlanError(
                    "the loss is scaled for weights in float32, under autocast in the model",
                    where=name,
                    got=w.dtype,
                )

    def follow(self, norm: float) -> None:
        """Note one update, whose gradients together have this norm."""
        if not self.adapts:
            return
        self.good = self.good + 1 if isfinite(norm) else 0
        if not isfinite(norm):
            self.scale *= _BACKOFF
        elif self.good == _INTERVAL:
            self.scale, self.good = self.scale * _GROWTH, 0
