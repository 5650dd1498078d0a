"""Steps that need more than their own stage: shared weights, and the norm of all gradients.

In a schedule with a flush these steps wait until the device's row is done. Then, on all devices
in the same order: the gradients of each shared weight are summed over the stages that read it, so
that its copies stay equal; the norm of all gradients is found; every stage steps.
"""

from collections.abc import Iterator
from math import isfinite, nan
from typing import TYPE_CHECKING

import torch

from pipec.runtime.program import Program
from pipec.schedule.action import Action

if TYPE_CHECKING:
    from pipec.runtime.executor import Executor

_UPDATE = 1
"""A flush schedule makes one update per round."""


class Deferred:
    """The steps of one device that wait for the end of the round.

    Args:
        program: The plan.
        device: The device.
        clip: Largest norm of all gradients together, or None.
    """

    def __init__(self, program: Program, device: int, clip: float | None) -> None:
        self._program, self._device, self._clip = program, device, clip
        self.wanted = program.flush and (clip is not None or bool(program.tied))
        self._steps: list[tuple[Action, int]] = []
        self._todo: list[str] = []
        self._factor: float | None = None
        self.norm: float | None = None
        training = program.schedule.training
        self._members = {n: program.sharers(n) for n in program.tied} if training else {}

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._steps

    def put(self, action: Action, oldest: int) -> None:
        """Let a step wait."""
        if not self._steps:
            self._todo = [n for n in sorted(self._members) if self._device in self._members[n]]
            self._factor = None if self._clip is not None else 1.0
        self._steps.append((action, oldest))

    def run(self, executor: "Executor") -> bool:
        """Do the next part; False if another device must come first or nothing waits."""
        if not self._steps:
            return False
        if self._todo:
            return self._sum_shared(executor, self._todo[0])
        if self._factor is None:
            return self._find_norm(executor)
        for action, oldest in self._steps:
            executor.make_version(action, oldest, self._factor)
        self._steps.clear()
        if self.norm is not None:
            executor.scaling.follow(self.norm)
        return True

    def _stages(self, executor: "Executor", name: str) -> list[int]:
        return [s for s in self._program.tied[name] if s in executor.weights]

    def _sum_shared(self, executor: "Executor", name: str) -> bool:
        mine = self._stages(executor, name)
        parts = [executor.weights[s].gradients(_UPDATE)[name] / self._replicas(s) for s in mine]
        part = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        key = f"tied {name} {executor.round}"
        total = executor.transport.reduce(key, [part], self._device, self._members[name])
        if total is None:
            return False
        for s in mine:
            grads = executor.weights[s].gradients(_UPDATE)
            executor.weights[s].replace_gradients(_UPDATE, {**grads, name: total[0]})
        self._todo.pop(0)
        return True

    def _find_norm(self, executor: "Executor") -> bool:
        names = sorted({n for s in self._program.stages for n in self._program.trained(s.index)})
        place = {n: k for k, n in enumerate(names)}
        squares = torch.zeros(len(names), dtype=torch.float64)
        scale = executor.scaling.scale
        for name, gradient, count in self._own_gradients(executor):
            numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            squares[place[name]] = (numbers.double() / (count * scale)).square().sum()
        key = f"norm {executor.round}"
        total = executor.transport.reduce(key, [squares], self._device, self._program.steppers)
        if total is None:
            return False
        assert self._clip is not None
        self.norm = float(total[0].sum().sqrt())
        finite = isfinite(self.norm)
        self._factor = min(self._clip / (self.norm + 1e-6), 1.0) / scale if finite else nan
        return True

    def _own_gradients(self, executor: "Executor") -> Iterator[tuple[str, torch.Tensor, float]]:
        """(name, gradient, weight of its microbatches) of all that no earlier stage counts.

        So each slot of the sum of squares has one summand, and the norm the same bits however the
        model is cut.
        """
        backward = self._program.schedule.placement.backward
        for stage, weights in executor.weights.items():
            count = executor.rounds.total(stage, _UPDATE)
            for name, gradient in weights.gradients(_UPDATE).items():
                first = self._program.tied.get(name, (stage,))[0] == stage
                if first and backward[stage][0] == self._device:
                    yield name, gradient, count

    def _replicas(self, stage: int) -> int:
        return len(self._program.schedule.placement.backward[stage])
