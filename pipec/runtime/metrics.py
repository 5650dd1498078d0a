"""What a run tells: one line per step, JSON lines, TensorBoard."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipec.errors import PipecError


@dataclass(frozen=True)
class Step:
    """One round of the schedule.

    Attributes:
        step: Number of the round, from 0.
        loss: Mean over its microbatches; None without a loss.
        samples_per_second: Rows of the first input per second.
        bubble: Share of the devices' time that was not spent computing.
        seconds: Wall time.
    """

    step: int
    loss: float | None
    samples_per_second: float
    bubble: float
    seconds: float

    def to_json(self) -> str:
        """One line of strict JSON: null for a loss that is not finite, or not there."""
        known = self.loss is not None and math.isfinite(self.loss)
        return json.dumps(asdict(self) | {"loss": self.loss if known else None}, allow_nan=False)

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
        return (
            f"step {self.step}  {loss}{self.samples_per_second:.1f} samples/s  "
            f"bubble {self.bubble:.0%}"
        )


Observer = Callable[[Step], None]


class JsonLines:
    """Appends every step to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, step: Step) -> None:
        """Write one line and let it reach the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(step.to_json() + "\n")


class TensorBoard:
    """Writes every step as scalars.

    Raises:
        PipecError: The package tensorboard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PipecError(
                "TensorBoard is not installed", got=error, hint="pip install tensorboard"
            ) from error
        self._writer: Any = SummaryWriter(str(directory))

    def __call__(self, step: Step) -> None:
        """Write the scalars of one step."""
        for name, value in asdict(step).items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, step.step)
        self._writer.flush()
