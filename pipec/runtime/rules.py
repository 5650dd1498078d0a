"""How weights follow gradients: plain optimizer steps, or PipeMare's corrections for delay.

With a delay of tau updates between the weights that a forward used and the update that its
gradients go into (Yang et al., MLSys'21):

```text
T1   rate of stage i at its delayed update k:  alpha(k) / tau_i ** max(0, 1 - k / K)
T2   backward weights:                 u = w - (tau_F - tau_B) * delta,
     delta <- gamma * delta + (1 - gamma) * (w_new - w_old),   gamma = D ** (1 / (tau_F - tau_B))
T3   the first rounds run a synchronous schedule
```
"""

from dataclasses import dataclass

import numpy as np
import torch

from pipec.errors import PlanError
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Correction:
    """Which of PipeMare's corrections are on.

    Attributes:
        t1_steps: K, updates over which the rate of a delayed stage grows to its full value; 0
            turns T1 off.
        t2_decay: D, such as ``exp(-2)``; 0 turns T2 off.

    T3 is no setting: it is another schedule for the first rounds (`Pipeline.load_state_dict`).

    Raises:
        PlanError: K is negative, or D is not below 1.
    """

    t1_steps: int = 0
    t2_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.t1_steps < 0:
            raise PlanError("T1 cannot last so long", got=self.t1_steps, want="updates, 0 for none")
        if not 0 <= self.t2_decay < 1:
            want = "a number from 0, for none, to below 1"
            raise PlanError("T2 has no such decay", got=self.t2_decay, want=want)


def delays(schedule: Schedule, stage: int) -> tuple[float, float]:
    """Updates between the weights that F, and B, of a stage use and those that B's step starts at.

    Both as means over the microbatches of the second half of the schedule, so that the filling of
    the pipeline does not count.

    Returns:
        (tau of the forward, tau of the backward), in updates.
    """
    replicas = len(schedule.placement.backward[stage])
    found = []
    for kinds in ((ActionKind.F,), (ActionKind.B, ActionKind.I)):
        own = np.isin(schedule.kind, kinds) & (schedule.stage == stage)
        own &= schedule.microbatch >= schedule.microbatches // 2
        late = [
            schedule.rule.update_of(int(m), replicas) - 1 - int(v)
            for m, v in zip(schedule.microbatch[own], schedule.version[own], strict=True)
        ]
        found.append(float(np.mean(late)) if late else 0.0)
    return found[0], found[1]


class DelayRule:
    """T1 and T2 of one stage.

    Args:
        correction: What is on.
        forward: Delay of the stage's forward in updates.
        backward: Delay of its backward.
        counts: Whether its updates count for T1, as those of a synchronous warm-up do not.
    """

    def __init__(
        self, correction: Correction, forward: float, backward: float, *, counts: bool
    ) -> None:
        self._correction, self._forward, self._between = correction, forward, forward - backward
        self._counts = counts
        self.velocity: Tensors = {}
        self.updates = 0

    def rate(self) -> float:
        """Factor on the learning rate of the next update; delays below one update count as one."""
        k, steps = self.updates, self._correction.t1_steps
        if not steps:
            return 1.0
        return float(max(self._forward, 1.0) ** -max(0.0, 1 - k / steps))

    @property
    def corrects(self) -> bool:
        """Whether backward weights are extrapolated."""
        return self._correction.t2_decay > 0 and self._between > 0

    def observe(self, old: Tensors, new: Tensors) -> None:
        """Note one update of the weights."""
        self.updates += self._counts
        if not self.corrects:
            return
        gamma = self._correction.t2_decay ** (1 / self._between)
        for name, w in new.items():
            before = self.velocity.get(name)
            change = (1 - gamma) * (w - old[name])
            self.velocity[name] = change if before is None else before.mul(gamma).add_(change)

    def backward_weights(self, weights: Tensors) -> Tensors:
        """The weights that B uses: an estimate of those that the forward used."""
        if not self.corrects or not self.velocity:
            return weights
        moved = {n: weights[n] - self._between * d for n, d in self.velocity.items()}
        return {**weights, **moved}
