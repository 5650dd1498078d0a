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
from pipec.runtime.program import Program

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
                    "the loss is scaled for weights in float32, under autocast",
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


def check_scaled(program: Program) -> None:
    """Refuse to train weights in float32 through values in float16 without a scale.

    Raises:
        PlanError: Small gradients would vanish.
    """
    forwards = [s.forward for s in program.stages if s.training]
    made = (n.meta["val"] for g in forwards for n in g.calls)
    values = {t.dtype for t in made if isinstance(t, torch.Tensor)}
    types = {s.type_of(n).dtype for s in program.stages for n in program.parameters(s.index)}
    if torch.float16 in values and types - {"float16"}:
        raise PlanError(
            "small gradients would vanish in float16",
            got="no scale on the loss",
            want="a first scale, such as 65536, and a schedule with a flush",
            hint="loss_scale=65536, --loss-scale 65536; or autocast to bfloat16",
        )
