"""What a run reports: one line per step, JSON lines, TensorBoard."""

import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

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
        skipped: Whether no update was made, its gradients not being finite.
    """

    step: int
    loss: float | None
    samples_per_second: float
    bubble: float
    seconds: float
    skipped: bool = False

    def to_json(self) -> str:
        """One line of strict JSON: null for a loss that is not finite, or not there."""
        known = self.loss is not None and math.isfinite(self.loss)
        return json.dumps(asdict(self) | {"loss": self.loss if known else None}, allow_nan=False)

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
        return (
            f"step {self.step}  {loss}{self.samples_per_second:.1f} samples/s  "
            f"bubble {self.bubble:.0%}{'  skipped' if self.skipped else ''}"
        )


Observer = Callable[[Step], None]


def tell(line: str) -> None:
    """Say something about the run itself."""
    sys.stderr.write(f"warning: {line}\n")


class Steady:
    """An observer that is given up, with one line, when what it writes to fails."""

    def __init__(self, observe: Observer, name: str, say: Callable[[str], None] = tell) -> None:
        self._observe, self._name, self._say = observe, name, say
        self._failed = False

    def __call__(self, step: Step) -> None:
        """Pass one step on."""
        if self._failed:
            return
        try:
            self._observe(step)
        except OSError as error:
            self._failed = True
            self._say(f"{self._name} is given up at step {step.step}: {error}")


class JsonLines:
    """Appends every step to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, step: Step) -> None:
        """Write one line and let it reach the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(step.to_json() + "\n")


class TensorBoard:
    """Writes every step as scalars, at once: its own writer fails in a thread, where nobody looks.

    Raises:
        PipecError: The package tensorboard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise PipecError(
                "TensorBoard is not installed", got=error, hint="pip install tensorboard"
            ) from error
        self._event, self._summary, self._format = (
            event_pb2.Event,
            summary_pb2.Summary,
            RecordWriter,
        )
        host, now = socket.gethostname(), time.time()
        self._path = directory / f"events.out.tfevents.{int(now)}.{host}.{os.getpid()}"
        self._begin = event_pb2.Event(wall_time=now, file_version="brain.Event:2")

    def __call__(self, step: Step) -> None:
        """Write the scalars of one step."""
        numbers = {n: float(v) for n, v in asdict(step).items() if n != "step" and v is not None}
        values = [self._summary.Value(tag=n, simple_value=v) for n, v in numbers.items()]
        event = self._event(
            wall_time=time.time(), step=step.step, summary=self._summary(value=values)
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            for e in (event,) if file.tell() else (self._begin, event):
                self._format(file).write(e.SerializeToString())
