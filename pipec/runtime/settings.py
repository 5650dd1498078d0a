"""How to train, besides the plan."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal, get_args

from pipec.errors import PlanError
from pipec.runtime.program import StageProgram
from pipec.runtime.rules import Correction
from pipec.runtime.stage import Compile, StageRunner
from pipec.runtime.weights import OptimizerFactory, SchedulerFactory
from pipec.schedule.schedule import Schedule

OnNan = Literal["stop", "skip", "continue"]


@dataclass(frozen=True)
class Settings:
    """How to train, besides the plan.

    Attributes:
        optimizer: Makes the optimizer of a stage.
        scheduler: Makes its learning-rate schedule, stepped after every update.
        clip: Largest norm of all gradients together; None for no limit. Needs a flush.
        seed: Seed of the random numbers of every forward: one stream per microbatch and random op.
        correction: PipeMare's T1 and T2.
        compiled: Makes a graph fast, such as ``torch.compile``.
        runner: Makes what runs a stage, if that is not torch.
        on_nan: What to do if gradients are not finite, or a spike
            (`pipec.runtime.figures.conclude`).
        spike: How many times the median of the last norms makes one a spike
            (`pipec.runtime.spikes`); without a flush, of the losses. None for no spikes.
        loss_scale: First scale on the loss (`pipec.runtime.scaling`), for float16; None for none.

    Raises:
        PlanError: No norm is that small, no scale, or no spike, or one that is to be ignored.
    """

    optimizer: OptimizerFactory | None = None
    scheduler: SchedulerFactory | None = None
    clip: float | None = None
    seed: int = 0
    correction: Correction = field(default_factory=Correction)
    compiled: Compile | None = None
    runner: Callable[[StageProgram], StageRunner] | None = None
    on_nan: OnNan = "continue"
    spike: float | None = None
    loss_scale: float | None = None

    @property
    def skips(self) -> bool:
        """Whether an update whose gradients are not finite is left out."""
        return self.on_nan != "continue" or self.loss_scale is not None

    def check_flush(self, schedule: Schedule) -> None:
        """Refuse what needs the norm of all gradients together where there is no flush.

        Raises:
            PlanError: It is asked for.
        """
        known = self.clip is not None or self.on_nan == "skip" or self.loss_scale is not None
        if known and not schedule.rule.flush:
            raise PlanError(
                "gradients can be clipped, scaled or judged together only where all weights change "
                "at once",
                got=f"schedule {schedule.name}",
                want="a schedule with a flush, such as 1f1b",
            )

    def __post_init__(self) -> None:
        if self.on_nan not in (known := get_args(OnNan)):
            raise PlanError("no such on_nan", got=self.on_nan, want=", ".join(known))
        clip: object = self.clip
        if clip is not None and not (isinstance(clip, int | float) and clip > 0):
            raise PlanError(
                "gradients cannot be clipped to this norm", got=self.clip, want="above 0"
            )
        if self.loss_scale is not None and not 0 < self.loss_scale < inf:
            raise PlanError("no such loss scale", got=self.loss_scale, want="such as 65536")
        if self.spike is not None and not 1 < self.spike < inf:
            raise PlanError("no such spike", got=self.spike, want="a factor above 1, such as 10")
        if self.spike is not None and self.on_nan == "continue":
            hint = "on_nan: stop or skip (--on-nan)"
            raise PlanError(
                "a spike has no effect where training goes on", got=self.spike, hint=hint
            )
