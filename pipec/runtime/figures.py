"""What all ranks together found in a round, and what is done if it is not finite, or a spike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pipec.errors import PlanError
from pipec.runtime.executor import Executor
from pipec.runtime.result import Result
from pipec.runtime.shares import Shares
from pipec.runtime.waiting import locate_failure, waiting_for


@dataclass(frozen=True)
class Figures:
    """One round, over all ranks.

    Attributes:
        loss: Mean over all that its microbatches count; None without a loss.
        norm: Norm of all gradients together, before clipping; None where it is not needed.
        skipped: Whether the update was left out, its gradients not being finite, or a spike.
        rescaled: Whether that made the scale of the loss smaller, which may help.
        busy: Seconds spent computing, of all ranks.
        seconds: Wall time, the mean of all ranks.
    """

    loss: float | None
    norm: float | None
    skipped: bool
    rescaled: bool
    busy: float
    seconds: float


def gather_figures(result: Result, shares: Shares, number: int, seconds: float = 0.0) -> Figures:
    """The figures of a round, the same on all ranks; all of them must call.

    Raises:
        BackendError: Another rank did not answer.
    """
    loss = sum(float(loss) * shares.weight(m) for m, loss in result.losses.items())
    norms = [] if result.norm is None else [result.norm]
    numbers = [loss, shares.total(result.losses), sum(norms), len(norms)]
    numbers += [result.skipped, result.rescaled, result.busy, seconds, 1]
    sums = torch.tensor(numbers, dtype=torch.float64)
    if dist.is_available() and dist.is_initialized():
        where = f"round {number}, at its figures"
        with locate_failure(lambda: where), waiting_for("the figures of all ranks"):
            dist.all_reduce(sums)
    loss, weight, norm, normed, skipped, rescaled, busy, seconds, ranks = sums.tolist()
    return Figures(
        loss / weight if weight else None,
        norm / normed if normed else None,
        skipped > 0,
        rescaled > 0,
        busy,
        seconds / ranks,
    )


def conclude(found: Figures, executors: Sequence[Executor], number: int) -> PlanError | None:
    """The error with which a run stops that is to stop; None where it goes on.

    Running statistics that a left out round made not finite are those of before it.

    With a flush, gradients are judged by their norm, and all devices leave out the same update:
    before ``stop``, or at ``skip``. Without, a loss is judged once it is known.
    """
    for weights in (w for e in executors for w in e.weights.values() if found.skipped):
        weights.mend_buffers()
    executor = executors[0]
    odd = found.loss is not None and not math.isfinite(found.loss)
    spikes, far = executor.spikes, False
    if found.loss is not None and not executor.program.flush:
        far = spikes.judge(found.loss)
    left_out = found.skipped and not found.rescaled
    if executor.settings.on_nan != "stop" or not (odd or far or left_out):
        return None
    spike = far or (left_out and found.norm is not None and math.isfinite(found.norm))
    what = "the loss or its gradient" if found.skipped else "the loss"
    end = "; the weights were not updated" if found.skipped else ""
    return PlanError(
        f"{what} is {'a spike' if spike else 'not finite'}{end}",
        where=f"round {number}",
        got=f"loss {found.loss}, gradient norm {found.norm}",
        want=f"at most {spikes.limit:.4g}, {spikes.bound:g} times the last ones" if spike else None,
        hint="a smaller learning rate, clipping, or skipping of such updates (on_nan, --on-nan)",
    )
