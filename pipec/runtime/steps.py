"""Steps of the optimizer: at once, or when all gradients are known; each replica steps its share.

In a schedule with a flush, steps wait until all of the device's row are due. Then, on all devices
in the same order: the gradients of each shared weight are summed over the stages that read it, so
that its copies stay equal; the norm of all gradients is found; every stage steps. Replicas of a
stage add up their gradients so that each has the sums of the parameters that it steps; behind its
step it gets the others from those who have stepped them (Rajbhandari et al., ZeRO, SC'20, stage 1).
"""

from collections.abc import Generator, Iterator
from functools import partial
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import torch

from pipec.runtime.program import Program
from pipec.runtime.transport import Meeting, Waits, poll
from pipec.schedule.action import Action

if TYPE_CHECKING:
    from pipec.runtime.executor import Executor

_UPDATE = 1
"""A flush schedule makes one update per round."""
_SQUARED = 2**22
"""About so many numbers of a gradient are there in float64 at a time."""


class Steps:
    """The steps of one device."""

    def __init__(self, program: Program, device: int) -> None:
        self._program, self._device = program, device
        self._steps: list[tuple[Action, int]] = []
        self.norm: float | None = None
        training = program.schedule.training
        self._members = {n: program.sharers(n) for n in program.tied} if training else {}

    def do(self, executor: "Executor", action: Action, oldest: int) -> Waits:
        """Make a version; with a flush all of the row together, with the last one."""
        if not self._program.flush:
            yield from self._make_version(executor, action, oldest, 1.0)
            return
        self._steps.append((action, oldest))
        if not executor.steps_again:
            yield from self._finish(executor)

    def _finish(self, executor: "Executor") -> Waits:
        """Make the versions that have waited."""
        steps, self._steps = self._steps, []
        for name in sorted(n for n, devices in self._members.items() if self._device in devices):
            yield from self._sum_shared(executor, name)
        factor = yield from self._clipping(executor)
        for action, oldest in sorted(steps, key=lambda s: s[0].stage):  # replicas wait for another
            yield from self._make_version(executor, action, oldest, factor)
        if self.norm is not None:
            executor.scaling.follow(self.norm)

    def _sum_shared(self, executor: "Executor", name: str) -> Waits:
        held = [executor.weights[s] for s in self._program.tied[name] if s in executor.weights]
        # of replicas, the one that steps it has the sum, and others have zeros
        parts = [weights.gradients(_UPDATE)[name] for weights in held]
        part = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        count = part.new_tensor([sum(name in weights.read_sums(_UPDATE) for weights in held)])
        at = Meeting(f"tied {name} {executor.round}", self._device, self._members[name])
        total, count = yield from poll(partial(executor.transport.reduce, at, [part, count]))
        for weights in held if count else ():
            grads = weights.read_sums(_UPDATE)
            weights.replace_gradients(_UPDATE, {**grads, name: total})

    def _clipping(self, executor: "Executor") -> Generator[bool, None, float]:
        """Find the norm of all gradients; the factor on them, NaN if their update is left out."""
        settings, scale = executor.settings, executor.scaling.scale
        names = sorted({n for s in self._program.stages for n in self._program.parameters(s.index)})
        place = {n: k for k, n in enumerate(names)}
        squares = torch.zeros(len(names), dtype=torch.float64, device=executor.compute.torch)
        for name, gradient, count in self._own_gradients(executor):
            numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            rows = torch.atleast_1d(numbers)
            for part in rows.split(max(1, _SQUARED * len(rows) // max(1, rows.numel()))):
                length = torch.linalg.vector_norm(part, dtype=torch.float64)
                squares[place[name]] += (length / (count * scale)).square()
        at = Meeting(f"norm {executor.round}", self._device, self._program.steppers)
        (total,) = yield from poll(partial(executor.transport.reduce, at, [squares]))
        self.norm = float(total.sum().sqrt())
        if executor.spikes.judge(self.norm) or not isfinite(self.norm):
            # nobody clips: only what is not finite spoils its weights; a loss scale would skip
            return nan if settings.skips or settings.clip else 1.0
        return min((settings.clip or inf) / (self.norm + 1e-6), 1.0) / scale

    def _own_gradients(self, executor: "Executor") -> Iterator[tuple[str, torch.Tensor, float]]:
        """(name, gradient, weight of its microbatches) of all that no earlier stage counts.

        So each slot of the sum of squares has one summand, and the norm the same bits however the
        model is cut.
        """
        for stage, weights in executor.weights.items():
            count, gradients = executor.rounds.total(stage, _UPDATE), weights.gradients(_UPDATE)
            for name in weights.owned:
                if self._program.tied.get(name, (stage,))[0] == stage:
                    yield name, gradients[name], count

    def _make_version(
        self, executor: "Executor", action: Action, oldest: int, factor: float
    ) -> Waits:
        """Step a stage's optimizer, gradients times ``factor`` over the weight of the update."""
        weights, rule = executor.weights[action.stage], executor.rules[action.stage]
        count = executor.rounds.total(action.stage, action.version)
        if not count or (not isfinite(factor) and executor.settings.skips):
            weights.skip(action.version, oldest)
            executor.result.skipped |= bool(count)
            overflown = self.norm is None or not isfinite(self.norm)
            executor.result.rescaled |= bool(count) and overflown and executor.scaling.recovers
            return
        held = weights.version_at(weights.newest).tensors
        before = {n: held[n] for n in weights.trained} if rule.corrects else {}
        with executor.compute.count_time():
            weights.step(
                action.version,
                scale=factor / count,
                rate=rule.rate(),
                oldest=oldest,
                in_place=self._program.flush and oldest >= action.version,
            )
        new = weights.version_at(action.version)
        yield from self._bring_together(executor, action, new.tensors)
        rule.observe(before, {n: new.tensors[n] for n in before})
        executor.result.versions.append((action, new.updates.count))

    def _bring_together(
        self, executor: "Executor", action: Action, new: dict[str, torch.Tensor]
    ) -> Waits:
        """Take what other replicas have stepped."""
        weights = executor.weights[action.stage]
        members = self._program.schedule.placement.backward[action.stage]
        if len(members) == 1:
            return
        key = f"{action.stage} {action.version} {executor.round}"
        at = Meeting(key, self._device, members)
        owners = [members[weights.owners[n]] for n in weights.parameters]
        parameters = [new[n] for n in weights.parameters]
        found = yield from poll(partial(executor.transport.gather, at, parameters, owners))
        for name, tensor in zip(weights.parameters, found, strict=True):
            if name not in weights.owned:
                new[name].copy_(tensor)
